"""Values kept in 16 bits: exact to read, rounded to write."""

from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from paramfleet_shared.tables.encoding import decode_rows, encode_rows
from paramfleet_shared.tables.rowstore import RowShapeError, initial_rows
from paramfleet_shared.tables.sparse import SparseShard
from paramfleet_shared.tables.spec import (
    InitializerSpec,
    OptimizerSpec,
    TableSpec,
    TableSpecError,
)

Storage = Literal["float16", "bfloat16"]
STORAGES: tuple[Storage, ...] = ("float16", "bfloat16")

pytestmark = pytest.mark.slow


def table(
    storage: Any, rounding: Any = "nearest", dim: int = 19, rule: Any = "sum"
) -> TableSpec:
    return TableSpec(
        name="clicks",
        kind="sparse",
        dim=dim,
        initializer=InitializerSpec(kind="uniform", low=-1.0, high=1.0),
        optimizer=OptimizerSpec(rule=rule),
        storage=storage,
        rounding=rounding,
    )


def to_nearest(values: NDArray[np.float32], storage: Storage) -> NDArray[np.float32]:
    if storage == "float16":
        return np.clip(values, -65504, 65504).astype(np.float16).astype(np.float32)
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16).view(np.float32)


def kept(spec: TableSpec, values: NDArray[np.float32]) -> NDArray[np.float32]:
    shard = SparseShard(spec, max_rows=len(values))
    ids = np.arange(len(values))
    shard.assign(ids, values, np.empty((len(values), 0), np.float32))
    out = np.empty_like(values)
    shard.pull(ids, out, create=False)
    np.testing.assert_array_equal(shard.export(0, len(values))[1], out)
    return out


@pytest.mark.parametrize("storage", STORAGES)
def test_what_is_assigned_is_rounded_to_nearest_whatever_its_size(storage: Storage) -> None:
    rng = np.random.default_rng(1)
    sizes = np.float32(2.0) ** rng.integers(-27, 18, (500, 19)).astype(np.float32)
    values = rng.standard_normal((500, 19), np.float32) * sizes
    values[0] = [0.0, -0.0, 65504, 65519.9, 65520, 1e30, -1e30, 2**-24, 2**-25] + [1] * 10

    read = kept(table(storage), values)

    np.testing.assert_array_equal(read, to_nearest(values, storage))
    np.testing.assert_array_equal(kept(table(storage), read), read)


@pytest.mark.parametrize("storage", STORAGES)
def test_what_is_no_number_stays_none(storage: Storage) -> None:
    read = kept(table(storage, dim=9), np.full((2, 9), np.nan, np.float32))

    assert np.isnan(read).all()


def test_every_number_of_16_bits_is_read_exactly() -> None:
    bits = np.arange(65536, dtype=np.uint32)
    as_bfloat = (bits << 16).view(np.float32)
    as_half = bits.astype(np.uint16).view(np.float16).astype(np.float32)
    numbers: tuple[tuple[Storage, NDArray[np.float32]], ...] = (
        ("bfloat16", as_bfloat[np.isfinite(as_bfloat)]),
        ("float16", as_half[np.isfinite(as_half)]),
    )
    for storage, values in numbers:
        rows = values.reshape(-1, 1)
        np.testing.assert_array_equal(kept(table(storage, dim=1), rows), rows)


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("scale", [1.0, 1e-6])
def test_rounding_by_chance_is_right_on_average(storage: Storage, scale: float) -> None:
    spec = table(storage, "stochastic", dim=16)
    shard = SparseShard(spec, max_rows=1000)
    ids, zeros = np.arange(1000), np.zeros((1000, 16), np.float32)
    shard.assign(ids, zeros, np.empty((1000, 0), np.float32))
    number = np.float32(0.3337) * np.float32(scale)

    shard.push(ids, zeros + number, lr=1.0, step=1, unique=True)

    read = np.empty_like(zeros)
    shard.pull(ids, read, create=False)
    steps = np.unique(read)
    assert steps.size == 2
    assert steps[0] < number < steps[1]
    assert abs(read.mean() - number) < 0.05 * (steps[1] - steps[0])


@pytest.mark.parametrize("unique", [True, False])
def test_small_updates_are_lost_to_nearest_and_kept_by_chance(*, unique: bool) -> None:
    ends = {}
    for rounding in ("nearest", "stochastic"):
        shard = SparseShard(table("bfloat16", rounding, 16, "sgd"), max_rows=64)
        ids, states = np.arange(64), np.empty((64, 0), np.float32)
        shard.assign(ids, np.full((64, 16), 0.5, np.float32), states)
        for step in range(1, 2001):
            grads = np.ones((64, 16), np.float32)
            shard.push(ids, grads, lr=1e-4, step=step, unique=unique)
        ends[rounding] = shard.export(0, 64)[1]

    assert (ends["nearest"] == 0.5).all()
    assert abs(ends["stochastic"].mean() - 0.3) < 0.02


def test_the_same_calls_round_alike_and_other_pushes_do_not() -> None:
    read = []
    for _ in range(2):
        shard = SparseShard(table("bfloat16", "stochastic", 16), max_rows=100)
        ids, grads = np.arange(100), np.full((100, 16), 0.001, np.float32)
        for _ in range(3):  # with one number, as GEO does
            shard.push(ids, grads, lr=1.0, step=1)
            read.append(shard.export(0, 100)[1])
    np.testing.assert_array_equal(read[:3], read[3:])
    went_up = [later > earlier for earlier, later in pairwise(read[:3])]
    assert (went_up[0] != went_up[1]).any()


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("rule", ["sgd", "momentum", "adagrad", "adam"])
def test_every_rule_computes_in_float32_and_keeps_its_state_so(
    storage: Storage, rule: str
) -> None:
    rng = np.random.default_rng(2)
    half, full = (
        SparseShard(table(kind, dim=21, rule=rule), max_rows=300)
        for kind in (storage, "float32")
    )
    ids = rng.choice(10_000, 300, replace=False)
    grads = rng.standard_normal((300, 21), np.float32)
    rows = np.empty_like(grads)
    half.pull(ids, rows, create=True)
    full.assign(*half.export(0, 300))
    half.push(ids, grads, lr=0.1, step=1, unique=True)
    full.push(ids, grads, lr=0.1, step=1)

    _, values, states = half.export(0, 300)
    _, want, want_states = full.export(0, 300)
    np.testing.assert_array_equal(values, to_nearest(want, storage))
    np.testing.assert_array_equal(states, want_states)


@pytest.mark.parametrize("storage", STORAGES)
def test_first_values_are_rounded_and_read_alike_before_and_after_creation(
    storage: Storage,
) -> None:
    shard = SparseShard(table(storage), max_rows=50)
    ids = np.arange(50)
    before, after = (np.empty((50, 19), np.float32) for _ in range(2))

    shard.pull(ids, before, create=False)
    shard.pull(ids, after, create=True)

    np.testing.assert_array_equal(before, after)
    np.testing.assert_array_equal(before, initial_rows(shard.spec, ids))
    np.testing.assert_array_equal(
        before, to_nearest(initial_rows(table("float32"), ids), storage)
    )


def test_rows_of_half_the_numbers_take_half_the_memory() -> None:
    sizes = []
    for storage in ("float32", "bfloat16"):
        shard = SparseShard(table(storage, dim=16), max_rows=1000)
        empty = shard.num_bytes
        shard.pull(np.arange(1000), np.empty((1000, 16), np.float32), create=True)
        sizes.append((shard.num_bytes - empty) // 1000)

    assert sizes == [8 + 64, 8 + 32]


def test_a_spec_of_before_storage_was_named_is_read_as_float32() -> None:
    wire = table("float32").to_wire()
    del wire["storage"], wire["rounding"]

    read = TableSpec.from_wire(wire)

    assert (read.storage, read.rounding) == ("float32", "stochastic")
    assert TableSpec.from_wire(table("float16").to_wire()).storage == "float16"


@pytest.mark.parametrize("wrong", [{"storage": "int4"}, {"rounding": "up"}])
def test_an_unknown_storage_or_rounding_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(TableSpecError) as caught:
        TableSpec(name="t", kind="sparse", **wrong)

    assert caught.value.field in wrong


def test_a_dense_table_keeps_float32() -> None:
    with pytest.raises(TableSpecError, match="dense"):
        TableSpec(name="t", kind="dense", size=3, storage="bfloat16")


@pytest.mark.parametrize("rule", ["sgd", "adam"])
@pytest.mark.parametrize("storage", ["float32", "float16", "bfloat16"])
def test_rows_come_and_go_as_bfloat16_as_if_they_were_coded_beside_the_table(
    storage: Any, rule: Any
) -> None:
    rng = np.random.default_rng(8)
    spec = table(storage, rounding="stochastic", rule=rule)
    one, other = SparseShard(spec, max_rows=3000), SparseShard(spec, max_rows=3000)
    ids = rng.permutation(2000)
    floats, coded = np.empty((2000, 19), np.float32), np.empty((2000, 19), np.uint16)
    for step in (1, 2):
        grads = encode_rows(rng.standard_normal((2000, 19), np.float32), "bfloat16")
        one.push(ids, grads.rows, lr=0.1, step=step, unique=True)
        other.push(ids, decode_rows(grads, "bfloat16"), lr=0.1, step=step, unique=True)
    for create in (False, True):
        some = ids + 500  # some of them new
        one.pull(some, coded, create=create)
        other.pull(some, floats, create=create)

        np.testing.assert_array_equal(coded, encode_rows(floats, "bfloat16").rows)
    for mine, its in zip(one.export(0, 3000), other.export(0, 3000), strict=True):
        np.testing.assert_array_equal(mine, its)


def test_what_is_too_large_for_bfloat16_goes_as_its_largest_and_infinity_as_itself() -> None:
    values = np.array([[3.4e38, -3.4e38, np.inf, -np.inf, np.nan] + [1.5] * 14], np.float32)
    shard, ids, coded = (
        SparseShard(table("float32")),
        np.zeros(1, np.int64),
        np.empty((1, 19), np.uint16),
    )
    shard.assign(ids, values, np.empty((1, 0), np.float32))

    shard.pull(ids, coded, create=False)

    np.testing.assert_array_equal(coded, encode_rows(values, "bfloat16").rows)


def test_only_unique_gradients_come_as_bfloat16() -> None:
    shard, coded = SparseShard(table("float32")), np.zeros((1, 19), np.uint16)

    with pytest.raises(RowShapeError):
        shard.push(np.zeros(1, np.int64), coded, lr=0.1, step=1)
