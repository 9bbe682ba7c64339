"""A table of a closed set of ids on a device equals what a pserver does with its rows."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray

from paramfleet.tables.device.pass_ids import IdSet, PassIds
from paramfleet.tables.device.table import DeviceRows, DeviceTable, bytes_of, layout_of
from paramfleet_shared.tables.partition import partition
from paramfleet_shared.tables.rows.routing import merge_by_inverse
from paramfleet_shared.tables.rowstore import initial_rows
from paramfleet_shared.tables.rules.catalog import RULES
from paramfleet_shared.tables.rules.record import Moment
from paramfleet_shared.tables.sparse import SparseShard
from paramfleet_shared.tables.spec import InitializerSpec, OptimizerSpec, TableSpec

CPU = torch.device("cpu")
DIM, LR = 5, 0.05
OF_VALUES = [name for name, rule in RULES.items() if rule.formulas]
"""Rules whose rows have no statistics."""

Batches = Sequence[tuple[NDArray[np.int64], NDArray[np.float32]]]
"""Ids [n] of each batch, and a gradient [n, D] for each of them."""


def spec_of_rule(rule: str) -> TableSpec:
    return TableSpec(
        name="items",
        kind="sparse",
        dim=DIM,
        size=0,
        num_shards=1,
        seed=3,
        initializer=InitializerSpec(kind="normal", std=0.1),
        optimizer=OptimizerSpec(rule=rule),
        storage="float32",
        rounding="nearest",
    )


def batches_of(*, num: int, lowest: int = 0, highest: int = 60) -> Batches:
    random = np.random.default_rng(num + lowest)
    return [
        (
            random.integers(lowest, highest, 40),
            random.normal(size=(40, DIM)).astype(np.float32),
        )
        for _ in range(num)
    ]


def new_rows(spec: TableSpec, ids: NDArray[np.int64]) -> DeviceRows:
    rows = layout_of(spec).new_rows(len(ids))
    rows[:, :DIM] = initial_rows(spec, ids)
    return DeviceRows(ids, rows)


def id_set(ids: NDArray[np.int64]) -> IdSet:
    found = IdSet("items")
    found.try_to_add(ids)
    found.keep()
    return found


def begin(table: DeviceTable, ids: NDArray[np.int64]) -> PassIds:
    """Begin a pass with rows that are new, but for those of the former pass."""
    found = PassIds.of(table.spec.name, id_set(ids), table.ids)
    table.begin(found, new_rows(table.spec, found.new_ids))
    return found


def train(table: DeviceTable, batches: Batches, *, first: int = 1) -> None:
    ids = begin(table, np.concatenate([each for each, _ in batches]))
    for number, (each, grads) in enumerate(batches):
        different, inverse, _ = partition(each, 1)
        places = torch.from_numpy(ids.places_of(different, batch=number)).to(table.device)
        total = torch.from_numpy(merge_by_inverse(grads, inverse, len(different)))
        table.step(places, total.to(table.device), Moment(LR, first + number))


def pushed(spec: TableSpec, batches: Batches) -> DeviceRows:
    """Return the rows of a pserver's shard after the same pushes."""
    shard = SparseShard(spec)
    for number, (ids, grads) in enumerate(batches, 1):
        shard.push(ids, grads, lr=LR, step=number)
    found, values, states = shard.export(0, shard.num_slots)
    order = np.argsort(found)
    return DeviceRows(found[order], np.concatenate([values, states], axis=1)[order])


def assert_same(have: DeviceRows, want: DeviceRows) -> None:
    order = np.argsort(have.ids)
    assert_array_equal(have.ids[order], want.ids)
    assert_array_equal(have.rows[order], want.rows)


@pytest.mark.parametrize("kernels", [True, False], ids=["kernel", "torch"])
@pytest.mark.parametrize("rule", OF_VALUES)
def test_a_pass_gives_the_rows_of_a_shard_to_the_bit(rule: str, *, kernels: bool) -> None:
    spec, batches = spec_of_rule(rule), batches_of(num=6)
    table = DeviceTable(spec, device=CPU, kernels=kernels)
    train(table, batches)
    assert_same(table.stepped(), pushed(spec, batches))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device")
@pytest.mark.parametrize("rule", OF_VALUES)
def test_a_pass_on_a_gpu_gives_the_rows_of_a_shard_but_for_its_rounding(rule: str) -> None:
    spec, batches = spec_of_rule(rule), batches_of(num=6)
    table = DeviceTable(spec, device=torch.device("cuda"))
    train(table, batches)
    have, want = table.stepped(), pushed(spec, batches)
    order = np.argsort(have.ids)
    assert_array_equal(have.ids[order], want.ids)
    assert_allclose(have.rows[order], want.rows, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("rule", OF_VALUES)
def test_passes_with_common_ids_give_the_rows_of_one(rule: str) -> None:
    spec = spec_of_rule(rule)
    ranges = ((0, 60), (30, 90), (10, 40))
    passes = [batches_of(num=3, lowest=low, highest=high) for low, high in ranges]
    table, written = DeviceTable(spec, device=CPU), dict[int, NDArray[np.float32]]()
    for number, batches in enumerate(passes):
        ids = np.concatenate([each for each, _ in batches])
        found = PassIds.of("items", id_set(ids), table.ids)
        new = new_rows(spec, found.new_ids)
        for place, each in enumerate(new.ids.tolist()):
            new.rows[place] = written.get(each, new.rows[place])
        table.begin(found, new)
        for step, (each, grads) in enumerate(batches, 1 + 3 * number):
            different, inverse, _ = partition(each, 1)
            places = torch.from_numpy(found.places_of(different, batch=step))
            total = merge_by_inverse(grads, inverse, len(different))
            table.step(places, torch.from_numpy(total), Moment(LR, step))
        stepped = table.stepped()
        written |= dict(zip(stepped.ids.tolist(), stepped.rows, strict=True))
        table.note_taken()
    expected = pushed(spec, [batch for batches in passes for batch in batches])
    assert sorted(written) == expected.ids.tolist()
    assert_array_equal(np.stack([written[each] for each in sorted(written)]), expected.rows)


def test_only_stepped_rows_are_returned_until_they_are_taken() -> None:
    table = DeviceTable(spec_of_rule("sgd"), device=CPU)
    begin(table, np.arange(10))
    table.step(torch.tensor([7, 2]), torch.ones(2, DIM), Moment(LR, 1))
    assert table.stepped().ids.tolist() == table.stepped().ids.tolist() == [2, 7]
    table.note_taken()
    assert table.stepped().ids.tolist() == []


def test_a_table_without_a_pass_has_no_rows() -> None:
    table = DeviceTable(spec_of_rule("sgd"), device=CPU)
    assert (len(table.stepped().ids), len(table.rows().ids), table.num_bytes) == (0, 0, 0)


def test_values_are_read_by_place() -> None:
    table = DeviceTable(spec_of_rule("adagrad"), device=CPU)
    ids = begin(table, np.array([40, 10, 30]))
    places = torch.from_numpy(ids.places_of(np.array([40, 10]), batch=0))
    expected = initial_rows(table.spec, np.array([40, 10]))
    assert_array_equal(table.values(places).numpy(), expected)


def test_a_smaller_pass_takes_no_more_memory_and_a_larger_one_what_it_needs() -> None:
    spec = spec_of_rule("adam")
    table = DeviceTable(spec, device=CPU)
    row_bytes = 4 * 3 * DIM + 1
    for ids, num_rows in ((range(100), 100), (range(90, 120), 100), (range(300), 300)):
        begin(table, np.array(ids))
        assert table.num_bytes == bytes_of(spec, num_rows) == row_bytes * num_rows


ON_A_GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
]


@pytest.mark.parametrize(
    ("place", "kernels"),
    [("cpu", True), ("cpu", False), pytest.param("cuda", True, marks=ON_A_GPU)],
)
def test_rows_with_an_accessor_are_those_of_a_pserver(place: str, *, kernels: bool) -> None:
    spec = replace(
        spec_of_rule("ctr"), optimizer=OptimizerSpec(rule="ctr", embedx_threshold=1.0)
    )
    shard = SparseShard(spec)
    device = DeviceTable(spec, device=torch.device(place), kernels=kernels)
    random = np.random.default_rng(5)
    for lowest in (0, 20):  # some rows of the former pass stay
        ids = begin(device, np.arange(lowest, lowest + 40))
        for number in range(6):
            used = random.choice(ids.ids, 25, replace=False)
            pushed = random.normal(size=(25, DIM)).astype(np.float32)
            pushed[:, 0], pushed[:, 1] = random.integers(1, 5, 25), random.integers(0, 2, 25)
            day = 100 + lowest + number
            shard.push(used, pushed, lr=LR, step=1 + number, unique=True, now=day)
            places = torch.from_numpy(ids.places_of(used, batch=number)).to(place)
            moment = Moment(LR, 1 + number, now=day)
            device.step(places, torch.from_numpy(pushed).to(place), moment)
        stepped = device.stepped()
        device.note_taken()
        values, states = shard.read(stepped.ids)
        here = np.isin(stepped.ids, np.arange(lowest, lowest + 40))
        assert here.all()
        assert_array_equal(stepped.rows, np.concatenate([values, states], axis=1))
        assert 0 < states[:, -1].sum() < len(states)
