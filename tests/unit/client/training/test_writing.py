"""Rows that one process writes past its optimizer."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.unit.client.api.test_removing import IDS, Alone

import paramfleet as fleet
from paramfleet.config.roles import RoleMaker
from paramfleet.session.session import Session
from paramfleet.tables.replica import OLD, RowReplica
from paramfleet.tables.row_store import RowStore
from paramfleet.training.optimizer import (
    LoadIncompleteError,
    RowWriteError,
    TableUnknownError,
    TrainingFinishedError,
)
from paramfleet_shared.tables.spec import TableSpec


def given(num: int, dim: int = 3) -> np.ndarray:
    return np.random.default_rng(5).normal(size=(num, dim)).astype(np.float32)


@pytest.mark.parametrize("kind", ["sgd", "adagrad"])
def test_written_rows_go_on_as_torch_goes_on_with_a_weight_that_was_changed(kind: str) -> None:
    alone = Alone(kind)
    table = torch.nn.Embedding(30, 3)
    optimizers: dict[str, Any] = {
        "sgd": lambda p: torch.optim.SGD(p, lr=0.5, momentum=0.0),
        "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.5),
    }
    inner = optimizers[kind](table.parameters())
    if kind == "sgd":
        alone.optimizer.param_groups[0]["momentum"] = 0.0
    with torch.no_grad():
        table.weight[:20] = torch.from_numpy(alone.held())

    def step() -> None:
        alone.train(steps=1)
        table.zero_grad()
        table(IDS).pow(2).sum().backward()
        inner.step()

    step()
    values = given(25)
    alone.optimizer.write_rows(alone.rows.table, np.arange(25), values)
    with torch.no_grad():
        table.weight[:25] = torch.from_numpy(values)
    step()

    expected = table.weight.detach()[:25].numpy()
    np.testing.assert_allclose(alone.held(torch.arange(25)), expected, atol=1e-6)
    assert alone.num_rows == 25


def test_first_rows_are_there_from_the_start() -> None:
    rows = fleet.nn.Embedding(9, 3, name="rows")
    rows.table.first_rows += [(np.arange(5), given(5)), (np.array([2, 7]), given(2))]
    session = Session()
    session.init(RoleMaker(distributed=False))
    session.distributed_model(torch.nn.ModuleList([rows]))
    session.distributed_optimizer(torch.optim.SGD(rows.parameters(), lr=0.1))

    found = rows(torch.tensor([0, 2, 4, 7])).detach().numpy()

    np.testing.assert_array_equal(found, given(5)[[0, 0, 4, 1]])


@pytest.mark.parametrize(
    ("ids", "values", "rule"),
    [
        (IDS, given(19), "values must be float32 [20, 3], and are float32 [19, 3]"),
        (IDS, given(20, 4), "values must be float32 [20, 3], and are float32 [20, 4]"),
        (IDS, given(20).astype(np.float64), "and are float64 [20, 3]"),
        (IDS[:1], np.array([[1, np.nan, -np.inf]], np.float32), "2 values are NaN, infinite"),
        (IDS[:1], np.array([[1, 2.0**51, 0]], np.float32), "1 values are NaN, infinite"),
    ],
)
def test_values_that_are_none_are_refused_and_nothing_is_written(
    ids: torch.Tensor, values: np.ndarray, rule: str
) -> None:
    alone = Alone()
    alone.train()
    before = alone.held()

    with pytest.raises(RowWriteError) as refused:
        alone.optimizer.write_rows(alone.rows.table, ids.numpy(), values)

    assert rule in str(refused.value)
    np.testing.assert_array_equal(alone.held(), before)


def test_rows_are_not_written_while_gradients_wait_nor_after_the_end(tmp_path: Path) -> None:
    alone = Alone()
    write = alone.optimizer.write_rows
    alone.rows(IDS).sum().backward()
    with pytest.raises(RowWriteError, match="gradients of table 'rows' wait for their step"):
        write(alone.rows.table, np.arange(2), given(2))
    alone.optimizer.step()
    write(alone.rows.table, np.arange(2), given(2))
    with pytest.raises(TableUnknownError):
        write(fleet.nn.Embedding(9, 3, name="x").table, np.arange(2), given(2))
    with pytest.raises(RuntimeError), alone.optimizer.loading(str(tmp_path)):
        raise RuntimeError
    with pytest.raises(LoadIncompleteError):
        write(alone.rows.table, np.arange(2), given(2))
    alone.optimizer.end_load()
    alone.optimizer.finish()
    with pytest.raises(TrainingFinishedError):
        write(alone.rows.table, np.arange(2), given(2))


def test_rows_that_count_their_use_are_not_written() -> None:
    rows = fleet.nn.Embedding(9, 5, name="rows", accessor=fleet.nn.CtrAccessor())
    session = Session()
    session.init(RoleMaker(distributed=False))
    session.distributed_model(torch.nn.ModuleList([rows]))
    optimizer = session.distributed_optimizer(torch.optim.SGD(rows.parameters(), lr=0.1))

    with pytest.raises(RowWriteError, match="its rows count their use"):
        optimizer.write_rows(rows.table, np.arange(2), given(2, rows.table.dim))


def test_a_replica_takes_written_rows_as_agreed_and_knows_which_differ() -> None:
    replica = RowReplica(
        RowStore(TableSpec(name="rows", kind="sparse", dim=3)), worker_num=2, merge="remainder"
    )
    ids, values = np.arange(6), given(6)
    replica.install(ids[:4], values[:4])
    replica.store.values[replica.store.slots(ids[2:3])] += 1
    replica.touch(replica.store.slots(ids[:4]))

    assert replica.differ(ids, values).tolist() == [False, False, True, False, True, True]

    replica.install(ids, values)
    assert not replica.differ(ids, values).any()
    np.testing.assert_array_equal(replica.store.column(OLD)[:6], values)
    assert not replica.take_rest().values.any()
