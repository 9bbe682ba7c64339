"""The ids of the latest pulls are kept, and no more."""

import numpy as np
import pytest

from paramfleet_pserver.core.pulled import PulledIds
from paramfleet_shared.served_errors import PulledIdsGoneError

BOUNDS = np.array([0, 3], np.int64)


def test_the_ids_of_a_pull_are_found_by_whose_it_is() -> None:
    pulled = PulledIds("t")
    pulled.keep(0, 7, np.array([1, 2, 3]), BOUNDS)
    pulled.keep(1, 7, np.array([4, 5, 6]), BOUNDS)

    for rank, ids in ((0, [1, 2, 3]), (1, [4, 5, 6]), (0, [1, 2, 3])):
        found, offsets = pulled.find(rank, 7)
        assert (found.tolist(), offsets.tolist()) == (ids, [0, 3])


def test_the_oldest_make_room() -> None:
    pulled = PulledIds("t", max_pulls=2, max_ids=5)
    for pull in (1, 2, 3):
        pulled.keep(0, pull, np.arange(2), BOUNDS)

    with pytest.raises(PulledIdsGoneError) as caught:
        pulled.find(0, 1)
    assert caught.value.facts == {"table": "t", "rank": 0, "pull": 1}
    pulled.keep(0, 4, np.arange(4), BOUNDS)
    with pytest.raises(PulledIdsGoneError):
        pulled.find(0, 3)
    assert len(pulled.find(0, 4)[0]) == 4


def test_a_pull_that_is_asked_for_again_counts_once() -> None:
    pulled = PulledIds("t", max_pulls=2, max_ids=5)
    for _ in range(9):
        pulled.keep(0, 1, np.arange(2), BOUNDS)
    pulled.keep(0, 2, np.arange(3), BOUNDS)

    assert len(pulled.find(0, 1)[0]) == 2
