"""What is published is read, by the library of the format, too; on a disk and at an address."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from tests.unit.shared.deltas.streams import (
    TABLES,
    Model,
    begin,
    model_of,
    random_change,
    read_from,
    writer_at,
)

from paramfleet_shared.deltas.errors import StreamChangeError, StreamError
from paramfleet_shared.deltas.reader import StreamReader
from paramfleet_shared.deltas.records import Change, StreamTable, TableChange
from paramfleet_shared.files.addresses import place_of
from paramfleet_shared.tables.spec import EntrySpec, OptimizerSpec, TableSpec


@pytest.fixture(params=["disk", "address"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == "disk":
        return tmp_path / "new" / "stream"
    return place_of(f"memory://streams{tmp_path}")


def some_model() -> Model:
    numbers = np.random.default_rng(1)
    model = Model()
    model.apply(random_change(numbers, 0.0))
    return model


def test_a_base_is_what_was_begun_with(folder: Path) -> None:
    model = some_model()

    begin(writer_at(folder), model, moment=12.5)

    reader = StreamReader(folder)
    base, head = reader.base(), reader.look()
    assert model_of(base) == model
    assert [base.tables[table.name].table for table in TABLES] == list(TABLES)
    assert (base.number, base.moment, base.stream) == (0, 12.5, head.stream)
    assert (head.last, head.base, head.moment) == (0, 0, 12.5)
    assert base.dense["w"].shape == (2, 3)
    for _, ids, rows in base.tables.values():
        assert (np.diff(ids) > 0).all()
        assert not ids.flags.writeable
        assert not rows.flags.writeable


def test_changes_come_as_they_were_published_with_sorted_ids(folder: Path) -> None:
    writer, model, numbers = writer_at(folder), some_model(), np.random.default_rng(2)
    begin(writer, model)
    published = [random_change(numbers, float(at)) for at in range(1, 8)]

    assert [writer.publish(change) for change in published] == list(range(1, 8))

    reader = StreamReader(folder)
    found = list(reader.changes(0, 7))
    assert [(each.number, each.change.moment) for each in found] == [
        (n, n) for n in range(1, 8)
    ]
    for each, change in zip(found, published, strict=True):
        model.apply(change)
        assert each.change.dense.keys() == change.dense.keys()
        for ids, _, removed in each.change.tables.values():
            assert (np.diff(ids) > 0).all()
            assert (np.diff(removed) > 0).all()
    assert read_from(folder) == model
    assert [each.number for each in StreamReader(folder).changes(4, 6)] == [5, 6]
    assert not list(reader.changes(7, 7))


def test_a_reader_goes_on_where_it_was(folder: Path) -> None:
    writer, numbers = writer_at(folder), np.random.default_rng(3)
    begin(writer, Model())
    reader = StreamReader(folder)
    reader.base()

    for at in range(1, 5):
        writer.publish(random_change(numbers, float(at)))
        assert [each.number for each in reader.changes(at - 1, at)] == [at]

    assert [each.number for each in reader.changes(1, 3)] == [2, 3]  # once more


def test_a_moment_without_changes_is_told_and_none_is_taken_back(folder: Path) -> None:
    writer, reader = writer_at(folder), StreamReader(folder)
    begin(writer, Model(), moment=10.0)

    for moment, told in ((11.0, 11.0), (9.0, 11.0)):
        writer.touch(moment)
        assert reader.look().moment == told
    writer.publish(Change(moment=10.5, tables={}, dense={}))

    assert (reader.look().moment, reader.look().last) == (11.0, 1)


def test_a_clock_that_was_put_back_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer = writer_at(tmp_path)
    begin(writer, Model(), moment=10.0)

    for moment in (9.0, 9.5, 11.0, 12.0, 3.0):
        writer.touch(moment)

    said = [each for each in caplog.records if "moment_before" in each.message]
    assert [(each.moment, each.published) for each in said] == [(9.0, 10.0), (3.0, 12.0)]  # type: ignore[attr-defined]


def test_of_an_id_that_comes_twice_the_last_row_counts(folder: Path) -> None:
    writer = writer_at(folder)
    ids, rows = np.array([7, 3, 7]), np.array([[1], [2], [3]], np.float32)
    table = StreamTable(name="t", dim=1)

    writer.begin([table], [("t", ids, rows), ("t", ids[1:2], rows[:1])], {}, moment=0)
    found = StreamReader(folder).base().tables["t"]
    twice = TableChange(ids, rows, np.array([9, 8, 9]))
    writer.publish(Change(moment=1, tables={"t": twice}, dense={}))
    (each,) = StreamReader(folder).changes(0, 1)

    assert (found.ids.tolist(), found.rows.tolist()) == ([3, 7], [[1], [3]])
    change = each.change.tables["t"]
    assert (change.ids.tolist(), change.rows.tolist()) == ([3, 7], [[2], [3]])
    assert change.removed.tolist() == [8, 9]


def test_other_programs_read_it_with_safetensors(tmp_path: Path) -> None:
    writer = writer_at(tmp_path)
    begin(writer, some_model())
    ids, rows = np.array([4]), np.ones((1, 3), np.float32)
    table = TableChange(ids, rows, np.array([5, 6]))
    writer.publish(Change(moment=2.5, tables={"words": table}, dense={}))
    head = StreamReader(tmp_path).look()
    own = tmp_path / head.stream

    with safe_open(own / f"delta-{1:012d}.safetensors", "numpy") as file:
        metadata = file.metadata()
        assert metadata["format"] == "paramfleet-delta"
        assert (metadata["stream"], metadata["number"]) == (head.stream, "1")
        assert (metadata["previous"], metadata["moment"]) == (head.bases[0], "2.5")
        assert sorted(file.keys()) == ["ids/words", "removed/words", "rows/words"]
        assert file.get_tensor("removed/words").tolist() == [5, 6]
    with safe_open(own / f"base-{0:012d}" / "rows.words.safetensors", "numpy") as file:
        assert file.get_tensor("rows").shape[1] == 3


def test_a_table_is_described_from_the_one_of_a_job() -> None:
    spec = TableSpec(name="t", kind="sparse", dim=4, seed=9, storage="bfloat16")
    rule = OptimizerSpec(rule="ctr")
    counted = TableSpec(name="t", kind="sparse", dim=4, optimizer=rule)
    short = TableSpec(name="t", kind="sparse", dim=3, optimizer=rule)
    entry = EntrySpec(kind="count_filter", value=3.0)

    described = StreamTable.of(spec)

    assert (described.dim, described.seed, described.storage) == (4, 9, "bfloat16")
    assert (described.zero_unknown, StreamTable.of(counted).zero_unknown) == (False, True)
    assert StreamTable.of(short).drawn == (2, 3)
    assert StreamTable.of(replace(spec, entry=entry)) == described, "it reads its first value"
    for each in (described, StreamTable.of(counted), StreamTable.of(short)):
        assert StreamTable.from_wire(json.loads(json.dumps(each.to_wire()))) == each
        assert ("drawn" in each.to_wire()) == (each.drawn is not None)
    assert described.digest != StreamTable.of(counted).digest


def wrong_changes() -> dict[str, tuple[dict[str, TableChange], dict[str, Any]]]:
    ids, rows = np.array([1, 2]), np.zeros((2, 3), np.float32)
    none, nan = ids[:0], np.full((2, 3), np.nan, np.float32)
    return {
        "no such table": ({"other": TableChange(ids, rows, none)}, {}),
        "one length": ({"words": TableChange(ids[:1], rows, none)}, {}),
        r"must be \[n\]": ({"words": TableChange(ids, rows[:, :2], none)}, {}),
        "must be int64": ({"words": TableChange(ids.astype(np.int32), rows, none)}, {}),
        "float32": ({"words": TableChange(ids, rows.astype(np.float64), none)}, {}),
        "is removed, too": ({"words": TableChange(ids, rows, ids[1:])}, {}),
        "rows must be finite": ({"words": TableChange(ids, nan, none)}, {}),
        "no parameter of the stream": ({}, {"v": rows}),
        r"must be float32 \[2, 3\]": ({}, {"w": rows[0]}),
        "'w' must be finite": ({}, {"w": nan}),
    }


@pytest.mark.parametrize("said", wrong_changes())
def test_a_change_that_is_none_of_the_stream_is_refused(said: str, tmp_path: Path) -> None:
    writer = writer_at(tmp_path)
    begin(writer, Model())
    tables, dense = wrong_changes()[said]

    with pytest.raises(StreamChangeError, match=said):
        writer.publish(Change(moment=1, tables=tables, dense=dense))

    assert StreamReader(tmp_path).look().last == 0
    assert writer.publish(Change(moment=1, tables={}, dense={})) == 1


@pytest.mark.parametrize("moment", [float("nan"), float("inf"), -1.0, 1e300])
def test_a_moment_must_be_one(moment: float, tmp_path: Path) -> None:
    writer = writer_at(tmp_path)
    with pytest.raises(StreamChangeError, match="seconds since 1970"):
        begin(writer, Model(), moment=moment)
    begin(writer, Model())

    with pytest.raises(StreamChangeError, match="seconds since 1970"):
        writer.touch(moment)


def test_a_begin_with_wrong_rows_leaves_what_was_there(tmp_path: Path) -> None:
    writer, model = writer_at(tmp_path), some_model()
    begin(writer, model)
    ids, rows = np.array([1, 2]), np.zeros((2, 3), np.float32)
    table = TABLES[0]

    cases: list[tuple[Any, Any, Any, str]] = [
        ((table, table), [], {}, "comes twice"),
        ((table,), [("other", ids, rows)], {}, "isn't among the tables"),
        ((table,), [("words", ids[:1], rows)], {}, "must be"),
        ((table,), [("words", ids.astype(np.int32), rows)], {}, "int64"),
        ((table,), [("words", ids, np.full_like(rows, np.inf))], {}, "finite"),
        ((table,), [], {"": rows}, "names must have"),
        ((table,), [], {"w": rows.astype(np.float64)}, "float32"),
    ]
    for tables, pieces, dense, said in cases:
        with pytest.raises(StreamChangeError, match=said):
            writer.begin(tables, pieces, dense, moment=2.0)

    assert read_from(tmp_path) == model
    assert len([each for each in tmp_path.iterdir() if each.is_dir()]) == 1
    assert writer.publish(Change(moment=3.0, tables={}, dense={})) == 1


def test_nothing_is_published_before_a_begin(tmp_path: Path) -> None:
    writer = writer_at(tmp_path)
    empty = Change(moment=1, tables={}, dense={})
    for act in (lambda: writer.publish(empty), lambda: writer.touch(1.0), writer.compact):
        with pytest.raises(StreamError, match="no stream is begun"):
            act()

    with pytest.raises(StreamError, match=r"there is no stream\.json"):
        StreamReader(tmp_path).look()
