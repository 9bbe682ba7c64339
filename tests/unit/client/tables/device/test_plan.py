"""Data that doesn't fit into a device is planned as several passes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paramfleet.tables.device.plan import BatchIds, DeviceBudgetError, plan_passes
from paramfleet.tables.device.table import bytes_of
from paramfleet_shared.tables.spec import OptimizerSpec, TableSpec

TABLES = [
    TableSpec(name="wide", kind="sparse", dim=1, optimizer=OptimizerSpec(rule="sgd")),
    TableSpec(name="deep", kind="sparse", dim=4, optimizer=OptimizerSpec(rule="adam")),
]
WIDE, DEEP = (bytes_of(spec, 1) for spec in TABLES)


def batch(wide: object = (), deep: object = ()) -> BatchIds:
    return {"wide": np.array(wide, np.int64), "deep": np.array(deep, np.int64)}


def test_without_a_budget_all_batches_are_one_pass() -> None:
    batches = [batch([1, 2, 2], [5]), batch([2, 3], [5, 6])]
    (planned,) = plan_passes(batches, TABLES)
    assert (planned.first, planned.stop, planned.keeps_rows) == (0, 2, True)
    assert {name: sorted(found.ids) for name, found in planned.ids.items()} == {
        "wide": [1, 2, 3],
        "deep": [5, 6],
    }
    assert planned.device_bytes == 3 * WIDE + 2 * DEEP


def test_data_is_split_before_the_batch_that_would_not_fit() -> None:
    batches = [batch(deep=[1, 2]), batch(deep=[2, 3]), batch(deep=[4]), batch(deep=[3, 5, 6])]
    planned = list(plan_passes(batches, TABLES, budget_bytes=3 * DEEP))
    assert [(each.first, each.stop) for each in planned] == [(0, 2), (2, 3), (3, 4)]
    assert [sorted(each.ids["deep"].ids) for each in planned] == [[1, 2, 3], [4], [3, 5, 6]]


def test_a_pass_begins_anew_where_the_capacity_of_other_tables_is_too_much() -> None:
    batches = [batch(wide=range(DEEP)), batch(deep=range(WIDE))]
    first, second = plan_passes(batches, TABLES, budget_bytes=WIDE * DEEP)
    assert (first.keeps_rows, second.keeps_rows) == (True, False)
    assert first.device_bytes == second.device_bytes == WIDE * DEEP


def test_capacity_that_is_there_counts() -> None:
    batches = [batch(deep=[1]), batch(deep=[2])]
    (planned,) = plan_passes(batches, TABLES, budget_bytes=5 * DEEP, existing={"deep": 4})
    assert planned.device_bytes == 4 * DEEP


def test_a_batch_that_does_not_fit_by_itself_is_refused_by_number() -> None:
    batches = [batch(deep=[1]), batch(deep=[1, 2, 3])]
    with pytest.raises(DeviceBudgetError, match="3 rows of batch 1 take") as caught:
        list(plan_passes(batches, TABLES, budget_bytes=2 * DEEP))
    assert (caught.value.bytes, caught.value.budget) == (3 * DEEP, 2 * DEEP)


def test_no_batches_are_no_pass() -> None:
    assert not list(plan_passes([], TABLES, budget_bytes=1))


IDS = st.lists(st.integers(-3, 12), max_size=6)


@given(st.lists(st.tuples(IDS, IDS), max_size=12), st.integers(1, 40))
def test_passes_hold_all_batches_in_order_and_never_more_than_the_budget(
    data: list[tuple[list[int], list[int]]], budget_rows: int
) -> None:
    batches, budget = [batch(*each) for each in data], budget_rows * DEEP
    alone = [len(set(wide)) * WIDE + len(set(deep)) * DEEP for wide, deep in data]
    if max(alone, default=0) > budget:
        with pytest.raises(DeviceBudgetError) as caught:
            list(plan_passes(batches, TABLES, budget_bytes=budget))
        assert alone[caught.value.batch] == caught.value.bytes > budget
        return
    planned = list(plan_passes(batches, TABLES, budget_bytes=budget))
    assert [number for each in planned for number in range(each.first, each.stop)] == list(
        range(len(batches))
    )
    capacities = {"wide": 0, "deep": 0}
    for each in planned:
        if not each.keeps_rows:
            capacities = {"wide": 0, "deep": 0}
        for place, name in enumerate(("wide", "deep")):
            used = {i for number in range(each.first, each.stop) for i in data[number][place]}
            found = each.ids[name].ids if name in each.ids else np.empty(0, np.int64)
            assert set(found) == used
            numbers = [numbers[name] for numbers in each.numbers]
            looked_up = [batches[number][name] for number in range(each.first, each.stop)]
            for some, ids in zip(numbers, looked_up, strict=True):
                assert found[some].tolist() == ids.tolist()
            capacities[name] = max(capacities[name], len(used))
        taken = capacities["wide"] * WIDE + capacities["deep"] * DEEP
        assert taken <= each.device_bytes <= budget
