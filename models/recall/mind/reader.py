"""What users took, in order: samples of the training, and rows that are judged.

A row of the training is ``user,item,time``. A row that is judged has ``hist_item:id`` for each
item that a user took, and ``eval_item:id`` for those that he took then.
"""

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

import paramfleet as fleet
from paramfleet.runner import Config, HyperParameters, LineError, read_lines

__all__ = ["LEAST", "RecDataset", "judged_rows", "padded"]

LEAST = 4
"""Items before the one that is to be found, at least."""

Sample = tuple[NDArray[np.int64], int, int]
"""Items before int64 [maxlen], the item to be found, and how many were before."""


class RecDataset:
    """Samples of the users of some files, drawn by chance and in another order each time.

    Args:
        files: Paths; gzipped if they end in .gz.
        config: Says how many items are read, and how many samples are drawn.

    Raises:
        LineError: if a line isn't three whole numbers, or no user has items enough.
    """

    def __init__(self, files: Sequence[str], config: Config[HyperParameters]) -> None:
        self._maxlen = int(config.get("hyper_parameters.maxlen", 30))
        batches = int(config.get("runner.batches_per_epoch", 1000))
        self._num_samples = batches * config.runner.train_batch_size
        alike = config.runner.split_batches  # then all workers draw the same
        own = 0 if alike else fleet.worker_index()
        self._random = random.Random(config.runner.seed * 1000 + own)  # noqa: S311 - samples
        taken: dict[int, list[tuple[int, int]]] = defaultdict(list)
        name, number = "", 0
        for name in files:
            for number, line in read_lines(name):
                try:
                    user, item, time = map(int, line.split(","))
                except ValueError as error:
                    raise LineError(file=name, line=number, rule=str(error)) from error
                taken[user].append((time, item))
        self._users = [
            [item for _, item in sorted(items, key=lambda each: each[0])]
            for items in taken.values()
            if len(items) > LEAST
        ]
        if not self._users:
            rule = f"the files end, and no user has more than {LEAST} items"
            raise LineError(file=name, line=number, rule=rule)

    def __iter__(self) -> Iterator[Sample]:
        """Yield samples, each of a user and a place of his items drawn by chance."""
        for _ in range(self._num_samples):
            items = self._random.choice(self._users)
            place = self._random.randrange(LEAST, len(items))
            before = items[max(0, place - self._maxlen) : place]
            yield padded(before, self._maxlen), items[place], len(before)


def padded(items: Sequence[int], length: int) -> NDArray[np.int64]:
    """Return items and zeros, int64 [length]."""
    found = np.zeros(length, np.int64)
    found[: len(items)] = items
    return found


def judged_rows(file: str) -> Iterator[tuple[list[int], list[int]]]:
    """Yield what a user took, and what he took then; rows that lack one are left out.

    Raises:
        LineError: if a word isn't a name and a whole number.
    """
    for number, line in read_lines(file):
        found: dict[str, list[int]] = {"hist_item": [], "eval_item": []}
        for word in line.split():
            name, colon, value = word.partition(":")
            if not colon:
                raise LineError(file=file, line=number, rule=f"{word!r} isn't name:id")
            if name in found:
                try:
                    found[name].append(int(value))
                except ValueError as error:
                    raise LineError(file=file, line=number, rule=str(error)) from error
        if all(found.values()):
            yield found["hist_item"], found["eval_item"]
