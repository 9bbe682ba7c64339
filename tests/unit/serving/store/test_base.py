"""Places of ids in a base are those that a search finds."""

import numpy as np
import pytest

from paramfleet_serving.store.base import BaseRows

LEAST, MOST = -(1 << 63), (1 << 63) - 1
NUMBERS = np.random.default_rng(1)
ONE = np.array([7])
SPREAD = np.unique(NUMBERS.integers(LEAST, MOST, 5000))
CROWDED = np.unique(np.concatenate([np.arange(3000), [LEAST, MOST, MOST - 1]]))
CASES = {
    "none": np.empty(0, np.int64),
    "one": ONE,
    "the first ones": np.arange(1000),
    "negative ones": np.arange(-1000, -10, 3),
    "spread over all": SPREAD,
    "crowded in a corner": CROWDED,
    "the ends": np.array([LEAST, MOST]),
}


@pytest.mark.parametrize("case", CASES)
def test_ids_are_found_where_they_are(case: str) -> None:
    ids = CASES[case]
    base = BaseRows(ids, np.empty((len(ids), 1), np.float32))
    asked = [ids, NUMBERS.integers(LEAST, MOST, 500), np.array([LEAST, -1, 0, 1, 7, 8, MOST])]
    asked += [ids[ids < MOST] + 1, ids[ids > LEAST] - 1]

    for some in asked:
        places, is_there = base.find(some)
        assert np.array_equal(is_there, np.isin(some, ids))
        assert np.array_equal(ids[places[is_there]], some[is_there])
