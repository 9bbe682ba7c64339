"""Sorting of ids and places."""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = ["each_once"]

T = TypeVar("T", bound=np.generic)


def each_once(values: NDArray[T]) -> NDArray[T]:
    """Return the different values of an array, sorted, [n].

    As ``np.unique`` does, which takes ten times as long for millions of integers, and keeps
    other threads from running meanwhile.
    """
    found = np.sort(values, axis=None)
    is_new = np.ones(found.size, np.bool_)
    np.not_equal(found[1:], found[:-1], out=is_new[1:])
    return found[is_new]
