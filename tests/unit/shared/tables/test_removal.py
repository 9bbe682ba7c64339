"""Removing rows: the index against a dict, places that serve new rows, and their memory."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from paramfleet_shared.tables.memory.reservation import CapacityError
from paramfleet_shared.tables.rowstore import SlotIndex, initial_rows
from paramfleet_shared.tables.sparse import SparseShard
from paramfleet_shared.tables.spec import InitializerSpec, OptimizerSpec, TableSpec


def table(dim: int = 3, rule: Any = "sum", **optimizer: Any) -> TableSpec:
    return TableSpec(
        name="clicks",
        kind="sparse",
        dim=dim,
        seed=7,
        initializer=InitializerSpec(kind="uniform", low=-1.0, high=1.0),
        optimizer=OptimizerSpec(rule=rule, **optimizer),
    )


def unmixed(bits: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The ids whose hashes are ``bits``: murmur3's finaliser, backwards."""
    for constant in (pow(0xC4CEB9FE1A85EC53, -1, 2**64), pow(0xFF51AFD7ED558CCD, -1, 2**64)):
        bits = bits ^ (bits >> np.uint64(33))
        bits = bits * np.uint64(constant)
    return (bits ^ (bits >> np.uint64(33))).view(np.int64)


def random_ids(rng: np.random.Generator) -> NDArray[np.int64]:
    return rng.integers(0, 2**63, 60_000)


def crowded_ids(rng: np.random.Generator) -> NDArray[np.int64]:
    """Ids whose homes are ten lines around the end of each page: runs of 100 full lines."""
    bits = rng.integers(0, 2**56, 60_000, np.uint64)
    homes = rng.choice(np.r_[251:256, 0:5].astype(np.uint64), bits.size)
    return unmixed(bits | (homes << np.uint64(56)))


@pytest.mark.parametrize("draw", [random_ids, crowded_ids])
def test_an_index_that_ids_leave_is_a_dict(draw: Any) -> None:
    rng = np.random.default_rng(3)
    pool = np.unique(draw(rng))
    pool[:2] = 0, 2**63 - 1
    index = SlotIndex(max_rows=100_000)
    model: dict[int, int] = {}
    for wanted in (50_000, 2_000, 55_000, 0, 30_000, 10_000, 55_000):
        for _ in range(30):
            ids = rng.choice(pool, 3000)
            if len(model) < wanted:
                held = set(model.values())
                slots = index.find(ids, create=True)
                for key, slot in zip(ids.tolist(), slots.tolist(), strict=True):
                    assert key in model or slot not in held
                    assert model.setdefault(key, slot) == slot
                    held.add(slot)
            else:
                slots = index.remove(ids)
                want = [model.pop(key, -1) for key in ids.tolist()]
                assert slots.tolist() == want
                index.release(slots[slots >= 0])
        assert index.find(pool, create=False).tolist() == [
            model.get(key, -1) for key in pool.tolist()
        ]
        assert index.num_rows == index.num_taken == len(model)
    assert index.num_slots <= 60_000


IDS = st.one_of(st.integers(0, 40), st.integers(0, 2**63 - 1))
ACTIONS = st.sampled_from(["pull", "peek", "push", "push unique", "assign", "write", "remove"])
CALLS = st.lists(st.tuples(ACTIONS, st.lists(IDS, max_size=60)), max_size=20)


@given(calls=CALLS, dim=st.sampled_from([1, 3, 8, 16]))
@settings(max_examples=80)
def test_a_shard_that_rows_leave_is_a_dict_of_rows(
    calls: list[tuple[str, list[int]]], dim: int
) -> None:
    shard = SparseShard(table(dim), max_rows=1000)
    model: dict[int, NDArray[np.float32]] = {}
    for call, plain in calls:
        _call(shard, model, call, np.array(plain, np.int64))
    ids, values, _ = shard.export(0, 1000)
    assert sorted(ids.tolist()) == sorted(model)
    assert shard.num_rows == len(model)
    for key, row in zip(ids.tolist(), values, strict=True):
        np.testing.assert_array_equal(row, model[key])


def _call(
    shard: SparseShard, model: dict[int, NDArray[np.float32]], call: str, ids: NDArray[np.int64]
) -> None:
    """Do the same to a shard and to a dict; gradients are 1, so that sums are exact."""
    if call == "remove":
        shard.release(shard.remove(ids))
        for key in ids.tolist():
            model.pop(key, None)
        return
    if call != "push":
        ids = np.unique(ids)
    first = initial_rows(shard.spec, ids)
    ones = np.ones_like(first)
    rows = {**dict(zip(ids.tolist(), first, strict=True)), **model}
    if call in {"peek", "pull"}:
        got = np.empty_like(first)
        shard.pull(ids, got, create=call == "pull")
        np.testing.assert_array_equal(
            got, np.array([rows[key] for key in ids.tolist()], np.float32).reshape(first.shape)
        )
    elif call == "assign":
        shard.assign(ids, ones, np.empty((ids.size, 0), np.float32))
        rows.update(zip(ids.tolist(), ones, strict=True))
    elif call == "write":
        shard.write(ids, ones)
        rows.update(zip(ids.tolist(), ones, strict=True))
    else:
        shard.push(ids, ones, lr=1.0, step=1, unique=call == "push unique")
        for key in set(ids.tolist()):
            rows[key] = rows[key] + np.float32(ids.tolist().count(key))
    if call != "peek":
        model.update(rows)


@pytest.mark.parametrize("unique", [True, False])
def test_an_id_that_comes_again_is_as_new(unique: bool) -> None:
    spec = table(4, "adagrad", initial_accumulator_value=0.25)
    shard, fresh = SparseShard(spec), SparseShard(spec)
    ids, grads = np.arange(10), np.ones((10, 4), np.float32)
    shard.push(ids, 5 * grads, lr=1.0, step=1)

    shard.release(shard.remove(ids))
    shard.push(ids, grads, lr=0.5, step=2, unique=unique)
    fresh.push(ids, grads, lr=0.5, step=2, unique=unique)

    order = np.argsort(shard.ids())
    for mine, theirs in zip(shard.export(0, 20), fresh.export(0, 20), strict=True):
        np.testing.assert_array_equal(np.asarray(mine)[order], theirs)
    assert shard.num_slots == 10


def test_what_is_removed_is_left_out_of_an_export() -> None:
    shard, rest = SparseShard(table()), SparseShard(table())
    shard.create(np.arange(100))
    shard.push(np.arange(100), np.ones((100, 3), np.float32), lr=1.0, step=1)

    removed = shard.remove(np.r_[90:110, 90, 0:50])

    assert removed.tolist() == [*range(90, 100), *range(50)]
    pieces = [shard.export(start, 30) for start in range(0, shard.num_slots, 30)]
    rest.assign(*(np.concatenate(column) for column in zip(*pieces, strict=True)))
    assert rest.num_rows == shard.num_rows == 40
    assert rest.ids().tolist() == shard.live_ids(0, 1000).tolist() == list(range(50, 90))
    out = np.empty((2, 100, 3), np.float32)
    for one, values in zip((shard, rest), out, strict=True):
        one.pull(np.arange(100), values, create=False)
    np.testing.assert_array_equal(*out)


def test_a_place_is_given_to_a_new_row_only_once_it_is_released() -> None:
    shard = SparseShard(table(), max_rows=3)
    shard.create(np.array([1, 2, 3]))

    removed = shard.remove(np.array([2]))

    assert (shard.num_rows, shard.num_taken) == (2, 3)
    with pytest.raises(CapacityError):
        shard.create(np.array([4]))
    shard.check_capacity(3)
    shard.release(removed)
    shard.create(np.array([4]))
    assert shard.find(np.array([1, 2, 3, 4])).tolist() == [0, -1, 2, 1]
    assert shard.ids().tolist() == [1, 4, 3]


def test_new_rows_in_former_places_are_asked_no_memory_for() -> None:
    asked: list[int] = []
    shard = SparseShard(
        table(16),
        max_rows=1_000_000,
        check_memory=lambda _, num_bytes: asked.append(num_bytes),
    )
    shard.create(np.arange(1_000_000))
    shard.release(shard.remove(np.arange(900_000)))
    asked.clear()

    assert shard.grant(shard.num_taken + 800_000)
    shard.create(np.arange(2_000_000, 2_800_000))

    assert not asked


def test_as_many_new_rows_take_no_more_memory() -> None:
    shard = SparseShard(table(16, "adagrad"))
    rng = np.random.default_rng(5)
    ids = rng.permutation(2_000_000)
    shard.create(ids[:1_000_000])
    before, held = shard.num_bytes, ids[:900_000]

    for start in range(0, held.size, 100_000):
        shard.release(shard.remove(held[start : start + 100_000]))
    assert shard.num_rows == 100_000
    most = shard.num_bytes
    shard.create(ids[1_000_000:1_900_000])

    assert shard.num_rows == shard.num_slots == 1_000_000
    assert max(most, shard.num_bytes) <= 1.1 * before
