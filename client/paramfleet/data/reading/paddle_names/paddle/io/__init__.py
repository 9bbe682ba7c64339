"""The bases of PaddleRec's readers: what a sample is, they say themselves."""

from collections.abc import Iterator
from typing import Any

__all__ = ["Dataset", "IterableDataset"]


class Dataset:
    """Samples by index; iterated in order."""

    def __getitem__(self, index: int) -> Any:
        """Return a sample."""
        raise NotImplementedError

    def __len__(self) -> int:
        """Return how many there are."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Any]:
        """Yield every sample once."""
        for index in range(len(self)):
            yield self[index]


class IterableDataset:
    """Samples in the order of the reader's own ``__iter__``."""
