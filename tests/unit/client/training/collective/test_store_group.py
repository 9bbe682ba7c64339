"""Where collective workers synchronize, it is known who is missing."""

import logging
from concurrent.futures import ThreadPoolExecutor

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]  # documented, not marked

from paramfleet.training.collective.errors import PeersLostError
from paramfleet.training.collective.store_group import StoreGroup
from paramfleet_shared.discovery.errors import ConcurrentCollectiveError, OtherCallError
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.telemetry import waiting
from paramfleet_shared.testing.patience import LATE_S


def store_group(store: HashStore, size: int, *, timeout_s: float = 10.0) -> list[StoreGroup]:
    clock = SystemClock()
    return [
        StoreGroup(store, rank=rank, size=size, timeout_s=timeout_s, clock=clock)
        for rank in range(size)
    ]


def test_everybody_gets_everybodys_in_the_order_of_ranks() -> None:
    everyone = store_group(HashStore(), 3)

    def gather(rank: int) -> list[list[bytes]]:
        return [everyone[rank].gather("x", b"%d.%d" % (rank, number)) for number in range(4)]

    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(gather, range(3)))

    assert found[0] == found[1] == found[2]
    assert found[0] == [[b"%d.%d" % (rank, number) for rank in range(3)] for number in range(4)]


def test_who_does_not_come_is_named() -> None:
    first, *_ = store_group(HashStore(), 3, timeout_s=0.0)

    with pytest.raises(
        PeersLostError, match=r"meal with workers 1, 2 of 3.*not there"
    ) as caught:
        first.gather("meal", b"")

    assert caught.value.peer == "workers 1, 2 of 3"
    assert caught.value.facts["operation"] == "meal"


def test_who_has_ended_is_not_waited_for() -> None:
    first, second, _ = store_group(HashStore(), 3)
    second.end("its script ended without stop_worker")

    with pytest.raises(PeersLostError, match=r"with worker 1 of 3.*its script ended"):
        first.gather("meal", b"")


def test_who_comes_and_ends_is_not_missed() -> None:
    first, second = store_group(HashStore(), 2)
    second.leave("meal")
    second.end("done")

    assert first.gather("meal", b"") == [b"", b""]


def test_a_second_thread_in_the_same_gather_is_refused() -> None:
    store = HashStore()
    first, second = store_group(store, 2)

    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(first.gather, "meal", b"1")
        store.wait(["meal/0/0"])
        with pytest.raises(ConcurrentCollectiveError, match=r"meal.*in one thread"):
            first.gather("meal", b"2")
        second.gather("meal", b"3")

    assert waits.result() == [b"1", b"3"]


def test_workers_that_wait_for_each_other_in_different_gathers_are_told() -> None:
    store = HashStore()
    first, second = store_group(store, 2, timeout_s=LATE_S)

    with ThreadPoolExecutor(1) as pool:
        # With a limit of its own it doesn't look where others are: it may be at its end.
        rests = pool.submit(second.gather, "stop", b"", timeout_s=LATE_S)
        with pytest.raises(OtherCallError, match=r"worker 0 waits in .*, worker 1 waits in "):
            first.gather("meal", b"")
        first.gather("stop", b"")

    assert rests.result() == [b"", b""]


def test_who_waited_where_this_one_has_been_is_waited_for() -> None:
    store = HashStore()
    first, second = store_group(store, 2, timeout_s=LATE_S)

    with ThreadPoolExecutor(1) as pool:
        early = pool.submit(second.gather, "meal", b"2")
        store.wait(["at/1"])
        first.gather("meal", b"1")
        assert early.result() == [b"1", b"2"]
        rests = pool.submit(first.gather, "stop", b"")
        store.wait(["at/0"])
        second.gather("stop", b"")

    assert rests.result() == [b"", b""]


def test_who_waits_for_long_says_once_for_whom(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(waiting, "TOLD_AFTER_S", 0.05)
    first, *_ = store_group(HashStore(), 3, timeout_s=0.3)

    with caplog.at_level(logging.INFO):
        for timeout_s in (None, 0.2):  # with a limit of its own it may be long
            with pytest.raises(PeersLostError):
                first.gather("meal", b"", timeout_s=timeout_s)

    (record,) = caplog.records
    assert record.message == "worker.waits_for_others"
    assert (vars(record)["at"], vars(record)["missing"]) == ("meal", "workers 1, 2")
