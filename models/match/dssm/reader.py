"""Queries with a document and others, as PaddleRec prepares them.

A row is a query, a document and other documents, divided by tabs; each is a count for each
letter trigram, divided by commas.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from paramfleet.runner import Config, HyperParameters, LineError, read_lines

__all__ = ["RecDataset"]

Sample = tuple[NDArray[np.float32], ...]
"""Of the query, the document, and each other document, float32 [trigrams]."""


class RecDataset:
    """The samples of some files, in order.

    Args:
        files: Paths; gzipped if they end in .gz.
        config: Says how many trigrams there are.
    """

    def __init__(self, files: Sequence[str], config: Config[HyperParameters]) -> None:
        self._files = files
        self._trigrams = int(config.get("hyper_parameters.trigram_d", 2900))

    def __iter__(self) -> Iterator[Sample]:
        """Yield a sample a line.

        Raises:
            LineError: if one isn't a query and two documents or more, or has other trigrams.
        """
        for name in self._files:
            for number, line in read_lines(name):
                try:
                    yield self._sample(line.rstrip("\n").split("\t"))
                except ValueError as error:
                    raise LineError(file=name, line=number, rule=str(error)) from error

    def _sample(self, row: Sequence[str]) -> Sample:
        if len(row) < 3:
            message = f"{len(row)} texts instead of 3 or more"
            raise ValueError(message)
        texts = tuple(np.array(text.split(","), np.float32) for text in row)
        for text in texts:
            if len(text) != self._trigrams:
                message = f"{len(text)} trigrams instead of {self._trigrams}"
                raise ValueError(message)
        return texts
