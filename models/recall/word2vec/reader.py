"""Text, plain or ``.gz`` or ``.xz``, as whole batches; workers share it by pieces."""

import functools
from collections.abc import Iterator, Sequence

import numpy as np
import torch

import paramfleet as fleet
from paramfleet.runner import Config, list_files
from paramfleet.runner.config.errors import ConfigError
from paramfleet.text import SkipGramSettings, SkipGramText, Vocabulary

from .net import Word2VecParameters

__all__ = ["RecDataset", "vocabulary_of"]

Batch = tuple[torch.Tensor, ...]
"""Words [n], reaches [n], targets [n, 1 + negatives], words of text [1], all int64."""


def vocabulary_of(config: Config[Word2VecParameters]) -> Vocabulary:
    """Return the words of the training files: the same for every worker, counted once."""
    hyper = config.hyper_parameters
    if hyper.vocabulary_path:
        return Vocabulary.load(config.path_of(hyper.vocabulary_path))
    return _counted(tuple(list_files(config, "train_data_dir")), hyper.min_count)


@functools.cache
def _counted(files: tuple[str, ...], min_count: int) -> Vocabulary:
    return Vocabulary.build(files, min_count=min_count)


class RecDataset:
    """The batches of this worker's part of the text.

    Args:
        files: Paths, all of them for every worker.
        config: Says what words there are and what is drawn.
    """

    def __init__(self, files: Sequence[str], config: Config[Word2VecParameters]) -> None:
        self._files = files
        self._config = config
        self._text: SkipGramText | None = None

    def batches(self, size: int) -> Iterator[Batch]:
        """Yield the batches of an epoch, ``size`` words of text each.

        Raises:
            ConfigError: if workers are to share batches: they share the text.
            FleetError: if a file can't be read.
        """
        if self._text is None:
            self._text = self._opened(size)
        for batch in self._text:
            count = torch.from_numpy(np.array([batch.num_words]))
            yield batch.words, batch.reaches, batch.targets, count

    def _opened(self, size: int) -> SkipGramText:
        hyper, runner = self._config.hyper_parameters, self._config.runner
        if runner.split_batches:
            raise ConfigError(
                where=str(self._config.path),
                key="runner.split_batches",
                value="true",
                rule="must be false: workers share the text itself, piece by piece",
            )
        shared = not runner.split_file_list
        settings = SkipGramSettings(
            batch_words=size,
            window=hyper.window,
            negatives=hyper.negatives,
            sample=hyper.sample,
            seed=runner.seed,
        )
        return SkipGramText(
            self._files,
            vocabulary_of(self._config),
            settings,
            rank=fleet.worker_index() if shared else 0,
            num_workers=fleet.worker_num() if shared else 1,
        )
