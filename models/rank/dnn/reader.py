"""Criteo's clicks: PaddleRec's slot text, or the raw table, plain or gzipped.

Slot text is ``click:0 dense_feature:0.05 ... 1:737395 2:210498 ... 26:...`` a line. The raw
table has a tab between label, I1..I13 and C1..C26, any of which may be empty. Its numbers are
scaled and its words hashed as PaddleRec's preparation of it does; then the logarithm, since
Criteo's larger set has numbers far beyond the smaller one's, to which the scales belong.
"""

import zlib
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from paramfleet.runner import NO_ID, Config, CtrParameters, LineError, read_lines

__all__ = ["RecDataset", "Sample"]

NUM_DENSE, NUM_IDS = 13, 26
LEAST = np.array([0, -3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], np.float32)
RANGE = np.array([20, 603, 100, 50, 64000, 500, 100, 50, 500, 10, 10, 10, 50], np.float32)
"""Of I1..I13, as PaddleRec scales them."""

_PLACES = {str(place + 1): place for place in range(NUM_IDS)}

Sample = tuple[int, NDArray[np.int64], NDArray[np.float32]]
"""Label; ids int64 [26], or [26, most] with ``NO_ID`` where a slot has fewer; float32 [13]."""


class RecDataset:
    """The samples of some files, in order.

    Args:
        files: Paths; gzipped if they end in .gz.
        config: Says what raw ids are hashed to.
    """

    def __init__(self, files: Sequence[str], config: Config[CtrParameters]) -> None:
        self._files = files
        self._num_ids = config.hyper_parameters.sparse_feature_number

    def __iter__(self) -> Iterator[Sample]:
        """Yield a sample a line.

        Raises:
            LineError: if one is neither slot text nor a row of the table.
        """
        for name in self._files:
            for number, line in read_lines(name):
                try:
                    yield self._row(line) if "\t" in line else _slots(line)
                except (ValueError, IndexError) as error:
                    raise LineError(file=name, line=number, rule=str(error)) from error

    def _row(self, line: str) -> Sample:
        label, *fields = line.rstrip("\n").split("\t")
        numbers, words = fields[:NUM_DENSE], fields[NUM_DENSE:]
        if len(words) != NUM_IDS:
            message = f"{len(fields) + 1} columns instead of {1 + NUM_DENSE + NUM_IDS}"
            raise ValueError(message)
        dense = (np.array([float(n or "nan") for n in numbers], np.float32) - LEAST) / RANGE
        dense = np.log1p(np.maximum(np.nan_to_num(dense), 0))
        ids = [
            zlib.crc32(f"{slot}{word}".encode()) % self._num_ids
            for slot, word in enumerate(words, start=1)
        ]
        return int(label), np.array(ids, np.int64), dense


def _slots(line: str) -> Sample:
    """Read slot text; a slot that is missing has the id 0, one may have several.

    Raises:
        ValueError: if a word isn't a slot and a value, or it has another number of labels or
            of numbers.
    """
    first: dict[str, str] = {}
    more: list[tuple[str, str]] = []
    dense: list[float] = []
    for word in line.split():
        slot, _, value = word.partition(":")
        if slot == "dense_feature":
            dense.append(float(value))
        elif slot in first:
            more.append((slot, value))
        else:
            first[slot] = value
    label = first.pop("click", None)
    if label is None or len(dense) not in {0, NUM_DENSE}:
        has = "no label" if label is None else f"{len(dense)} numbers instead of {NUM_DENSE}"
        raise ValueError(has)
    ids = [0] * NUM_IDS
    for slot, value in first.items():
        place = _PLACES.get(slot)
        if place is None:
            message = f"there is no slot {slot}: slots are click, dense_feature, 1 to {NUM_IDS}"
            raise ValueError(message)
        ids[place] = int(value)
    array = np.array(ids, np.int64)
    numbers = np.array(dense or [0.0] * NUM_DENSE, np.float32)
    return int(label), _several(array, more) if more else array, numbers


def _several(ids: NDArray[np.int64], more: Sequence[tuple[str, str]]) -> NDArray[np.int64]:
    """Return ids with further ones of some slots, int64 [26, most].

    Raises:
        ValueError: if one is a label.
    """
    found = [[each] for each in ids.tolist()]
    for slot, value in more:
        if slot == "click":
            message = "it has several labels"
            raise ValueError(message)
        found[_PLACES[slot]].append(int(value))
    most = max(map(len, found))
    return np.array([[*each, *[NO_ID] * (most - len(each))] for each in found], np.int64)
