"""Impressions of Ali-CCP as PaddleRec prepares them: a click, a purchase, and ids by field.

A row is ``number,click,purchase,number,301:5,205:6,...``: behind four columns, pairs of a
field's name and an id. A field may have several ids, or none.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from paramfleet.runner import Config, HyperParameters, LineError, read_lines

__all__ = ["FIELDS", "RecDataset"]

FIELDS = (
    "101", "109_14", "110_14", "127_14", "150_14", "121", "122", "124", "125", "126", "127",
    "128", "129", "205", "206", "207", "210", "216", "508", "509", "702", "853", "301",
)  # fmt: skip
"""Of user, item and context, in the order of a sample."""
PADDING = 0

_PLACES = {field: place for place, field in enumerate(FIELDS)}

Sample = tuple[NDArray[np.int64], int, int]
"""Ids int64 [fields, max_len], whether it was clicked, whether the item was bought."""


class RecDataset:
    """The samples of some files, in order.

    Args:
        files: Paths; gzipped if they end in .gz.
        config: Says how many ids of a field are read.
    """

    def __init__(self, files: Sequence[str], config: Config[HyperParameters]) -> None:
        self._files = files
        self._max_len = int(config.get("hyper_parameters.max_len", 3))

    def __iter__(self) -> Iterator[Sample]:
        """Yield a sample a line.

        Raises:
            LineError: if one isn't an impression.
        """
        for name in self._files:
            for number, line in read_lines(name):
                try:
                    yield self._sample(line.strip().split(","))
                except ValueError as error:
                    raise LineError(file=name, line=number, rule=str(error)) from error

    def _sample(self, row: Sequence[str]) -> Sample:
        if len(row) < 4:
            message = f"{len(row)} columns instead of 4 and the ids"
            raise ValueError(message)
        ids = np.full((len(FIELDS), self._max_len), PADDING, np.int64)
        counts = [0] * len(FIELDS)
        for pair in row[4:]:
            field, colon, value = pair.strip().partition(":")
            if not colon:
                message = f"{pair!r} isn't field:id"
                raise ValueError(message)
            place = _PLACES.get(field)
            if place is not None and counts[place] < self._max_len:
                ids[place, counts[place]] = int(value)
                counts[place] += 1
        return ids, int(row[1]), int(row[2])
