"""Which rows of the next pass are asked for, when, and in which order."""

from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from paramfleet.runner.online.data import coming_rows
from paramfleet.runner.online.data.coming_rows import ComingRows, IdCounts
from paramfleet.training.modes.prefetching.disk_rows import Prefetched, PrefetchedRows
from paramfleet_shared.errors.served import TablesNotDeclaredError

SAMPLES = np.array([5, 5, 5, 7, 7, 9, 5, 8, 7, 9, 5, 6])


class Pass:
    """Data of a pass: one id a sample."""

    batch_size = 2
    num_samples = len(SAMPLES)

    def __init__(self, comes_after: int = 0) -> None:
        self.looks = 0
        self.sizes: list[int] = []
        self.is_open = False
        self._comes_after = comes_after

    def has_come(self) -> bool:
        self.looks += 1
        return self.looks > self._comes_after

    def in_order(self, batch_size: int) -> Iterator[NDArray[np.int64]]:
        self.is_open = True
        self.sizes.append(batch_size)
        try:
            for start in range(0, len(SAMPLES), batch_size):
                yield SAMPLES[start : start + batch_size]
        finally:
            self.is_open = False


class Pservers:
    """What was asked for, and at which step."""

    def __init__(self, *, on_disk: bool = True, error: Exception | None = None) -> None:
        self.step = -1
        self.asked: list[tuple[int, str, list[int]]] = []
        self.said: list[str] = []
        self.futures: list[Future[Prefetched]] = []
        self._on_disk = on_disk
        self._error = error

    def prefetch(self, table: str, ids: NDArray[np.int64]) -> PrefetchedRows:
        self.asked.append((self.step, table, ids.tolist()))
        if self._error is not None:
            raise self._error
        future: Future[Prefetched] = Future()
        if len(self.asked) == 1:
            future.set_result(Prefetched(on_disk=self._on_disk))
        self.futures.append(future)
        return PrefetchedRows(future)


def train(rows: ComingRows, pservers: Pservers, steps: int = 12) -> None:
    for step in rows.beside(range(steps), steps=steps):
        pservers.step = step


def of(batch: Any) -> Any:
    return [("t", batch)]


def test_ids_are_asked_for_late_in_the_pass_the_most_frequent_first() -> None:
    pservers, data = Pservers(), Pass()
    rows = ComingRows(of, pservers.prefetch, pservers.said.append)
    rows.begin(data)

    train(rows, pservers)

    (_, _, first), (step, table, ids) = pservers.asked
    assert first == [5, 5], "by these it is seen where rows are"
    assert (table, ids) == ("t", [5, 7, 9, 6, 8])
    assert step >= 8
    assert data.sizes == [2]
    assert not data.is_open

    train(rows, pservers)
    assert len(pservers.asked) == 2
    assert pservers.futures[1].cancelled(), "its pass has begun"
    assert pservers.said == []


def test_it_says_how_many_rows_came() -> None:
    pservers = Pservers()
    rows = ComingRows(of, pservers.prefetch, pservers.said.append)
    rows.begin(Pass())
    train(rows, pservers)
    pservers.futures[1].set_result(Prefetched(brought=1200, left=5, on_disk=True))

    train(rows, pservers)

    (said,) = pservers.said
    assert said.endswith("before it: 1,200, 5 left on disk or without a row")


def test_what_is_counted_by_the_end_is_asked_for() -> None:
    pservers, data = Pservers(), Pass(comes_after=10)
    rows = ComingRows(of, pservers.prefetch, pservers.said.append)
    rows.begin(data)

    train(rows, pservers)

    assert data.sizes == [12]
    assert pservers.asked[1:] == [(10, "t", [5, 7, 9, 6, 8])]


def test_where_all_rows_are_in_memory_a_batch_is_looked_at() -> None:
    pservers, data = Pservers(on_disk=False), Pass()
    rows = ComingRows(of, pservers.prefetch, pservers.said.append)
    rows.begin(data)

    train(rows, pservers)

    assert len(pservers.asked) == 1
    assert not data.is_open
    assert data.looks < 4


@pytest.mark.parametrize("data", [None, Pass(comes_after=99)])
def test_without_data_nothing_is_asked_for(data: Pass | None) -> None:
    pservers = Pservers()
    rows = ComingRows(of, pservers.prefetch, pservers.said.append)
    rows.begin(data)

    train(rows, pservers)

    assert pservers.asked == []


def test_lookups_are_known_after_some_steps() -> None:
    pservers, data = Pservers(), Pass()

    def looked_up(batch: Any) -> Any:
        return of(batch) if pservers.step >= 1 else None

    rows = ComingRows(looked_up, pservers.prefetch, pservers.said.append)
    rows.begin(data)

    train(rows, pservers)

    assert pservers.asked[-1][2] == [5, 7, 9, 6, 8]
    assert not data.is_open


def test_without_lookups_nothing_is_asked_for() -> None:
    pservers, data = Pservers(), Pass()
    rows = ComingRows(lambda _: [], pservers.prefetch, pservers.said.append)
    rows.begin(data)

    train(rows, pservers)

    assert pservers.asked == []
    assert data.looks < 3


def test_an_error_of_a_pserver_does_not_end_the_training() -> None:
    pservers = Pservers(error=TablesNotDeclaredError(operation="prefetch"))
    rows = ComingRows(of, pservers.prefetch, pservers.said.append)
    rows.begin(Pass())

    train(rows, pservers)

    assert len(pservers.asked) == 1


def test_a_table_with_many_ids_is_asked_for_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coming_rows, "AT_ONCE", 2)
    pservers = Pservers()
    rows = ComingRows(of, pservers.prefetch, pservers.said.append)
    rows.begin(Pass())

    train(rows, pservers)

    assert [ids for _, _, ids in pservers.asked[1:]] == [[5, 7], [9, 6], [8]]


def test_those_that_come_least_often_are_forgotten() -> None:
    counts = IdCounts(most=1000)
    random = np.random.default_rng(0)
    often = np.arange(500)

    for _ in range(50):
        counts.add(often)
        counts.add(random.integers(1000, 10**9, 10_000))

    found = counts.hottest()
    assert len(found) == 1000
    np.testing.assert_array_equal(np.sort(found[:500]), often)
