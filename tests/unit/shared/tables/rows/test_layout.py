"""A row's columns lie behind one another, and are found by their names."""

from typing import Any

import numpy as np
import pytest

from paramfleet_shared.tables.rows.layout import VALUE, ColumnSpec, RowLayout
from paramfleet_shared.tables.rules.catalog import RULES
from paramfleet_shared.tables.rules.record import Column, Formula, Numbers, Rule
from paramfleet_shared.tables.sparse import SparseShard
from paramfleet_shared.tables.spec import InitializerSpec, OptimizerSpec, TableSpec


def table(rule: str, dim: int = 16, storage: Any = "float32", **constants: Any) -> TableSpec:
    return TableSpec(
        name="clicks",
        kind="sparse",
        dim=dim,
        initializer=InitializerSpec(kind="uniform", low=-1.0, high=1.0),
        optimizer=OptimizerSpec(rule=rule, **constants),
        storage=storage,
    )


def test_states_lie_behind_the_value_in_the_order_of_the_rule() -> None:
    layout = RowLayout.of(table("adam", dim=5))

    assert [column.name for column in layout.columns] == [VALUE, "exp_avg", "exp_avg_sq"]
    assert layout.spans == {
        VALUE: slice(0, 5),
        "exp_avg": slice(5, 10),
        "exp_avg_sq": slice(10, 15),
    }
    assert (layout.pitch, layout.row_bytes) == (15, 60)
    assert layout.states.spans == {"exp_avg": slice(0, 5), "exp_avg_sq": slice(5, 10)}
    assert layout.states == RowLayout.of_states(OptimizerSpec(rule="adam"), 5)


def test_states_of_values_are_before_those_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    mixed = Rule(
        name="mixed",
        constants=(),
        columns=(Column(name="each"), Column(name="row", per_row=True)),
        formulas=(Formula(update=lambda: None, numbers=lambda _c, m: Numbers(m.lr)),),
    )
    monkeypatch.setitem(RULES, "mixed", mixed)

    layout = RowLayout.of_states(OptimizerSpec(rule="mixed"), 5)

    assert layout.spans == {"each": slice(0, 5), "row": slice(5, 6)}
    assert layout.pitch == 6


@pytest.mark.parametrize(("dim", "num_bytes"), [(1, 8), (2, 8), (3, 12), (16, 36)])
def test_narrow_values_leave_room_up_to_the_next_float(dim: int, num_bytes: int) -> None:
    layout = RowLayout.of(table("rowwise_adagrad", dim, "bfloat16"))

    assert layout.columns[0].dtype == np.uint16
    assert layout.row_bytes == num_bytes
    assert layout.spans["sum"] == slice(num_bytes // 4 - 1, num_bytes // 4)


def test_new_rows_begin_as_each_column_does() -> None:
    states = RowLayout.of_states(
        OptimizerSpec(rule="adagrad", initial_accumulator_value=0.5), 2
    )
    layout = states.and_column(ColumnSpec("shows", 1, first=3.0))

    assert layout.first.tolist() == [0.5] * states.pitch + [3.0]
    assert layout.new_rows(2).tolist() == [layout.first.tolist()] * 2
    assert RowLayout(()).new_rows(3).shape == (3, 0)


COUNTER = ColumnSpec("shows", 1, first=2.0)


@pytest.mark.parametrize("storage", ["float32", "bfloat16"])
@pytest.mark.parametrize("dim", [3, 16])
@pytest.mark.parametrize("rule", [name for name, rule in RULES.items() if rule.formulas])
def test_a_counter_beside_the_states_changes_nothing_of_them(
    rule: str, dim: int, storage: Any
) -> None:
    spec = table(rule, dim, storage)
    layout = RowLayout.of(spec).and_column(COUNTER)
    plain, counting = (
        SparseShard(spec, max_rows=400),
        SparseShard(spec, max_rows=400, layout=layout),
    )
    dice, ids = np.random.default_rng(dim), np.arange(300)
    for step, unique in enumerate((True, False, True), start=1):
        grads = dice.standard_normal((300, dim), np.float32)
        for shard in (plain, counting):
            shard.push(ids, grads, lr=0.1, step=step, unique=unique)
            shard.release(shard.remove(ids[::7]))

    kept, values, states = counting.export(0, 300)
    for got, expected in zip((kept, values, states[:, :-1]), plain.export(0, 300), strict=True):
        np.testing.assert_array_equal(got, expected)
    assert (states[:, -1] == COUNTER.first).all()
    assert counting.num_bytes - plain.num_bytes == 4 * plain.num_slots


def test_a_counter_is_assigned_and_begins_anew_in_a_row_that_comes_again() -> None:
    spec = table("adagrad", initial_accumulator_value=0.5)
    layout = RowLayout.of(spec).and_column(COUNTER)
    shard = SparseShard(spec, max_rows=4, layout=layout)
    shard.create(np.arange(4))
    _, values, states = shard.export(0, 4)
    shard.assign(np.arange(4), values, states + 1)
    assert states[:, layout.states.spans["shows"]].tolist() == [[2.0]] * 4
    assert shard.export(0, 4)[2][:, -1].tolist() == [3.0] * 4

    shard.release(shard.remove(np.array([1])))
    shard.create(np.array([9]))

    assert shard.export(0, 4)[2][:, -1].tolist() == [3.0, 2.0, 3.0, 3.0]
    assert shard.export(1, 1)[2][0].tolist() == [0.5] * 16 + [2.0]
