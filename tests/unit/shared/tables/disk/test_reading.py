"""How reads are put together: runs, gaps, and what reads them."""

import resource
import threading
from pathlib import Path

import numpy as np
import pytest

from paramfleet_shared.tables.disk.access.threads import THREADS, Threads
from paramfleet_shared.tables.disk.access.transfers import Transfers
from paramfleet_shared.tables.disk.kernels.pages import make_runs
from paramfleet_shared.tables.disk.measuring import Speed
from paramfleet_shared.tables.disk.merging import with_gaps
from paramfleet_shared.tables.disk.pages.lookups import spans
from paramfleet_shared.testing.patience import LATE_S


def test_a_gap_is_as_long_as_a_request_less_one_or_two_pages() -> None:
    gaps = [Speed(50_000, rate).gap(4096) for rate in (1e8, 7e8, 1.7e9, 2e10)]

    assert gaps == [0, 2, 6, 16]


def test_runs_reach_across_gaps_and_end_at_their_limit() -> None:
    pages = np.array([3, 3, 5, 6, 9, 20, 21, 22, 23, 24])
    runs = np.empty((pages.size, 4), np.int64)

    num = make_runs(pages, 1, 4, runs)

    assert runs[:num].tolist() == [[3, 4, 0, 4], [9, 1, 4, 5], [20, 4, 5, 9], [24, 1, 9, 10]]


@pytest.mark.parametrize(
    ("gap", "wanted"), [(0, [2, 4, 7]), (1, [2, 3, 4, 7]), (2, [2, 3, 4, 5, 6, 7])]
)
def test_pages_between_two_that_change_are_written_with_them(
    gap: int, wanted: list[int]
) -> None:
    assert with_gaps(np.array([2, 2, 4, 7]), gap).tolist() == wanted


def test_spans_are_runs_one_behind_the_other() -> None:
    assert spans(np.array([5, 1]), np.array([3, 2])).tolist() == [5, 6, 7, 1, 2]
    assert spans(np.empty(0, np.int64), np.empty(0, np.int64)).size == 0


def test_without_a_ring_threads_read_and_it_is_said_why() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))  # a ring needs a descriptor
    try:
        with pytest.raises(OSError, match=r"."):
            Transfers("ring")
        transfers = Transfers("auto")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert transfers.engine == "threads"
    assert transfers.reason.startswith("io_uring: ")
    transfers.close()


def no_more_threads(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Let so many threads be started, as where a system allows no more."""
    left, start = [most], threading.Thread.start

    def started(thread: threading.Thread) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", started)


@pytest.mark.parametrize("most", [0, 3])
def test_where_no_thread_can_be_started_the_caller_transfers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    path = tmp_path / "file"
    path.write_bytes(np.arange(200 * 512, dtype=np.uint64).tobytes())
    at = np.arange(200) * 4096
    no_more_threads(monkeypatch, most)
    transfers = Transfers("threads", may_begin=True)

    with path.open("rb") as file:
        for begins in (False, True, False):
            room = np.zeros(200 * 512, np.uint64)
            where = (at, np.full(200, 4096), room.ctypes.data + at)
            if begins:
                transfers.begin(file.fileno(), *where)
                transfers.finish()
            else:
                transfers.run(file.fileno(), *where)
            assert (room == np.arange(room.size)).all()
    transfers.close()


def test_who_shares_threads_has_as_many_as_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(100 * 4096))
    at, before = np.arange(100) * 4096, set(threading.enumerate())  # others may have some
    threads = Threads()
    every = [Transfers("threads", threads=threads) for _ in range(5)]

    with path.open("rb") as file:
        room = np.zeros(100 * 512, np.uint64)
        for each in every:
            each.run(file.fileno(), at, np.full(100, 4096), room.ctypes.data + at)
    own = [each for each in threading.enumerate() if each not in before]
    assert len(own) <= THREADS

    for transfers in every:
        transfers.close()
    for thread in own:
        thread.join(LATE_S)
    assert not any(thread.is_alive() for thread in own)
