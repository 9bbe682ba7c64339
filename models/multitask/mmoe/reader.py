"""The census of 1994 and 1995 (census-income KDD): two questions, 39 answers.

A row has commas between a person's number, 41 columns and the income, as
``census-income.data`` of UCI with a number in front, or without one.
"""

import zlib
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from paramfleet.runner import Config, HyperParameters, LineError, read_lines

__all__ = ["NUM_FIELDS", "RecDataset"]

NUM_COLUMNS = 42
"""Of a row without a person's number."""
MARITAL, WEIGHT, INCOME = 7, 24, 41
NUM_FIELDS = NUM_COLUMNS - 3
"""Columns that the network sees; the weight of a person in the sample says nothing."""
NUMERIC = frozenset({0, 5, 16, 17, 18, 39})
"""Age, wage, gains, losses, dividends, weeks: close numbers share an id."""

Sample = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Labels int64 [2] (more than 50,000; never married) and ids int64 [39]."""


class RecDataset:
    """The samples of some files, in order.

    Args:
        files: Paths.
        config: Not read: nothing in it concerns the rows.
    """

    def __init__(self, files: Sequence[str], config: Config[HyperParameters]) -> None:
        self._files = files
        self.config = config

    def __iter__(self) -> Iterator[Sample]:
        """Yield a sample a line.

        Raises:
            LineError: if one isn't a person's row.
        """
        for name in self._files:
            for number, line in read_lines(name):
                try:
                    yield _sample([part.strip() for part in line.split(",")])
                except ValueError as error:
                    raise LineError(file=name, line=number, rule=str(error)) from error


def _sample(row: list[str]) -> Sample:
    columns = row[-NUM_COLUMNS:]
    if len(row) not in {NUM_COLUMNS, NUM_COLUMNS + 1}:
        message = f"{len(row)} columns instead of {NUM_COLUMNS + 1}"
        raise ValueError(message)
    labels = "50000+" in columns[INCOME], columns[MARITAL] == "Never married"
    ids = [
        zlib.crc32(f"{place}={_rounded(value) if place in NUMERIC else value}".encode())
        for place, value in enumerate(columns)
        if place not in {MARITAL, WEIGHT, INCOME}
    ]
    return np.array(labels, np.int64), np.array(ids, np.int64)


def _rounded(value: str) -> int:
    """Return a number on a scale of roots: steps grow with it."""
    return int(max(0.0, float(value)) ** 0.5)
