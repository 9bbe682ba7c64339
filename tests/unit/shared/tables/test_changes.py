"""What changed since a save, together with that save, is what there is now."""

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from tests.unit.shared.tables.test_image import DEEDS, Rows, act, by_id, shard

from paramfleet_shared.tables.memory import changes
from paramfleet_shared.tables.sparse import SparseShard


def saved(rows: SparseShard, base: Rows, *, save: str, since: str, meanwhile: Any = ()) -> Rows:
    """Return what a save holds, with what an earlier one held; deeds come while it is read."""
    image, found, start = rows.image(save=save, since=since), Rows(), 0
    assert image.changed is not None
    for deed in meanwhile:
        act(rows, deed)
        found |= by_id(rows.read_image(image, start, 5, changed=True))
        start = min(start + 5, image.num_places)
    found |= by_id(rows.read_image(image, start, image.num_places - start, changed=True))
    rows.end_image(image)
    removed = set(image.changed.removed.tolist())
    return {id_: row for id_, row in base.items() if id_ not in removed} | found


def whole(rows: SparseShard, save: str) -> Rows:
    image = rows.image(save=save)
    assert image.changed is None
    rows.end_image(image)
    return by_id(rows.export(0, rows.num_slots))


@given(
    storage=st.sampled_from(["float32", "bfloat16"]),
    before=DEEDS,
    between=st.lists(st.tuples(DEEDS, DEEDS), min_size=1, max_size=5),
)
@settings(max_examples=300)
def test_a_save_and_what_changed_since_is_what_there_is(
    storage: str, before: list[Any], between: list[tuple[list[Any], list[Any]]]
) -> None:
    rows = shard(storage)
    for deed in before:
        act(rows, deed)
    held = whole(rows, "0")
    for number, (deeds, meanwhile) in enumerate(between):
        for deed in deeds:
            act(rows, deed)
        expected = by_id(rows.export(0, rows.num_slots))
        held = saved(rows, held, save=str(number + 1), since=str(number), meanwhile=meanwhile)
        assert held == expected


def test_after_a_save_that_failed_the_next_one_is_since_the_last_whole_one() -> None:
    rows = shard()
    act(rows, ("create", [*range(50)], 1))
    held = whole(rows, "a")
    act(rows, ("push", [1, 2], 1))
    act(rows, ("remove", [9], 1))
    rows.end_image(rows.image(save="lost", since="a"))
    act(rows, ("push", [3], 1))

    assert saved(rows, held, save="b", since="a") == by_id(rows.export(0, rows.num_slots))
    assert rows.image(save="c", since="lost").changed is None


def test_only_rows_that_changed_are_in_it() -> None:
    rows = shard()
    act(rows, ("create", [*range(1000)], 1))
    whole(rows, "a")
    for kind, ids in (
        ("push", [5, 7]),
        ("push_unique", [6]),
        ("assign", [9]),
        ("create", [2000]),
    ):
        act(rows, (kind, ids, 1))
    act(rows, ("pull", [*range(100)], 1))

    image = rows.image(save="b", since="a")
    found, _, _ = rows.read_image(image, 0, 2000, changed=True)

    assert sorted(found.tolist()) == [5, 6, 7, 9, 2000]


def test_generations_are_numbered_anew_and_marking_goes_on() -> None:
    rows = shard()
    act(rows, ("create", [*range(10)], 1))
    held = whole(rows, "0")
    seen = by_id(rows.export(0, rows.num_slots))
    rows.end_image(rows.image(save="seldom", chain="exports"))
    for number in range(1, 2 * changes.LAST_GENERATION):
        act(rows, ("push", [number % 9], number))
        if number == changes.LAST_GENERATION:
            act(rows, ("remove", [8], 1))
        held = saved(rows, held, save=str(number), since=str(number - 1))
        assert held == by_id(rows.export(0, rows.num_slots))

    image = rows.image(save="next", since="seldom", chain="exports")
    found = by_id(rows.read_image(image, 0, 99, changed=True))
    assert image.changed is not None
    assert image.changed.removed.tolist() == [8]
    assert {**seen, **found} == held
    assert 9 not in found, "only what changed"


def test_chains_of_saves_do_not_end_each_other() -> None:
    rows = shard()
    act(rows, ("create", [*range(10)], 1))
    rows.end_image(rows.image(save="a"))
    act(rows, ("push", [1], 1))
    rows.end_image(rows.image(save="b", chain="exports"))
    act(rows, ("push", [2], 1))
    act(rows, ("remove", [3], 1))
    rows.end_image(rows.image(save="c", since="a"))
    act(rows, ("push", [4], 1))

    image = rows.image(save="d", since="b", chain="exports")
    found, _, _ = rows.read_image(image, 0, 99, changed=True)

    assert image.changed is not None
    assert sorted(found.tolist()) == [2, 4]
    assert image.changed.removed.tolist() == [3]
    assert rows.image(save="e", since="c", chain="exports").changed is None, "of another chain"


def test_marking_begins_anew_where_room_for_removed_ids_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = shard()
    act(rows, ("create", [*range(10)], 1))
    whole(rows, "x")
    monkeypatch.setattr(changes, "MOST_REMOVED", 3)
    act(rows, ("remove", [0, 1, 2], 1))
    act(rows, ("create", [0, 1, 2], 1))
    act(rows, ("remove", [0, 1, 2], 1))  # the same ids: they are kept once
    assert rows.image(save="y", since="x").changed is not None
    act(rows, ("remove", [*range(3, 10)], 1))
    assert rows.image(save="z", since="y").changed is None
