"""A model answers what a dictionary of its rows does, at every version, also between them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.unit.serving.streams import UNIVERSE, Reference, Stream

from paramfleet_serving.store import merging
from paramfleet_serving.store import model as models
from paramfleet_serving.store.merging import merged_model
from paramfleet_serving.store.model import Model
from paramfleet_shared.deltas.reader import StreamReader
from paramfleet_shared.deltas.records import (
    Change,
    NumberedChange,
    StreamTable,
    TableChange,
)
from paramfleet_shared.deltas.writer import StreamWriter
from paramfleet_shared.errors.serving import (
    LookupRequestError,
    OutOfOrderError,
    ServingTableError,
)
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.tables.sparse import SparseShard
from paramfleet_shared.tables.spec import (
    EntrySpec,
    InitializerSpec,
    OptimizerSpec,
    TableSpec,
)

NOTHING = np.empty(0, np.int64)


@pytest.fixture
def model(stream: Stream) -> Model:
    return Model.of_base(StreamReader(stream.folder).base())


def agrees(model: Model, reference: Reference) -> bool:
    with model.view() as view:
        same = [
            np.array_equal(view.lookup(name, UNIVERSE), reference.lookup(name, UNIVERSE))
            for name in reference.tables
        ]
        same += [np.array_equal(view.dense[n], d) for n, d in reference.dense.items()]
    return all(same)


def apply(model: Model, change: Change) -> None:
    numbered = NumberedChange(model.number + 1, change)
    model.check_next(model.stream, numbered)
    for _ in model.applying(numbered):
        pass


def test_it_agrees_with_a_dictionary_after_and_during_each_change(
    stream: Stream, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "PART_ROWS", 7)
    reference = stream.reference

    for _ in range(40):
        change = stream.change()
        numbered = NumberedChange(model.number + 1, change)
        model.check_next(model.stream, numbered)
        for _ in model.applying(numbered):
            assert agrees(model, reference)
        reference.apply(change)
        assert agrees(model, reference)


def test_a_view_stays_at_its_version_while_changes_take_effect(
    stream: Stream, model: Model
) -> None:
    before = stream.reference.copy()
    change = stream.change()

    with model.view() as view:
        assert model.is_settled
        apply(model, change)

        assert view.number == model.number - 1
        for name in before.tables:
            found = view.lookup(name, UNIVERSE)
            assert np.array_equal(found, before.lookup(name, UNIVERSE))
        assert view.dense["bias"] is not model.dense["bias"] or not change.dense

    assert model.is_settled
    stream.reference.apply(change)
    assert agrees(model, stream.reference)


def test_a_row_that_changes_again_and_again_takes_two_places(
    stream: Stream, model: Model
) -> None:
    ids, rows = UNIVERSE[:50], np.ones((50, 4), np.float32)
    sizes = []

    for number in range(6):
        apply(model, Change(0.0, {"words": TableChange(ids, rows * number, NOTHING)}, {}))
        sizes.append(model.tables["words"].overlay.num_bytes)

    assert sizes[1:] == [sizes[1]] * 5


def test_places_of_removed_rows_serve_others(stream: Stream, model: Model) -> None:
    ids, rows = UNIVERSE[:50], np.ones((50, 4), np.float32)
    first = TableChange(ids, rows, NOTHING)
    for part in (first, first, TableChange(NOTHING, rows[:0], ids)):
        apply(model, Change(0.0, {"words": part}, {}))
    before = model.tables["words"].overlay

    apply(model, Change(0.0, {"words": TableChange(UNIVERSE[60:100], rows[:40], NOTHING)}, {}))

    places = before.find(UNIVERSE[60:100], model.number)
    assert places.max() <= 100


@pytest.mark.parametrize("kind", ["entry", "evicted", "counted", "drawn", "short"])
def test_ids_without_a_row_read_what_pservers_answer(tmp_path: Path, kind: str) -> None:
    initializer = InitializerSpec(kind="normal", std=0.1)
    plain = TableSpec(name="t", kind="sparse", dim=5, initializer=initializer)
    spec = {
        "entry": replace(plain, entry=EntrySpec(kind="probability", value=0.5)),
        "evicted": replace(plain, optimizer=OptimizerSpec(tracks="step")),
        "counted": replace(plain, optimizer=OptimizerSpec(rule="ctr")),
        "drawn": replace(plain, optimizer=OptimizerSpec(rule="ctr", zero_init=False)),
        "short": replace(plain, dim=3, optimizer=OptimizerSpec(rule="ctr")),
    }[kind]
    assert spec.creates_at_push
    rows, own = SparseShard(spec), np.ones((1, spec.dim), np.float32)
    writer = StreamWriter(tmp_path, clock=SystemClock())
    writer.begin([StreamTable.of(spec)], [("t", UNIVERSE[:1], own)], {}, moment=0.0)
    model = Model.of_base(StreamReader(tmp_path).base())
    expected = np.empty((len(UNIVERSE) - 1, spec.dim), np.float32)
    rows.pull(UNIVERSE[1:], expected, create=True)

    with model.view() as view:
        np.testing.assert_array_equal(view.lookup("t", UNIVERSE[1:]), expected)
    apply(model, Change(0.0, {"t": TableChange(NOTHING, own[:0], UNIVERSE[:1])}, {}))
    with model.view() as view:
        np.testing.assert_array_equal(view.lookup("t", UNIVERSE[1:]), expected)
        first = np.empty_like(own)
        rows.pull(UNIVERSE[:1], first, create=True)
        np.testing.assert_array_equal(view.lookup("t", UNIVERSE[:1]), first)
    assert expected.any() == (kind != "counted")


@pytest.mark.parametrize("piece", [8, 1 << 16])
def test_a_merged_base_is_the_same_version(
    stream: Stream,
    model: Model,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    piece: int,
) -> None:
    monkeypatch.setattr(merging, "PIECE_ROWS", piece)

    for _ in range(5):
        for _ in range(4):
            change = stream.change()
            apply(model, change)
            stream.reference.apply(change)
        merged = merged_model(model, tmp_path)

        assert (merged.version, merged.overlay_rows) == (model.version, 0)
        assert len(merged.tables["words"].base.ids) == len(stream.reference.rows["words"])
        assert agrees(merged, stream.reference)
        model = merged
    assert [path.name for path in tmp_path.iterdir()] == ["stream"]


def test_a_base_of_no_rows_is_merged_into_one_that_has_some(tmp_path: Path) -> None:
    stream = Stream(tmp_path / "empty")
    stream.begin(0)
    model = Model.of_base(StreamReader(stream.folder).base())
    change = stream.change()
    apply(model, change)
    stream.reference.apply(change)

    assert agrees(merged_model(model, tmp_path), stream.reference)


def test_what_does_not_fit_changes_nothing(stream: Stream, model: Model) -> None:
    rows = np.ones((2, 4), np.float32)
    good = TableChange(UNIVERSE[:2], rows, NOTHING)
    unsorted = TableChange(UNIVERSE[[1, 0]], rows, NOTHING)
    narrow = TableChange(UNIVERSE[:2], rows[:, :3], NOTHING)

    for stream_id, number, parts, rule in (
        ("0" * 32, 1, {"words": good}, "stands where change 1"),
        (model.stream, 2, {"words": good}, "stands where change 1"),
        (model.stream, 1, {"others": good}, "which the base lacks"),
        (model.stream, 1, {"words": unsorted}, "aren't sorted"),
        (model.stream, 1, {"words": narrow}, r"not \(2, 4\)"),
    ):
        with pytest.raises(OutOfOrderError, match=rule):
            model.check_next(stream_id, NumberedChange(number, Change(0.0, parts, {})))
    assert agrees(model, stream.reference)


def test_a_lookup_names_what_is_wrong(model: Model) -> None:
    with model.view() as view:
        with pytest.raises(ServingTableError, match="there are: users, words"):
            view.lookup("others", UNIVERSE)
        with pytest.raises(LookupRequestError, match="must be int64"):
            view.lookup("words", UNIVERSE.astype(np.float64))
