"""The ids of each worker's latest pulls are kept, and no more."""

import numpy as np
import pytest

from paramfleet_pserver.core.pulled import MAX_PULLS, PulledIds
from paramfleet_shared.errors.served import PulledIdsGoneError

BOUNDS = np.array([0, 3], np.int64)


def test_the_ids_of_a_pull_are_found_by_whose_it_is() -> None:
    pulled = PulledIds("t")
    pulled.keep(0, 7, np.array([1, 2, 3]), BOUNDS)
    pulled.keep(1, 7, np.array([4, 5, 6]), BOUNDS)

    for rank, ids in ((0, [1, 2, 3]), (1, [4, 5, 6]), (0, [1, 2, 3])):
        found, offsets = pulled.find(rank, 7)
        assert (found.tolist(), offsets.tolist()) == (ids, [0, 3])


def test_the_oldest_make_room() -> None:
    pulled = PulledIds("t", max_pulls=2, max_bytes=5 * 8 + 2 * BOUNDS.nbytes)
    for pull in (1, 2, 3):
        pulled.keep(0, pull, np.arange(2), BOUNDS)

    with pytest.raises(PulledIdsGoneError) as caught:
        pulled.find(0, 1)
    assert caught.value.facts == {"table": "t", "rank": 0, "pull": 1}
    pulled.find(0, 2)
    pulled.keep(0, 4, np.arange(4), BOUNDS)
    with pytest.raises(PulledIdsGoneError):
        pulled.find(0, 3)
    assert len(pulled.find(0, 4)[0]) == 4


def test_no_worker_loses_its_ids_to_others() -> None:
    pulled = PulledIds("t")
    for pull in range(MAX_PULLS):
        for rank in range(50):
            pulled.keep(rank, pull, np.arange(3), BOUNDS)

    for pull in range(MAX_PULLS):
        for rank in range(50):
            pulled.find(rank, pull)


def test_more_than_there_is_room_for_is_not_kept() -> None:
    pulled = PulledIds("t", max_bytes=5 * 8 + BOUNDS.nbytes)
    pulled.keep(0, 1, np.arange(3), BOUNDS)
    pulled.keep(0, 2, np.arange(6), BOUNDS)
    never = PulledIds("t", max_pulls=0)
    never.keep(0, 1, np.arange(3), BOUNDS)

    for where, pull in ((pulled, 2), (never, 1)):
        with pytest.raises(PulledIdsGoneError):
            where.find(0, pull)
    assert len(pulled.find(0, 1)[0]) == 3


def test_a_pull_that_is_asked_for_again_counts_once() -> None:
    pulled = PulledIds("t", max_pulls=2, max_bytes=5 * 8 + 2 * BOUNDS.nbytes)
    for _ in range(9):
        pulled.keep(0, 1, np.arange(2), BOUNDS)
    pulled.keep(0, 2, np.arange(3), BOUNDS)

    assert len(pulled.find(0, 1)[0]) == 2


def test_a_request_is_not_kept_alive_by_its_ids() -> None:
    pulled = PulledIds("t")
    request = np.arange(1000)
    pulled.keep(0, 1, request[:3], request[3:5])

    request[:] = 0

    found, offsets = pulled.find(0, 1)
    assert (found.tolist(), offsets.tolist()) == ([0, 1, 2], [3, 4])
    assert found.base is None
    assert offsets.base is None


def test_ids_of_their_own_are_not_copied() -> None:
    pulled, ids = PulledIds("t"), np.arange(3)
    pulled.keep(0, 1, ids, BOUNDS)

    assert pulled.find(0, 1)[0] is ids


def test_a_worker_that_left_leaves_nothing() -> None:
    pulled = PulledIds("t")
    for rank in (0, 1):
        pulled.keep(rank, 1, np.arange(3), BOUNDS)
    pulled.forget(0)
    pulled.forget(2)

    with pytest.raises(PulledIdsGoneError):
        pulled.find(0, 1)
    pulled.find(1, 1)
