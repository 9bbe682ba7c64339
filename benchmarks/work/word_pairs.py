"""Skip-gram with negative sampling: ``python benchmarks/work/word_pairs.py``.

354,051 words, rows of 300, batches of 100 pairs in the order of the text, 5 negatives,
SGD. It runs alone and as any role of a job:

    paramfleet launch --worker_num 2 benchmarks/work/word_pairs.py --mode geo --k_steps 400
"""

import argparse
import itertools
from collections.abc import Iterator, Mapping
from typing import ClassVar, NamedTuple

import torch
from torch.nn import functional
from typing_extensions import override

import paramfleet as fleet
import windows
from pairs import NUM_WORDS, make_pairs


class Batch(NamedTuple):
    """B pairs, N negatives."""

    centres: torch.Tensor
    """int64 [B]."""
    others: torch.Tensor
    """int64 [B + N], or [B + B * N]: the contexts, then the negatives."""


class SkipGram(torch.nn.Module):
    """Two tables: words as centres, and words as contexts."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        span = 0.5 / dim
        self.centres = fleet.nn.Embedding(
            NUM_WORDS, dim, name="centres", initializer=fleet.nn.uniform(-span, span)
        )
        self.contexts = fleet.nn.Embedding(
            NUM_WORDS, dim, name="contexts", initializer=fleet.nn.constant(0.0)
        )

    @override
    def forward(self, centres: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        """Return the loss of a batch, averaged over its pairs."""
        num = len(centres)
        centre_BD, other_ND = self.centres(centres), self.contexts(others)
        context_BD, negative_ND = other_ND[:num], other_ND[num:]
        positive = (centre_BD * context_BD).sum(1)
        if len(negative_ND) < num:  # shared in the batch
            negative = centre_BD @ negative_ND.T
        else:
            negative_BND = negative_ND.view(num, -1, centre_BD.shape[1])
            negative = torch.bmm(negative_BND, centre_BD.unsqueeze(2))
        return (
            -(functional.logsigmoid(positive).sum() + functional.logsigmoid(-negative).sum())
            / num
        )


class SkipGramTask(windows.Task):
    """The model and this worker's pairs."""

    learning_rates: ClassVar[Mapping[str, float]] = {"sgd": 1.0, "adagrad": 0.05, "adam": 1e-3}

    def __init__(self, options: argparse.Namespace) -> None:
        self.batch_size: int = options.batch_size
        self.model: torch.nn.Module = SkipGram(options.dim)
        pairs = make_pairs(
            options.batches,
            options.batch_size,
            independent=options.independent,
            seed=(options.seed << 8) + fleet.worker_index(),
        )
        self._batches = [
            Batch(centres, torch.cat([contexts, negatives.flatten()]))
            for centres, contexts, negatives in zip(*map(torch.from_numpy, pairs), strict=True)
        ]

    @override
    def batches(self) -> Iterator[Batch]:
        return itertools.cycle(self._batches)

    @override
    def loss(self, batch: Batch) -> torch.Tensor:
        loss: torch.Tensor = self.model(batch.centres, batch.others)
        return loss

    @override
    @torch.no_grad()
    def quality(self) -> dict[str, float]:
        losses = [self.loss(batch) for batch in self._batches[:50]]
        return {"loss_of_50": float(fleet.metrics.sum(sum(losses))) / 50 / fleet.worker_num()}


def parse_arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = windows.command_line((__doc__ or "").partition("\n")[0])
    parser.add_argument("--dim", type=int, default=300, help="floats of a row")
    parser.add_argument("--batch_size", type=int, default=100, help="pairs of a step")
    parser.add_argument("--batches", type=int, default=4000, help="then they begin anew")
    parser.add_argument(
        "--independent", action="store_true", help="every pair has its own negatives"
    )
    return parser.parse_args()


if __name__ == "__main__":
    windows.main(SkipGramTask, parse_arguments())
