"""Ids get a row as the table's entry says."""

import math
from typing import Any

import numpy as np
import pytest

from paramfleet_shared.tables.rows import admission
from paramfleet_shared.tables.rows.admission import Admission, SketchPages
from paramfleet_shared.tables.rowstore import initial_rows
from paramfleet_shared.tables.sparse import SparseShard
from paramfleet_shared.tables.spec import (
    EntrySpec,
    InitializerSpec,
    OptimizerSpec,
    TableMismatchError,
    TableSpec,
    TableSpecError,
)

MILLION = 1_000_000


def table(kind: Any, value: float, **more: Any) -> TableSpec:
    return TableSpec(
        name="clicks",
        kind="sparse",
        dim=2,
        initializer=InitializerSpec(kind="uniform", low=-1.0, high=1.0),
        entry=EntrySpec(kind=kind, value=value),
        **more,
    )


def push(shard: SparseShard, *ids: int, **how: Any) -> None:
    grads = np.ones((len(ids), shard.spec.dim), np.float32)
    shard.push(np.array(ids, np.int64), grads, lr=0.5, step=1, **how)


def values(shard: SparseShard, *ids: int, create: bool = False) -> Any:
    out = np.empty((len(ids), shard.spec.dim), np.float32)
    shard.pull(np.array(ids, np.int64), out, create=create)
    return out


def test_an_id_gets_a_row_at_the_nth_push_and_steps_by_it() -> None:
    spec = table("count_filter", 3)
    shard = SparseShard(spec)
    first = initial_rows(spec, np.array([7], np.int64))

    for _ in range(2):
        push(shard, 7)
        assert shard.num_rows == 0
        np.testing.assert_array_equal(values(shard, 7), first)
    push(shard, 7)

    assert shard.num_rows == 1
    np.testing.assert_array_equal(values(shard, 7), first - np.float32(0.5))


@pytest.mark.parametrize("unique", [True, False])
def test_what_is_not_admitted_takes_nothing_from_what_is(unique: bool) -> None:
    shard, plain = SparseShard(table("count_filter", 2)), SparseShard(table("count_filter", 1))
    push(shard, 1, 2)
    push(shard, 2, 3, 1, unique=unique)
    push(plain, 2, 1, unique=unique)

    assert shard.num_rows == 2
    np.testing.assert_array_equal(values(shard, 1, 2), values(plain, 1, 2))


def test_an_id_that_comes_twice_in_a_push_is_counted_once() -> None:
    shard = SparseShard(table("count_filter", 2))

    push(shard, 5, 5, 5)

    assert shard.num_rows == 0


def test_narrow_gradients_are_dropped_with_their_ids() -> None:
    shard = SparseShard(table("count_filter", 2))
    push(shard, 1)
    grads = np.full((2, 2), 0x3F80, np.uint16)  # 1.0 as bfloat16
    shard.push(np.array([2, 1], np.int64), grads, lr=0.5, step=1, unique=True)

    assert shard.live_ids(0, 9).tolist() == [1]


def test_a_pull_makes_no_row() -> None:
    shard = SparseShard(table("count_filter", 1))

    values(shard, 1, 2, create=True)

    assert shard.num_rows == 0


def test_a_row_that_was_removed_is_admitted_anew() -> None:
    shard = SparseShard(table("probability", 1 - 1e-9))
    push(shard, 1)
    shard.release(shard.remove(np.array([1], np.int64)))
    push(shard, 1)

    assert shard.num_rows == 1


def admitted(spec: TableSpec, keys: Any) -> Any:
    return Admission(spec).decide(keys.astype(np.uint64))


@pytest.mark.parametrize("shape", ["ascending", "strides", "high bits"])
@pytest.mark.parametrize("share", [0.01, 0.3, 0.9])
def test_a_share_of_a_million_ids_is_admitted_the_same_ones_each_time(
    share: float, shape: str
) -> None:
    ids = np.arange(MILLION, dtype=np.int64)
    ids = {"ascending": ids, "strides": ids << 20, "high bits": ids << 43}[shape]

    found = admitted(table("probability", share), ids)

    sigma = math.sqrt(MILLION * share * (1 - share))
    assert abs(int(found.sum()) - MILLION * share) <= 3 * sigma
    np.testing.assert_array_equal(admitted(table("probability", share), ids), found)
    for shards in (1, 64):  # whatever the shards are
        other = admitted(table("probability", share, num_shards=shards), ids)
        np.testing.assert_array_equal(other, found)


def test_of_a_million_ids_those_are_admitted_that_came_often_enough() -> None:
    rng, least = np.random.default_rng(1), 3
    times = rng.poisson(2.0, MILLION)
    deciding, again = (Admission(table("count_filter", least)) for _ in range(2))
    came = np.zeros(MILLION, np.bool_)
    for turn in range(times.max()):
        keys = np.flatnonzero((times > turn) & ~came).astype(np.uint64)
        found = deciding.decide(keys)
        np.testing.assert_array_equal(again.decide(keys), found)
        came[keys[found].astype(np.int64)] = True

    right = times >= least
    assert came[right].all(), "no id is counted too low"
    early = int(came[~right].sum())
    sigma = math.sqrt(MILLION * right.mean() * (1 - right.mean()))
    assert early <= 3 * sigma
    assert deciding.num_admitted == int(came.sum())
    assert deciding.num_bytes <= 48 << 20


def test_counts_of_ids_that_come_no_more_fade(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "SKETCH_BITS", 10)
    deciding = Admission(table("count_filter", 2, num_shards=1))
    new = np.arange(100, dtype=np.uint64)
    early = [deciding.decide(new + np.uint64(1000 * (turn + 1))).mean() for turn in range(200)]

    assert max(early) < 0.5, "each of them comes once"


def test_a_copy_decides_as_the_original_does() -> None:
    spec, rng = table("count_filter", 3, num_shards=4), np.random.default_rng(2)
    one, other = Admission(spec), Admission(spec)
    for _ in range(3):
        one.decide(np.unique(rng.integers(0, 3000, 500)).astype(np.uint64))
    for shard, pages in one.sketches().items():
        middle = len(pages.pages) // 2
        for some in (slice(middle), slice(middle, None)):
            part = SketchPages(pages.pages[some], pages.counters[some], pages.num_counted)
            other.restore(shard, part)

    for _ in range(3):
        keys = np.unique(rng.integers(0, 3000, 500)).astype(np.uint64)
        np.testing.assert_array_equal(other.decide(keys), one.decide(keys))


@pytest.mark.parametrize(
    ("shard", "pages", "size"),
    [(4, [0], 4096), (0, [-1], 4096), (0, [9999], 4096), (0, [0], 7)],
)
def test_pages_that_no_sketch_has_are_refused(shard: int, pages: Any, size: int) -> None:
    some = SketchPages(np.array(pages), np.zeros((1, size), np.uint8), 0)
    with pytest.raises(ValueError, match="sketch"):
        Admission(table("count_filter", 3, num_shards=4)).restore(shard, some)


@pytest.mark.parametrize(
    ("kind", "value"),
    [("count", 1), ("count_filter", 0), ("count_filter", 256), ("count_filter", 1.5)]
    + [("probability", value) for value in (0, 1, -0.1, math.nan)],
)
def test_a_wrong_entry_is_named(kind: Any, value: float) -> None:
    with pytest.raises(TableSpecError) as raised:
        EntrySpec(kind=kind, value=value)
    assert raised.value.field.startswith("entry.")


def test_an_entry_goes_over_the_wire_and_none_leaves_it_as_it_was() -> None:
    spec = table("count_filter", 3)
    assert TableSpec.from_wire(spec.to_wire()) == spec
    plain = TableSpec(name="clicks", kind="sparse", optimizer=OptimizerSpec())
    assert "entry" not in plain.to_wire()
    with pytest.raises(TableMismatchError) as raised:
        spec.check_same(table("probability", 0.5))
    assert raised.value.field == "entry"


def test_a_dense_table_has_no_entry() -> None:
    with pytest.raises(TableSpecError):
        TableSpec(
            name="d", kind="dense", size=3, entry=EntrySpec(kind="probability", value=0.5)
        )


def test_steps_of_several_are_counted_together_and_who_knows_decides() -> None:
    admission = Admission(table("count_filter", 4))
    keys = np.arange(4, dtype=np.uint64)

    assert admission.accept(keys, np.array([0, 1, 3, 4])).tolist() == [True, False, False, True]
    assert admission.accept(keys[1:3], np.array([2, 1])).tolist() == [False, True]
    assert admission.accept(keys[1:2], np.array([2])).tolist() == [True]
    assert (admission.num_admitted, admission.num_refused) == (4, 3)


@pytest.mark.parametrize("uses", [1, 254])
def test_as_many_steps_at_once_are_as_many_pushes(uses: int) -> None:
    spec = table("count_filter", 255)
    at_once, one_by_one = Admission(spec), Admission(spec)
    keys = np.arange(100, dtype=np.uint64)

    at_once.accept(keys, np.full(100, uses))
    for _ in range(uses):
        one_by_one.decide(keys)

    (have, want) = (each.sketches() for each in (at_once, one_by_one))
    assert have.keys() == want.keys()
    for shard, pages in want.items():
        np.testing.assert_array_equal(have[shard].counters, pages.counters)
