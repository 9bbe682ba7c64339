"""Runs are merged in pieces: a dict, filled in their order, has the same rows."""

import tempfile
import tracemalloc
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from paramfleet_shared.deltas.base_writing import temporary_near
from paramfleet_shared.deltas.merging.folding import fold, put_rows
from paramfleet_shared.deltas.merging.row_spool import RowSpool
from paramfleet_shared.deltas.merging.runs import (
    NO_IDS,
    MergedRows,
    Run,
    merged,
    merged_ids,
)
from paramfleet_shared.deltas.records import (
    BaseTable,
    Change,
    OpenedBase,
    StreamTable,
    TableChange,
)
from paramfleet_shared.files.tensorfile import map_proven

DIM = 2


def random_run(numbers: np.random.Generator, most: int, span: int = 50) -> Run:
    ids = numbers.permutation(np.arange(-span, span, dtype=np.int64))
    many, few = numbers.integers(0, most + 1, 2)
    rows = numbers.standard_normal((many, DIM)).astype(np.float32)
    return Run(np.sort(ids[:many]), rows, np.sort(ids[many : many + few]))


def expected(runs: list[Run]) -> dict[int, list[float]]:
    found: dict[int, list[float]] = {}
    for ids, rows, removed in runs:
        found |= dict(zip(ids[:].tolist(), rows[:].tolist(), strict=True))
        for each in removed[:].tolist():
            found.pop(each, None)
    return dict(sorted(found.items()))


def rows_of(pieces: Iterable[MergedRows]) -> dict[int, list[float]]:
    found: dict[int, list[float]] = {}
    for ids, rows in pieces:
        assert len(ids) == len(rows)
        assert not found or (ids > max(found)).all()
        found |= dict(zip(ids.tolist(), rows.tolist(), strict=True))
    return found


@pytest.mark.parametrize("seed", range(30))
def test_the_last_statement_of_each_id_counts(seed: int) -> None:
    numbers = np.random.default_rng(seed)
    runs = [random_run(numbers, int(numbers.integers(0, 50))) for _ in range(seed % 7)]

    for piece_bytes in (1, 200, 1 << 20):
        pieces = merged(runs, DIM, piece_bytes=piece_bytes)
        assert list(rows_of(pieces).items()) == list(expected(runs).items())
        ids = np.concatenate([NO_IDS, *merged_ids(runs, piece_bytes=piece_bytes)])
        assert ids.tolist() == list(expected(runs))


def test_the_ends_of_the_range_of_ids_are_ids() -> None:
    least, most = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    first = Run(np.array([least, 0, most]), np.ones((3, DIM), np.float32))
    second = Run(np.array([most]), np.zeros((1, DIM), np.float32), np.array([least]))

    found = rows_of(merged([first, second], DIM, piece_bytes=1))

    assert found == {0: [1, 1], most: [0, 0]}


@pytest.mark.parametrize("seed", range(5))
def test_a_file_of_merged_rows_is_proven(seed: int, tmp_path: Path) -> None:
    numbers = np.random.default_rng(seed)
    runs = [random_run(numbers, 30) for _ in range(4)]
    path = tmp_path / "rows"

    with path.open("wb") as file:
        put = put_rows(file, runs, ("t", DIM), tempfile.TemporaryFile, piece_bytes=100)

    tensors = map_proven(path, num_bytes=put.written.num_bytes, sha256=put.written.sha256)
    found = dict(
        zip(tensors.tensors["ids"].tolist(), tensors.tensors["rows"].tolist(), strict=True)
    )
    assert list(found.items()) == list(expected(runs).items())
    assert put.rows == len(found)


@pytest.mark.parametrize("most_bytes", [1, 100, 1 << 20])
def test_rows_in_any_order_become_runs(most_bytes: int) -> None:
    numbers = np.random.default_rng(9)
    spool = RowSpool(DIM, tempfile.TemporaryFile, most_bytes=most_bytes)
    reference: dict[int, list[float]] = {}

    for _ in range(10):
        ids = numbers.integers(-20, 20, 13)
        rows = numbers.standard_normal((13, DIM)).astype(np.float32)
        spool.add(ids, rows)
        ids += 1000  # what was taken is the spool's own
        reference |= dict(zip((ids - 1000).tolist(), rows.tolist(), strict=True))

    runs = spool.runs()
    assert (len(runs) > 1) == (most_bytes < 1 << 20)
    assert expected(runs) == dict(sorted(reference.items()))
    assert rows_of(merged(runs, DIM)) == expected(runs)


def test_a_spool_without_rows_has_no_runs() -> None:
    spool = RowSpool(DIM, tempfile.TemporaryFile)
    spool.add(NO_IDS, np.empty((0, DIM), np.float32))

    assert list(merged(spool.runs(), DIM)) == []


@pytest.mark.parametrize("most_runs", [1, 2, 3, 100])
def test_many_changes_are_folded_with_few_of_them_open(most_runs: int) -> None:
    numbers = np.random.default_rng(4)
    runs = [random_run(numbers, 30)._replace(removed=NO_IDS)]
    runs += [random_run(numbers, 30) for _ in range(7)]
    table = StreamTable(name="t", dim=DIM)
    base = OpenedBase(
        stream="",
        number=0,
        moment=0.0,
        digest="",
        tables={"t": BaseTable(table, runs[0].ids[:], runs[0].rows[:])},
        dense={"w": np.zeros(2, np.float32), "v": np.zeros(1, np.float32)},
    )
    changes = [
        Change(
            moment=0.0,
            tables={"t": TableChange(run.ids[:], run.rows[:], run.removed[:])},
            dense={"w": np.full(2, number, np.float32)},
        )
        for number, run in enumerate(runs[1:], 1)
    ]

    folded = fold(base, changes, tempfile.TemporaryFile, most_runs=most_runs)

    assert len(folded.tables["t"]) <= max(most_runs, 1) or most_runs == 100
    assert rows_of(merged(folded.tables["t"], DIM)) == expected(runs)
    assert {name: v.tolist() for name, v in folded.dense.items()} == {"w": [7, 7], "v": [0]}


@pytest.mark.slow
def test_memory_is_bounded_by_the_piece_and_not_by_the_rows(tmp_path: Path) -> None:
    count, dim = 400_000, 16  # 28 MB
    path = tmp_path / "base"
    content: np.memmap[tuple[int], np.dtype[np.float32]] = np.memmap(
        path, np.float32, mode="w+", shape=(count, dim)
    )
    ids = np.memmap(tmp_path / "ids", np.int64, mode="w+", shape=(count,))
    ids[:] = np.arange(count) * 2
    some = np.arange(0, count, 50, dtype=np.int64)
    runs = [Run(ids, content)]
    runs += [Run(some + at, np.ones((len(some), dim), np.float32)) for at in range(5)]

    with (tmp_path / "out").open("wb") as file:
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        put = put_rows(
            file,
            runs,
            ("t", dim),
            temporary_near(tmp_path),
            piece_bytes=1 << 20,
        )
        most = tracemalloc.get_traced_memory()[1] - before
        tracemalloc.stop()

    assert put.rows > count
    assert put.written.num_bytes > 28e6
    assert most < 6e6
