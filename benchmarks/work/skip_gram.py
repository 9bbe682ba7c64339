"""models/recall/word2vec on a text: ``python benchmarks/work/skip_gram.py --text=FILE``.

Network, loss and batches are the model's, 512 words a batch. It runs alone and as any role
of a job:

    paramfleet launch --worker_num 2 benchmarks/work/skip_gram.py --text=FILE --mode=geo
"""

import argparse
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar

import torch
from typing_extensions import override

import paramfleet as fleet
import windows
from paramfleet.runner.folders import import_module
from paramfleet.text import SkipGramBatch, SkipGramSettings, SkipGramText, Vocabulary

MODEL = Path(__file__).parents[2] / "models" / "recall" / "word2vec"


class WordsTask(windows.Task):
    """The model and this worker's part of the text."""

    learning_rates: ClassVar[Mapping[str, float]] = {"sgd": 0.025}

    def __init__(self, options: argparse.Namespace) -> None:
        self.batch_size: int = options.batch_size
        words = Vocabulary.build([options.text])
        network = import_module(MODEL / "net.py").SkipGram
        self.model: torch.nn.Module = network(len(words), options.dim, seed=options.seed)
        text = SkipGramText(
            [options.text],
            words,
            SkipGramSettings(batch_words=self.batch_size, seed=options.seed),
            rank=fleet.worker_index(),
            num_workers=fleet.worker_num(),
        )
        self._batches = list(itertools.islice(text, options.batches))
        self._rate: float = options.lr or self.learning_rates["sgd"]

    @override
    def batches(self) -> Iterator[SkipGramBatch]:
        return itertools.cycle(self._batches)

    @override
    def loss(self, batch: SkipGramBatch) -> torch.Tensor:
        words, targets = self.model(batch.words, batch.targets)
        return fleet.nn.skip_gram_loss(words, targets, batch.reaches, rate=self._rate)

    @override
    @torch.no_grad()
    def quality(self) -> dict[str, float]:
        some = self._batches[:50]
        losses = [float(self.loss(batch)) / batch.num_words for batch in some]
        return {"loss_of_50": float(fleet.metrics.sum(sum(losses))) / 50 / fleet.worker_num()}


def parse_arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = windows.command_line((__doc__ or "").partition("\n")[0])
    parser.add_argument("--text", required=True, help="file of words")
    parser.add_argument("--dim", type=int, default=100, help="floats of a row")
    parser.add_argument("--batch_size", type=int, default=512, help="words of a step")
    parser.add_argument("--batches", type=int, default=200, help="then they begin anew")
    return parser.parse_args()


if __name__ == "__main__":
    windows.main(WordsTask, parse_arguments())
