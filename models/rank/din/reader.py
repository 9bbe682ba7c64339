"""Histories of Amazon's users as PaddleRec prepares them, and an item to judge.

A row is ``items;categories;item;category;label``.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from paramfleet.runner import Config, HyperParameters, LineError, read_lines

__all__ = ["PADDED", "RecDataset"]

PADDED = -1_000_000_000
"""In a mask: there is no item at this place."""

Sample = tuple[NDArray[np.int64], NDArray[np.int64], int, int, float, NDArray[np.int64]]
"""Items and categories of the history int64 [max_len], item, category, label, and the mask
int64 [max_len]: 0 where there is an item."""


class RecDataset:
    """The samples of some files, in order.

    Args:
        files: Paths; gzipped if they end in .gz.
        config: Says how many items of a history are read.
    """

    def __init__(self, files: Sequence[str], config: Config[HyperParameters]) -> None:
        self._files = files
        self._max_len = int(config.get("hyper_parameters.max_len", 100))

    def __iter__(self) -> Iterator[Sample]:
        """Yield a sample a line.

        Raises:
            LineError: if one isn't a history, an item and a label.
        """
        for name in self._files:
            for number, line in read_lines(name):
                try:
                    yield self._sample(line.strip().split(";"))
                except ValueError as error:
                    raise LineError(file=name, line=number, rule=str(error)) from error

    def _sample(self, row: Sequence[str]) -> Sample:
        if len(row) != 5:
            message = f"{len(row)} parts instead of 5"
            raise ValueError(message)
        items, categories = ([int(word) for word in part.split()] for part in row[:2])
        if len(items) != len(categories):
            message = f"{len(items)} items and {len(categories)} categories"
            raise ValueError(message)
        kept = min(len(items), self._max_len)
        padded = np.zeros((3, self._max_len), np.int64)
        padded[2] = PADDED
        if kept:
            padded[:2, :kept] = items[-kept:], categories[-kept:]
            padded[2, :kept] = 0
        return padded[0], padded[1], int(row[2]), int(row[3]), float(row[4]), padded[2]
