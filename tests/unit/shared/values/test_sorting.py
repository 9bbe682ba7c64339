"""Values that are sorted, each once."""

import numpy as np
import pytest
from numpy.typing import NDArray

from paramfleet_shared.values.sorting import each_once


@pytest.mark.parametrize(
    "values",
    [
        np.empty(0, np.int64),
        np.array([5]),
        np.array([3, -1, 3, 2**63 - 1, -(2**63), -1]),
        np.array([[2, 1], [1, 2]], np.uint32),
        np.array([2**64 - 1, 0, 2**64 - 1], np.uint64),
    ],
)
def test_it_is_what_numpy_makes_of_them(values: NDArray[np.int64]) -> None:
    before = values.copy()

    found = each_once(values)

    assert found.dtype == values.dtype
    assert np.array_equal(found, np.unique(values))
    assert np.array_equal(values, before)
