"""A shard of rows, by examples and against a dict of rows."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from paramfleet_shared.tables.kernels.index import GROUP, SALT
from paramfleet_shared.tables.memory.reservation import CapacityError
from paramfleet_shared.tables.rowstore import RowShapeError, initial_rows
from paramfleet_shared.tables.sparse import SparseShard
from paramfleet_shared.tables.spec import InitializerSpec, OptimizerSpec, TableSpec

MAX_ID = 2**63 - 1


def table(dim: int = 3, rule: Any = "sgd", **optimizer: Any) -> TableSpec:
    return TableSpec(
        name="clicks",
        kind="sparse",
        dim=dim,
        seed=7,
        initializer=InitializerSpec(kind="uniform", low=-1.0, high=1.0),
        optimizer=OptimizerSpec(rule=rule, **optimizer),
    )


def ids_of(*ids: int) -> NDArray[np.int64]:
    return np.array(ids, np.int64)


def pulled(
    shard: SparseShard, ids: NDArray[np.int64], *, create: bool = True
) -> NDArray[np.float32]:
    out = np.full((ids.size, shard.spec.dim), np.nan, np.float32)
    shard.pull(ids, out, create=create)
    return out


SHAPES = {
    "ascending": lambda i: i,
    "strides of a page": lambda i: i << 20,
    "a feature number in the high bits": lambda i: ((i % 26) << 54) | (i // 26),
    "multiples of the shard count": lambda i: i * 8,
    "the top of the range": lambda i: MAX_ID - i,
}


@pytest.mark.parametrize("dim", [3, 16])
@pytest.mark.parametrize("num", [1, 63, 65, 95, 96, 97, 255, 256, 257, 351, 353, 1000, 4000])
def test_a_batch_of_any_length_is_as_its_keys_one_by_one(num: int, dim: int) -> None:
    rng = np.random.default_rng(num)
    batch, single = (SparseShard(table(dim, rule="adagrad")) for _ in range(2))
    ids = rng.integers(0, 2 * num, num) << 20
    for _ in range(2):
        grads = rng.standard_normal((num, dim), np.float32)

        batch.push(ids, grads, lr=0.1, step=1, unique=True)
        for i in range(num):
            single.push(ids[i : i + 1], grads[i : i + 1], lr=0.1, step=1, unique=True)

        for whole, parts in zip(
            batch.export(0, 2 * num), single.export(0, 2 * num), strict=True
        ):
            np.testing.assert_array_equal(whole, parts)
        asked = rng.integers(0, 4 * num, num) << 20
        one_by_one = [pulled(single, asked[i : i + 1], create=False) for i in range(num)]
        np.testing.assert_array_equal(
            pulled(batch, asked, create=False), np.concatenate(one_by_one)
        )

    pulled(batch, ids << 1)
    for i in range(num):
        pulled(single, ids[i : i + 1] << 1)
    np.testing.assert_array_equal(batch.export(0, 4 * num)[0], single.export(0, 4 * num)[0])


@pytest.mark.parametrize("dim", [3, 16])
def test_a_batch_of_several_groups_is_as_its_parts_one_by_one(dim: int) -> None:
    rng = np.random.default_rng(dim)
    whole, parts = (SparseShard(table(dim, rule="adam")) for _ in range(2))
    ids = rng.integers(0, 30_000, 2 * GROUP + 1) << 20  # some stay unknown, and some come twice
    grads = rng.standard_normal((ids.size, dim), np.float32)
    half = GROUP // 2

    whole.push(ids, grads, lr=0.1, step=1, unique=True)
    for start in range(0, ids.size, half):
        some = slice(start, start + half)
        parts.push(ids[some], grads[some], lr=0.1, step=1, unique=True)

    for mine, others in zip(whole.export(0, 30_000), parts.export(0, 30_000), strict=True):
        np.testing.assert_array_equal(mine, others)
    asked = np.arange(30_000) << 20
    for create in (False, True):
        rows = [pulled(parts, some, create=create) for some in np.array_split(asked, 8)]
        np.testing.assert_array_equal(pulled(whole, asked, create=create), np.concatenate(rows))


@pytest.mark.parametrize("shape", SHAPES)
def test_many_rows_keep_their_values_through_growth_whatever_shape_ids_have(
    shape: str,
) -> None:
    ids = np.array([SHAPES[shape](i) for i in range(30_000)], np.int64)
    shard = SparseShard(table(dim=2), max_rows=ids.size)
    values = np.arange(2 * ids.size, dtype=np.float32).reshape(-1, 2)

    for part in np.array_split(np.arange(ids.size), 7):
        shard.assign(ids[part], values[part], np.empty((part.size, 0), np.float32))

    assert shard.num_rows == ids.size
    np.testing.assert_array_equal(pulled(shard, ids, create=False), values)
    exported, exported_values, _ = shard.export(0, ids.size)
    np.testing.assert_array_equal(exported, ids)
    np.testing.assert_array_equal(exported_values, values)


def test_id_zero_and_the_greatest_id_are_ids_like_others() -> None:
    shard = SparseShard(table(), max_rows=10)
    ids = ids_of(0, MAX_ID)

    rows = pulled(shard, ids)

    assert shard.num_rows == 2
    np.testing.assert_array_equal(rows, initial_rows(shard.spec, ids))


def test_an_unknown_id_reads_as_its_first_value_without_being_created() -> None:
    shard = SparseShard(table(), max_rows=10)
    shard.push(ids_of(5), np.ones((1, 3), np.float32), lr=1.0, step=1)

    rows = pulled(shard, ids_of(9, 5, 9), create=False)

    first = initial_rows(shard.spec, ids_of(5, 9))
    np.testing.assert_array_equal(rows, [first[1], first[0] - 1, first[1]])
    assert shard.num_rows == 1


def test_first_values_depend_on_no_order_of_arrival_and_on_no_batch() -> None:
    ids = np.random.default_rng(3).integers(0, MAX_ID, 2000)
    one, other = (SparseShard(table(), max_rows=2000) for _ in range(2))

    forward = pulled(one, ids)
    for part in np.array_split(ids[::-1].copy(), 9):
        pulled(other, part)

    np.testing.assert_array_equal(forward, pulled(other, ids))
    np.testing.assert_array_equal(forward, initial_rows(one.spec, ids))


def test_gradients_of_one_id_are_summed_in_order_of_arrival() -> None:
    big = np.float32(2.0**24)
    shard = SparseShard(table(dim=1, rule="sum"), max_rows=4)
    shard.assign(ids_of(4), np.zeros((1, 1), np.float32), np.empty((1, 0), np.float32))
    grads = np.array([[big], [1.0], [1.0], [-big]], np.float32)

    shard.push(ids_of(4, 4, 4, 4), grads, lr=0.0, step=1)

    assert pulled(shard, ids_of(4))[0, 0] == ((big + np.float32(1)) + np.float32(1)) - big


@pytest.mark.parametrize("dim", [1, 3, 8, 16, 21])
def test_the_same_calls_make_the_same_bits_whatever_else_the_shard_holds(dim: int) -> None:
    rng = np.random.default_rng(5)
    ids = rng.integers(0, 300, 1000)
    grads = rng.standard_normal((1000, dim), np.float32)
    alone = SparseShard(table(dim, "adagrad"), max_rows=5000)
    crowded = SparseShard(table(dim, "adagrad"), max_rows=5000)
    pulled(crowded, np.arange(1000, 4000))

    for step in range(1, 4):
        for shard in (alone, crowded):
            shard.push(ids, grads, lr=0.1, step=step)

    np.testing.assert_array_equal(
        pulled(alone, ids).view(np.uint32), pulled(crowded, ids).view(np.uint32)
    )


@pytest.mark.parametrize("rule", ["sum", "sgd", "momentum", "adagrad", "adam"])
def test_what_is_exported_goes_on_elsewhere_as_if_nothing_had_happened(rule: str) -> None:
    rng = np.random.default_rng(6)
    ids, grads = rng.integers(0, 500, 800), rng.standard_normal((800, 5), np.float32)
    here = SparseShard(table(5, rule), max_rows=1000)
    there = SparseShard(table(5, rule), max_rows=1000)
    here.push(ids, grads, lr=0.1, step=1)

    for start in range(0, here.num_rows, 100):
        there.assign(*here.export(start, 100))
    for shard in (here, there):
        shard.push(ids[::-1].copy(), grads, lr=0.1, step=2)

    assert here.export(here.num_rows, 10)[0].size == 0
    for mine, theirs in zip(here.export(0, 1000), there.export(0, 1000), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_a_batch_may_be_empty() -> None:
    shard = SparseShard(table(), max_rows=4)
    none = np.empty(0, np.int64)

    shard.push(none, np.empty((0, 3), np.float32), lr=1.0, step=1)

    assert pulled(shard, none).shape == (0, 3)
    assert shard.num_rows == 0


def test_what_came_off_the_wire_read_only_and_misaligned_is_taken() -> None:
    ids, grads = ids_of(1, 2, 1), np.ones((3, 3), np.float32)
    read_only_ids = np.frombuffer(ids.tobytes(), np.int64)
    odd = np.frombuffer(b"x" + grads.tobytes(), np.float32, offset=1).reshape(3, 3)
    one, other = (SparseShard(table(), max_rows=4) for _ in range(2))

    one.push(ids, grads, lr=0.5, step=1)
    other.push(read_only_ids, odd, lr=0.5, step=1)

    np.testing.assert_array_equal(pulled(one, ids), pulled(other, ids))
    assert not read_only_ids.flags.writeable


def test_a_full_shard_says_so_and_changes_nothing() -> None:
    shard = SparseShard(table(), shard=6, max_rows=3)
    pulled(shard, ids_of(1, 2))

    with pytest.raises(CapacityError) as caught:
        pulled(shard, ids_of(1, 3, 3, 4))

    assert (caught.value.table, caught.value.shard, caught.value.rows) == ("clicks", 6, 2)
    assert shard.num_rows == 2
    pulled(shard, ids_of(2, 3, 3, 3, 1))
    assert shard.num_rows == 3


def unmixed(bits: int) -> int:
    """The id whose hash is ``bits``: murmur3's finaliser, backwards."""
    mask = 2**64 - 1
    for constant in (pow(0xC4CEB9FE1A85EC53, -1, 2**64), pow(0xFF51AFD7ED558CCD, -1, 2**64)):
        bits ^= bits >> 33
        bits = bits * constant & mask
    return bits ^ (bits >> 33)


def known_salt(shard: SparseShard) -> SparseShard:
    """Let hashes of ids be known, as nobody else knows them."""
    shard._index.arrays.counts[SALT] = 0
    return shard


def test_ids_crafted_to_overflow_a_page_when_it_is_expanded_do_not_hang() -> None:
    """They fill two pages, and would all belong in one of three."""
    pages = [
        [unmixed((i & 0xFF) << 56 | (i >> 8) << 32 | page) for i in range(4000)]
        for page in (0, 1)
    ]
    ids = np.array(
        [i for page in pages for i in [j for j in page if j <= MAX_ID][:880]], np.int64
    )
    assert ids.size == 1760
    shard = known_salt(SparseShard(table(), max_rows=10_000))

    for start in range(0, ids.size, 100):
        pulled(shard, ids[start : start + 100])
    plain = np.arange(3000, 3300)
    pulled(shard, plain)

    both = np.concatenate([ids, plain])
    np.testing.assert_array_equal(
        pulled(shard, both, create=False), initial_rows(shard.spec, both)
    )
    assert shard.num_rows == both.size


def test_nobody_can_craft_ids_for_a_shard_whose_salt_is_not_known() -> None:
    crafted = (unmixed(i << 32) for i in range(4000))
    ids = np.array([i for i in crafted if i <= MAX_ID], np.int64)
    shard = SparseShard(table(), max_rows=10_000)

    np.testing.assert_array_equal(pulled(shard, ids), initial_rows(shard.spec, ids))


def test_ids_crafted_to_share_a_page_are_refused_and_do_not_hang() -> None:
    crafted = (unmixed(i << 32) for i in range(4000))
    ids = np.array([i for i in crafted if i <= MAX_ID], np.int64)
    assert ids.size > 1100
    shard = known_salt(SparseShard(table(), max_rows=10_000))

    with pytest.raises(CapacityError):
        pulled(shard, ids)

    kept = ids[: shard.num_rows]
    assert kept.size >= 1024
    np.testing.assert_array_equal(pulled(shard, kept), initial_rows(shard.spec, kept))
    np.testing.assert_array_equal(
        pulled(shard, ids, create=False), initial_rows(shard.spec, ids)
    )


def test_wrong_shapes_and_types_are_refused() -> None:
    shard = SparseShard(table(), max_rows=4)
    grads = np.zeros((1, 3), np.float32)

    with pytest.raises(RowShapeError) as caught:
        shard.push(ids_of(1), np.zeros((1, 4), np.float32), lr=1.0, step=1)
    assert caught.value.expected == "float32 [1, 3]"
    assert caught.value.got == "float32 [1, 4]"
    with pytest.raises(RowShapeError):
        shard.push(ids_of(1), grads.astype(np.float64), lr=1.0, step=1)
    with pytest.raises(RowShapeError):
        shard.push(ids_of(1).astype(np.int32), grads, lr=1.0, step=1)
    with pytest.raises(RowShapeError):
        shard.assign(ids_of(1), grads, grads)
    assert shard.num_rows == 0


def test_memory_in_use_is_counted_in_rows_and_pages() -> None:
    shard = SparseShard(table(dim=16, rule="adam"), max_rows=100_000)
    empty = shard.num_bytes

    pulled(shard, np.arange(50_000))

    per_row = (shard.num_bytes - empty) / 50_000
    assert 3 * 16 * 4 + 8 + 16 <= per_row <= 3 * 16 * 4 + 8 + 16 / 0.4


IDS = st.one_of(
    st.integers(0, 40), st.integers(0, MAX_ID), st.integers(0, 40).map(lambda i: i << 54)
)
CALLS = st.lists(
    st.tuples(st.sampled_from(["pull", "peek", "push", "assign"]), st.lists(IDS, max_size=60)),
    max_size=12,
)


@given(calls=CALLS, dim=st.sampled_from([1, 3, 8, 11]))
@settings(max_examples=60)
def test_a_shard_is_a_dict_of_rows(calls: list[tuple[str, list[int]]], dim: int) -> None:
    spec = table(dim, "sum")
    shard = SparseShard(spec, max_rows=1000)
    model: dict[int, NDArray[np.float32]] = {}

    for turn, (call, plain) in enumerate(calls):
        ids = np.array(plain, np.int64)
        first = initial_rows(spec, ids)
        numbers = np.float32(turn + 1) + np.arange(ids.size * dim, dtype=np.float32)
        rows = numbers.reshape(ids.size, dim)
        if call != "peek":
            for key, row in zip(plain, first, strict=True):
                model.setdefault(key, row.copy())
        if call == "push":
            sums: dict[int, NDArray[np.float32]] = {}
            for key, row in zip(plain, rows, strict=True):
                sums[key] = sums[key] + row if key in sums else row
            for key, total in sums.items():
                model[key] = model[key] + total
            shard.push(ids, rows, lr=1.0, step=1)
        elif call == "assign":
            model.update(zip(plain, rows, strict=True))
            shard.assign(ids, rows, np.empty((ids.size, 0), np.float32))
        else:
            want = [model.get(key, row) for key, row in zip(plain, first, strict=True)]
            got = pulled(shard, ids, create=call == "pull")
            np.testing.assert_array_equal(got, np.array(want, np.float32).reshape(-1, dim))

    assert shard.num_rows == len(model)
    kept, values, _ = shard.export(0, 1000)
    assert {k: v.tolist() for k, v in zip(kept.tolist(), values, strict=True)} == {
        k: v.tolist() for k, v in model.items()
    }


@pytest.mark.parametrize("rule", ["sum", "sgd", "momentum", "adagrad", "adam"])
@pytest.mark.parametrize("dim", [1, 8, 16, 21])
def test_ids_promised_to_differ_step_as_others_do(rule: str, dim: int) -> None:
    rng = np.random.default_rng(8)
    reported, asked = (SparseShard(table(dim, rule), max_rows=5000) for _ in range(2))

    for step in range(1, 4):
        ids = rng.choice(5000, 3000, replace=False)
        grads = rng.standard_normal((ids.size, dim), np.float32)
        reported.push(ids, grads, lr=0.1, step=step, unique=True)
        asked.push(ids, grads, lr=0.1, step=step)

    for mine, theirs in zip(reported.export(0, 5000), asked.export(0, 5000), strict=True):
        np.testing.assert_array_equal(mine, theirs)


@given(plain=st.lists(st.integers(0, 300), max_size=700), num_known=st.integers(0, 300))
@settings(max_examples=30)
def test_a_broken_promise_steps_a_row_once_for_each_gradient(
    plain: list[int], num_known: int
) -> None:
    ids = np.array(plain, np.int64)
    shard = SparseShard(table(2, "sum"), max_rows=400)
    pulled(shard, np.arange(num_known, dtype=np.int64))
    first = initial_rows(shard.spec, np.arange(301))

    shard.push(ids, np.ones((ids.size, 2), np.float32), lr=1.0, step=1, unique=True)

    want = first
    for key in plain:
        want[key] += 1
    np.testing.assert_array_equal(pulled(shard, ids), want[ids])
    assert shard.num_rows == len({*plain, *range(num_known)})


def test_a_batch_of_new_ids_many_times_over_makes_each_once() -> None:
    ids = np.random.default_rng(9).integers(0, 40_000, 100_000)
    shard = SparseShard(table(dim=2), max_rows=40_000)

    rows = pulled(shard, ids)

    np.testing.assert_array_equal(rows, initial_rows(shard.spec, ids))
    assert shard.num_rows == np.unique(ids).size
    np.testing.assert_array_equal(pulled(shard, ids, create=False), rows)


@pytest.mark.parametrize("storage", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("rule", ["sgd", "adagrad", "adam", "momentum"])
def test_rows_are_read_with_all_columns_and_none_is_created(rule: Any, storage: Any) -> None:
    spec = replace(table(5, rule), storage=storage)
    shard, held = SparseShard(spec), np.arange(0, 3000, 3)
    shard.push(held, np.random.default_rng(1).normal(size=(1000, 5)).astype(np.float32),
               lr=0.1, step=1, unique=True)  # fmt: skip
    asked = np.random.default_rng(2).integers(0, 3000, 5000)

    values, states = shard.read(asked)

    assert (shard.num_rows, shard.num_taken) == (1000, 1000)
    ids, kept, kept_states = shard.export(0, 1000)
    place = {key: at for at, key in enumerate(ids.tolist())}
    known = np.array([key in place for key in asked.tolist()])
    at = np.array([place[key] for key in asked[known].tolist()])
    np.testing.assert_array_equal(values[known], kept[at])
    np.testing.assert_array_equal(states[known], kept_states[at])
    np.testing.assert_array_equal(values[~known], initial_rows(spec, asked[~known]))
    first = shard.layout.states.new_rows(int((~known).sum()))
    np.testing.assert_array_equal(states[~known], first)
    assert {values.dtype, states.dtype} == {np.dtype(np.float32)}
    shard.create(asked)
    for before, after in zip((values, states), shard.read(asked), strict=True):
        np.testing.assert_array_equal(after, before)


def test_what_is_read_of_an_empty_shard_or_of_no_ids() -> None:
    shard = SparseShard(table(3, "adagrad", initial_accumulator_value=0.5))

    values, states = shard.read(ids_of(7, -7, 7))

    np.testing.assert_array_equal(values, initial_rows(shard.spec, ids_of(7, -7, 7)))
    np.testing.assert_array_equal(states, np.full((3, 3), 0.5, np.float32))
    assert [each.shape for each in shard.read(ids_of())] == [(0, 3), (0, 3)]
    assert shard.num_rows == 0
    with pytest.raises(RowShapeError):
        shard.read(np.zeros(2, np.int32))
