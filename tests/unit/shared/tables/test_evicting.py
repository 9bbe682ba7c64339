"""Rows keep when they were pushed, a table has no more rows than it may, and some go first."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from paramfleet_shared.tables.rows.evicting import (
    KEY_BITS,
    NUM_BINS,
    AsOf,
    count_by_key,
    latest_of,
    seen_after,
)
from paramfleet_shared.tables.rows.routing import route
from paramfleet_shared.tables.rows.states import states_for
from paramfleet_shared.tables.sparse import SparseShard
from paramfleet_shared.tables.spec import (
    EntrySpec,
    OptimizerSpec,
    TableSpec,
    TableSpecError,
)

SHARDS = 8
STAYS = 1 << (KEY_BITS - 1)
"""Keys of rows that haven't expired are from this on."""


def table(rule: str = "sgd", tracks: Any = "step", **more: Any) -> TableSpec:
    optimizer = OptimizerSpec(rule=rule, tracks=tracks)
    return TableSpec(
        name="t", kind="sparse", dim=2, num_shards=SHARDS, optimizer=optimizer, **more
    )


def push(shard: SparseShard, ids: Any, *, now: int, **how: Any) -> None:
    keys = np.array(ids, np.int64)
    rows = np.ones((len(keys), shard.spec.dim), np.float32)
    shard.push(keys, rows, lr=0.5, step=1, now=now, **how)


def order(shard: SparseShard, **as_of: int) -> list[int]:
    """Return the ids of all rows, the first to go first."""
    ids, keys = shard.valued(0, shard.num_slots, AsOf(**as_of))
    found: list[int] = ids[np.argsort(keys)].tolist()
    return found


def counted(pushes: list[int], half_life: float) -> float:
    """Return what a row keeps of pushes."""
    seen = np.zeros(1, np.float32)
    for now in pushes:
        seen = seen_after(seen, now, half_life)
    return float(seen[0])


@pytest.mark.parametrize("half_life", [1.0, 70.0, 1e6])
def test_rows_are_in_the_order_of_pushes_that_fade(half_life: float) -> None:
    draw = np.random.default_rng(4)
    rows = [draw.integers(1, 300, draw.integers(1, 9)).tolist() for _ in range(40)]

    kept = [counted(row, half_life) for row in rows]

    for today in (300, 900):
        faded = [sum(2.0 ** ((now - today) / half_life) for now in row) for row in rows]
        wanted = [today + half_life * np.log2(max(each, 1e-300)) for each in faded]
        is_known = np.array(faded) > 0
        np.testing.assert_allclose(
            np.array(kept)[is_known], np.array(wanted)[is_known], rtol=1e-5, atol=0.5
        )
    again = [counted(row[::-1], half_life) for row in rows]
    np.testing.assert_allclose(again, kept, rtol=1e-5)


def test_without_a_half_life_the_last_push_alone_is_kept() -> None:
    assert counted([7, 3, 5], 0.0) == 7
    assert counted([9], 50.0) == 9
    assert counted([9, 9], 50.0) == 9 + 50
    assert counted([1, 500], 50.0) == pytest.approx(500, abs=0.1), "of long ago little is left"


def test_the_rows_that_were_pushed_least_often_go_first() -> None:
    spec = table()
    spec = replace(spec, optimizer=OptimizerSpec(rule="sgd", tracks="step", half_life=100))
    shard = SparseShard(spec)
    for now, pushed in ((1, [1, 2, 3]), (2, [1, 2]), (3, [1]), (40, [4])):
        push(shard, pushed, now=now)

    assert order(shard) == [3, 4, 2, 1], "40 steps are less than a doubling"
    assert shard.sample(9).ages.min() == 0
    assert TableSpec.from_wire(spec.to_wire()) == spec
    assert "half_life=100.0" in repr(spec.optimizer)


@pytest.mark.parametrize(
    ("tracks", "half_life"), [("none", 5.0), ("hour", 5.0), ("step", -1.0), ("step", "x")]
)
def test_a_half_life_that_means_nothing_is_refused(tracks: Any, half_life: Any) -> None:
    with pytest.raises(TableSpecError, match="half_life"):
        OptimizerSpec(rule="sgd", tracks=tracks, half_life=half_life)


@pytest.mark.parametrize("rule", ["sgd", "adagrad", "adam", "rowwise_adagrad", "ftrl"])
@pytest.mark.parametrize("storage", ["float32", "bfloat16"])
@pytest.mark.parametrize("unique", [True, False])
def test_a_row_keeps_when_it_was_pushed_last(rule: str, storage: Any, unique: bool) -> None:
    plain = SparseShard(table(rule, "none", storage=storage, rounding="nearest"))
    shard = SparseShard(table(rule, storage=storage, rounding="nearest"))
    for now, pushed in ((3, [1, 2]), (9, [2, 5]), (7, [2, 1])):
        push(plain, pushed, now=now, unique=unique)
        push(shard, pushed, now=now, unique=unique)

    ids, values, states = shard.export(0, 9)
    assert dict(zip(ids.tolist(), states[:, -1].tolist(), strict=True)) == {1: 7, 2: 9, 5: 9}
    np.testing.assert_array_equal(values, plain.export(0, 9)[1])
    np.testing.assert_array_equal(states[:, :-1], plain.export(0, 9)[2])


def test_a_pull_makes_no_row_where_rows_keep_when_they_were_pushed() -> None:
    shard = SparseShard(table())
    shard.pull(np.array([4], np.int64), np.empty((1, 2), np.float32), create=True)
    assert shard.num_rows == 0


def test_what_expired_goes_before_what_was_pushed_the_longest_time_ago() -> None:
    shard = SparseShard(table())
    for now, each in enumerate((30, 10, 20, 40), start=1):
        push(shard, [each], now=now)

    assert order(shard) == [30, 10, 20, 40]
    ids, keys = shard.valued(0, 9, AsOf(before=3))
    assert ids[keys < STAYS].tolist() == [30, 10]
    assert shard.valued(1, 2, AsOf())[0].tolist() == [10, 20]


def test_what_is_equal_goes_in_an_order_that_ids_alone_decide() -> None:
    ids = np.arange(1000)
    together, apart = SparseShard(table()), SparseShard(table())
    push(together, ids, now=5)
    for some in (ids[500:], ids[:500][::-1]):
        push(apart, some, now=5)

    assert order(together) == order(apart) != sorted(order(apart))


def test_a_row_of_which_it_is_not_known_has_not_expired_but_goes_first() -> None:
    shard = SparseShard(table())
    push(shard, [1], now=1)
    shard.assign(
        np.array([2], np.int64), np.ones((1, 2), np.float32), np.zeros((1, 1), np.float32)
    )

    assert order(shard) == [2, 1]
    ids, keys = shard.valued(0, 9, AsOf(before=9))
    assert ids[keys < STAYS].tolist() == [1]


@pytest.mark.parametrize("shift", [0, 12, 24, 36, 48])
def test_keys_are_counted_in_bins(shift: int) -> None:
    random = np.random.default_rng(shift)
    keys = random.integers(0, 1 << KEY_BITS, 5000)
    low = int(keys[7]) >> shift << shift
    keys[:100] = low + random.integers(0, NUM_BINS << shift, 100) % ((1 << KEY_BITS) - low)

    counts = count_by_key(keys, low=low, shift=shift)

    assert counts.shape == (NUM_BINS,)
    where = (keys - low) // (1 << shift)
    expected = [int((where == each).sum()) for each in range(NUM_BINS)]
    assert counts.tolist() == expected


def by_shard(ids: NDArray[np.int64]) -> list[int]:
    counts: list[int] = np.diff(route(ids, SHARDS).offsets).tolist()
    return counts


@pytest.mark.parametrize("tracks", ["none", "step"])
def test_a_full_table_takes_no_id_that_it_does_not_know(tracks: Any) -> None:
    shard = SparseShard(table(tracks=tracks, entry=EntrySpec(max_rows=80)))
    push(shard, np.arange(1000), now=1)
    assert shard.num_rows == 80
    first = shard.live_ids(0, 999).copy()
    assert by_shard(first) == [10] * SHARDS

    push(shard, np.arange(2000), now=2)
    np.testing.assert_array_equal(shard.live_ids(0, 999), first)
    assert shard.admission is not None
    assert (shard.admission.num_admitted, shard.admission.num_refused) == (80, 920 + 1920)

    shard.release(shard.remove(first[:30]))
    push(shard, np.arange(2000, 4000), now=3)
    assert shard.num_rows == 80
    assert by_shard(shard.live_ids(0, 999).copy()) == [10] * SHARDS


def test_who_gets_the_last_places_has_nothing_to_do_with_the_order() -> None:
    found = []
    for ids in (np.arange(500), np.arange(500)[::-1]):
        shard = SparseShard(table(entry=EntrySpec(max_rows=80)))
        push(shard, ids, now=1, unique=True)
        found.append(sorted(shard.live_ids(0, 99).tolist()))
    assert found[0] == found[1]


def test_rows_that_are_loaded_or_restored_count() -> None:
    loaded = SparseShard(table(entry=EntrySpec(max_rows=80)))
    ids = np.arange(200)
    loaded.assign(ids, np.ones((200, 2), np.float32), np.ones((200, 1), np.float32))
    restored = SparseShard(table(entry=EntrySpec(max_rows=80)))
    restored.restore(loaded.places())

    for shard in (loaded, restored):
        push(shard, np.arange(1000, 1200), now=2)
        assert shard.num_rows == 200, "what is loaded stays until it is evicted"
        shard.release(shard.remove(ids[:180]))
        push(shard, np.arange(1000, 1200), now=3)
        assert 20 < shard.num_rows <= 80


def test_an_entry_decides_before_the_room_does() -> None:
    entry = EntrySpec(kind="count_filter", value=2, max_rows=80)
    shard = SparseShard(table(entry=entry))
    push(shard, np.arange(1000), now=1)
    assert shard.num_rows == 0
    push(shard, np.arange(1000), now=2)
    assert shard.num_rows == 80


@pytest.mark.parametrize(
    ("field", "how"),
    [
        ("entry.max_rows", {"entry": {"max_rows": 7}}),
        ("entry.max_rows", {"entry": {"max_rows": -1}}),
        ("entry.max_rows", {"entry": {"max_rows": 1.5}}),
        ("entry.max_rows", {"entry": {"max_rows": True}}),
        ("optimizer.tracks", {"optimizer": {"rule": "sgd", "tracks": "day"}}),
        ("optimizer.tracks", {"optimizer": {"rule": "ctr", "tracks": "step"}, "dim": 5}),
        ("optimizer.tracks", {"optimizer": {"tracks": "step"}, "kind": "dense", "dim": 1}),
        ("entry", {"entry": {"max_rows": 80}, "kind": "dense", "dim": 1}),
    ],
)
def test_what_no_table_can_have_is_named(field: str, how: dict[str, Any]) -> None:
    wire = table("sgd", "none").to_wire() | how
    with pytest.raises(TableSpecError) as raised:
        TableSpec.from_wire(wire)
    assert raised.value.field == field


def test_a_table_is_read_as_it_is_written_and_older_ones_too() -> None:
    spec = table(entry=EntrySpec(max_rows=80))
    assert TableSpec.from_wire(spec.to_wire()) == spec
    plain = table(tracks="none")
    wire = plain.to_wire()
    assert "entry" not in wire
    assert "tracks" not in wire["optimizer"]
    assert TableSpec.from_wire(wire) == plain
    assert "tracks='step'" in repr(spec.optimizer)


def test_states_that_were_saved_without_a_column_get_it_anew() -> None:
    plain, tracked = (OptimizerSpec(rule="adagrad", tracks=each) for each in ("none", "step"))
    values = np.ones((2, 2), np.float32)
    saved = np.array([[1, 2], [3, 4]], np.float32)

    assert states_for(tracked, plain, values, saved).tolist() == [[1, 2, 0], [3, 4, 0]]
    assert states_for(plain, tracked, values, np.hstack([saved, saved[:, :1]])).tolist() == [
        [1, 2],
        [3, 4],
    ]
    assert states_for(plain, plain, values, saved) is saved


def test_when_a_row_was_pushed_stays_under_another_rule() -> None:
    had, rule = (OptimizerSpec(rule=each, tracks="step") for each in ("adagrad", "sum"))
    values = np.ones((2, 2), np.float32)
    saved = np.array([[1, 2, 7], [3, 4, 8]], np.float32)

    assert states_for(rule, had, values, saved).tolist() == [[7], [8]]
    anew = OptimizerSpec(rule="adagrad", tracks="step", initial_accumulator_value=0.5)
    assert states_for(anew, rule, values, saved[:, 2:]).tolist() == [
        [0.5, 0.5, 7],
        [0.5, 0.5, 8],
    ]


def test_an_accessor_whose_rule_is_another_one_begins_with_new_states_of_it() -> None:
    had, rule = (
        OptimizerSpec(rule="ctr", embed_rule=name, embedx_rule=name)
        for name in ("SparseAdaGradSGDRule", "SparseAdamSGDRule")
    )
    values = np.ones((1, 5), np.float32)
    width = sum(column.width(5) for column in had.columns)
    found = states_for(rule, had, values, np.full((1, width), 2.0, np.float32))
    assert found.shape == (1, sum(column.width(5) for column in rule.columns))


@pytest.mark.parametrize(("tracks", "latest"), [("step", 1 << 53), ("hour", 4_800_000)])
def test_a_push_may_not_be_later_than_anything_is(tracks: Any, latest: int) -> None:
    assert latest_of(table(tracks=tracks)) == latest


def test_some_rows_tell_how_old_they_are() -> None:
    shard = SparseShard(table())
    for now in range(1, 101):
        push(shard, [now], now=now)
    shard.release(shard.remove(np.arange(1, 51)))
    shard.assign(np.array([999]), np.ones((1, 2), np.float32), np.zeros((1, 1), np.float32))

    ages, scores = shard.sample(1000)
    assert sorted(ages.tolist()) == list(range(50)), "of one it isn't known"
    assert scores.size == 0
    assert 0 < len(shard.sample(10).ages) <= 10
    assert SparseShard(table()).sample(10).ages.size == 0
    plain = SparseShard(table(tracks="none"))
    push(plain, [1], now=0)
    assert plain.sample(10).ages.size == 0


def test_rows_with_an_accessor_tell_their_scores() -> None:
    optimizer = OptimizerSpec(rule="ctr", show_click_decay_rate=0.5)
    shard = SparseShard(TableSpec(name="t", kind="sparse", dim=3, optimizer=optimizer))
    for day, row in ((100, [4.0, 4.0, 0.0]), (101, [10.0, 0.0, 0.0])):
        shard.push(np.array([day]), np.array([row], np.float32), lr=0.1, step=1, now=day)

    ages, scores = shard.sample(9)
    assert ages.tolist() == [1, 0]
    assert scores.tolist() == [2, 1]
