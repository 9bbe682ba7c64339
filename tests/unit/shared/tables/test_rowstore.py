"""Rows by slot: the index, columns beside it, and first values."""

from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

from paramfleet_shared.tables.kernels.basics import compiled
from paramfleet_shared.tables.kernels.basics.compiled import as_input
from paramfleet_shared.tables.kernels.basics.readiness import kernel_folders
from paramfleet_shared.tables.memory.reservation import (
    MAX_RESERVATION_BYTES,
    CapacityError,
    ReservationError,
    RowColumn,
    default_max_rows,
    reserve,
)
from paramfleet_shared.tables.rowstore import (
    RowShapeError,
    SlotIndex,
    gather_rows,
    initial_rows,
    scatter_rows,
)
from paramfleet_shared.tables.sparse import SparseShard
from paramfleet_shared.tables.spec import InitializerSpec, OptimizerSpec, TableSpec
from paramfleet_shared.tables.warm import warm

UNIFORM_BITS = [[1063890254, 1030632624], [1058254084, 1057409011], [1057434836, 1060388555]]
NORMAL_BITS = [[1068358058, 3217622107], [1044808774, 1032328370], [1032847459, 1057571621]]


def sparse(name: str = "e", dim: int = 4, seed: int = 0, **initializer: Any) -> TableSpec:
    return TableSpec(
        name=name,
        kind="sparse",
        dim=dim,
        seed=seed,
        initializer=InitializerSpec(**initializer),
        optimizer=OptimizerSpec(rule="adagrad", initial_accumulator_value=0.25),
    )


def test_slots_are_given_in_order_of_creation() -> None:
    index = SlotIndex()

    assert index.find(np.array([7, 5, 7, 9]), create=True).tolist() == [0, 1, 0, 2]
    assert index.find(np.array([9, 8, 5]), create=False).tolist() == [2, -1, 1]
    assert index.num_rows == 3
    assert index.ids().tolist() == [7, 5, 9]


def test_an_index_grows_by_pages_as_a_dict_would() -> None:
    index = SlotIndex(max_rows=200_000)
    rng = np.random.default_rng(0)
    model: dict[int, int] = {}

    for _ in range(40):
        ids = rng.integers(0, 150_000, 5000) * 64
        slots = index.find(ids, create=True)
        want = [model.setdefault(key, len(model)) for key in ids.tolist()]
        assert slots.tolist() == want

    assert index.ids().tolist() == list(model)
    assert index.num_bytes <= len(model) * (8 + 16 / 0.4)


def test_an_index_that_is_full_still_finds() -> None:
    index = SlotIndex(max_rows=2, table="e", shard=1)
    index.find(np.array([1, 2]), create=True)

    with pytest.raises(
        CapacityError, match="table 'e', shard 1: new rows don't fit beside its 2 rows"
    ):
        index.find(np.array([1, 3]), create=True)

    assert index.find(np.array([2, 1]), create=True).tolist() == [1, 0]


def test_ids_must_be_a_flat_int64_array() -> None:
    with pytest.raises(RowShapeError, match=r"expected int64 \[any\], got int64 \[1, 1\]"):
        SlotIndex(max_rows=1).find(np.array([[1]]), create=True)
    with pytest.raises(RowShapeError):
        initial_rows(sparse(), np.array([1.0]))


def test_columns_grow_without_moving_and_begin_with_zeros() -> None:
    column = RowColumn(3, max_rows=100)
    column.ensure(2)
    column.array[1] = 5
    address = column.array.ctypes.data

    column.ensure(90)

    assert column.array.ctypes.data == address
    assert column.array.shape[0] >= 90
    assert column.array[:3].tolist() == [[0, 0, 0], [5, 5, 5], [0, 0, 0]]
    column.ensure(10)
    with pytest.raises(CapacityError):
        column.ensure(101)


def test_columns_hold_other_types() -> None:
    column = RowColumn(1, np.int32)
    column.ensure(1)

    assert column.array.dtype == np.int32


def test_a_reservation_is_modest_and_a_refusal_names_the_remedy() -> None:
    assert default_max_rows(1024) * 1024 <= MAX_RESERVATION_BYTES

    with pytest.raises(ReservationError, match="lower max_rows") as caught:
        reserve(1 << 60, np.uint8)

    assert caught.value.num_bytes == 1 << 60


@pytest.mark.parametrize("width", [1, 8, 13])
def test_rows_are_gathered_and_scattered_by_slot(width: int) -> None:
    table = np.arange(100 * width, dtype=np.float32).reshape(100, width)
    slots = np.random.default_rng(0).integers(0, 100, 300)
    out = np.empty((300, width), np.float32)

    assert gather_rows(table, slots, out) == 0
    np.testing.assert_array_equal(out, table[slots])
    scatter_rows(table, slots, -out)

    kept = np.setdiff1d(np.arange(100), slots)
    np.testing.assert_array_equal(table[slots], -out)
    assert (table[kept] >= 0).all()


def test_gathering_leaves_the_rows_of_absent_slots_and_counts_them() -> None:
    out = np.full((3, 2), 9, np.float32)

    assert gather_rows(np.ones((1, 2), np.float32), np.array([-1, 0, -1]), out) == 2

    assert out.tolist() == [[9, 9], [1, 1], [9, 9]]


def test_of_two_rows_for_one_slot_the_later_stays() -> None:
    table = np.zeros((1, 1), np.float32)

    scatter_rows(table, np.array([0, 0]), np.array([[1], [2]], np.float32))

    assert table[0, 0] == 2


def test_gathering_and_scattering_refuse_wrong_shapes() -> None:
    table, slots = np.zeros((4, 2), np.float32), np.zeros(3, np.int64)

    with pytest.raises(RowShapeError):
        gather_rows(table, slots, np.empty((3, 3), np.float32))
    with pytest.raises(RowShapeError):
        scatter_rows(table, slots, np.empty((2, 2), np.float32))


def test_what_is_written_in_place_must_be_contiguous() -> None:
    table, slots = np.zeros((4, 2), np.float32), np.zeros(1, np.int64)
    row = np.ones((1, 2), np.float32)
    frozen = row.copy()
    frozen.flags.writeable = False

    with pytest.raises(RowShapeError, match="contiguous and writable"):
        gather_rows(table, slots, frozen)
    with pytest.raises(RowShapeError, match="contiguous and writable"):
        scatter_rows(table.T, slots, np.ones((1, 4), np.float32))

    scatter_rows(table, slots, frozen)
    assert table[0].tolist() == [1, 1]


def test_first_values_of_each_kind_are_what_it_says() -> None:
    ids = np.arange(20_000) << 40

    assert not initial_rows(sparse(), ids).any()
    assert (initial_rows(sparse(kind="constant", value=0.5), ids) == 0.5).all()
    uniform = initial_rows(sparse(kind="uniform", low=-2.0, high=6.0), ids)
    assert uniform.min() >= -2.0
    assert uniform.max() <= 6.0
    deciles = np.quantile(uniform, np.arange(0.1, 1.0, 0.1))
    np.testing.assert_allclose(deciles, np.arange(-1.2, 6.0, 0.8), atol=0.05)
    normal = initial_rows(sparse(kind="normal", mean=3.0, std=2.0), ids)
    for p in (0.001, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999):
        want = NormalDist(3.0, 2.0).inv_cdf(p)
        assert abs(np.quantile(normal, p) - want) < 0.15


def test_first_values_differ_by_seed_name_id_and_column_only() -> None:
    ids = np.arange(100)
    rows = initial_rows(sparse(kind="uniform"), ids)

    assert np.unique(rows).size > 0.99 * rows.size
    np.testing.assert_array_equal(rows[:, :2], initial_rows(sparse(dim=2, kind="uniform"), ids))
    for other in (sparse(seed=1, kind="uniform"), sparse("f", kind="uniform")):
        assert not np.isin(initial_rows(other, ids), rows).all(axis=1).any()


def test_first_values_never_change_from_version_to_version() -> None:
    ids = np.array([0, 1, 2**63 - 1])

    uniform = initial_rows(sparse(dim=2, kind="uniform"), ids)
    normal = initial_rows(sparse(dim=2, kind="normal"), ids)

    assert uniform.view(np.uint32).tolist() == UNIFORM_BITS
    assert normal.view(np.uint32).tolist() == NORMAL_BITS


def test_new_rows_start_with_the_state_the_rule_asks_for() -> None:
    shard = SparseShard(sparse(), max_rows=4)

    shard.pull(np.array([3]), np.empty((1, 4), np.float32), create=True)

    assert shard.export(0, 1)[2].tolist() == [[0.25] * 4]


def test_warming_is_idempotent_and_leaves_no_trace() -> None:
    for spec in (sparse(dim=3), TableSpec(name="w", kind="dense", size=0)):
        warm(spec)
        warm(spec)


def test_inputs_are_passed_on_without_a_copy_where_kernels_can_take_them() -> None:
    whole = np.arange(8, dtype=np.int64)
    frozen = whole.view()
    frozen.flags.writeable = False

    assert as_input(whole, np.int64) is whole
    assert np.shares_memory(as_input(frozen, np.int64), whole)
    assert as_input(whole[::2], np.int64).tolist() == [0, 2, 4, 6]


def test_compiled_kernels_are_kept_apart_by_a_digest_of_their_source() -> None:
    folders = kernel_folders()

    assert len({folder.name for folder in folders}) == 1
    assert any(folder.exists() for folder in folders)


def test_the_users_choice_of_a_cache_folder_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))

    (folder,) = kernel_folders()

    assert folder.parent == tmp_path


def test_where_nothing_can_be_written_kernels_are_compiled_all_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    not_a_folder = tmp_path / "file"
    not_a_folder.touch()
    monkeypatch.setattr(compiled, "_FOLDERS", (not_a_folder / "kernels",))

    @compiled.kernel
    def doubled(number: int) -> int:
        return 2 * number

    assert doubled(21) == 42


def test_many_tables_of_default_size_fit_into_one_process() -> None:
    shards = [SparseShard(sparse(f"e{i}", dim=16), shard=i % 8) for i in range(80)]

    out = np.empty((3, 16), np.float32)
    for shard in shards:
        shard.pull(np.array([1, 2, 3]), out, create=True)

    assert {shard.num_rows for shard in shards} == {3}
