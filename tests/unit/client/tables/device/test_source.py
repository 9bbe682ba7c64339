"""Training reads and steps rows on the device during a pass, as it does without one."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal

import paramfleet as fleet
from paramfleet.session.session import Session
from paramfleet.tables.device.pass_ids import IdOutsidePassError, IdSet, PassIds
from paramfleet.tables.device.source import DeviceSource
from paramfleet.tables.device.table import DeviceRows, DeviceTable, layout_of
from paramfleet.tables.row_store import spec_of
from paramfleet.tables.rules import server_rule
from paramfleet.training.modes.local import LocalMode
from paramfleet.training.modes.rowstep import RowStepper
from paramfleet_shared.tables.rowstore import initial_rows
from paramfleet_shared.tables.spec import OptimizerSpec

Make = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]
Batch = tuple[torch.Tensor, torch.Tensor]

OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda values: torch.optim.SGD(values, lr=0.1),
    "momentum": lambda values: torch.optim.SGD(values, lr=0.1, momentum=0.9),
    "adagrad": lambda values: torch.optim.Adagrad(values, lr=0.1),
    "adam": lambda values: torch.optim.Adam(values, lr=0.01),
    "ftrl": lambda values: fleet.optim.FTRL(values, lr=0.1, l1=1e-3),
}


class Model(torch.nn.Module):
    """Two modules that share a table, and a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        self.items = fleet.nn.Embedding(0, 4, name="items", seed=3)
        self.bags = fleet.nn.EmbeddingBag(0, 4, name="items", seed=3, mode="sum")
        torch.manual_seed(1)
        self.dense = torch.nn.Linear(8, 1)

    def forward(self, ids: torch.Tensor, bags: torch.Tensor) -> torch.Tensor:
        """Return [B, 1] of ids [B] and bags [B, n]."""
        scores: torch.Tensor = self.dense(torch.cat([self.items(ids), self.bags(bags)], 1))
        return scores


class Trained:
    """A model that trains in this process.

    Args:
        make: Makes its optimizer.
    """

    def __init__(self, make: Make) -> None:
        session = Session()
        session.init()
        self.model = session.distributed_model(Model())
        self.optimizer = session.distributed_optimizer(make([*self.model.parameters()]))
        mode = self.optimizer.running
        assert isinstance(mode, LocalMode)
        (self.stepper,) = mode.steppers

    def train(self, batches: list[Batch]) -> list[float]:
        """Return the loss of each batch."""
        losses = []
        for ids, bags in batches:
            loss = (self.model(ids, bags) - 1.0).square().mean()
            self.optimizer.minimize(loss)
            losses.append(loss.item())
        return losses

    def rows(self) -> DeviceRows:
        """Return the store's rows with their states, by id."""
        store, rule = self.stepper.store, rule_of(self.stepper)
        ids = np.sort(store.live_ids())
        slots = store.held(ids)
        columns = [store.column(column.name)[slots] for column in rule.columns]
        return DeviceRows(ids, np.concatenate([store.values[slots], *columns], axis=1))


def rule_of(stepper: RowStepper) -> OptimizerSpec:
    return server_rule(stepper._optimizer, stepper._group, sparse=True)


def by_id(rows: DeviceRows) -> DeviceRows:
    order = np.argsort(rows.ids)
    return DeviceRows(rows.ids[order], rows.rows[order])


def batches_of(num: int, *, seed: int = 0) -> list[Batch]:
    dice = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randint(0, 40, (16,), generator=dice),
            torch.randint(20, 60, (16, 3), generator=dice),
        )
        for _ in range(num)
    ]


def begin_pass(trained: Trained, batches: list[Batch]) -> DeviceSource:
    """Bring new rows of all ids to the device."""
    stepper = trained.stepper
    spec = spec_of(stepper.table, rule=rule_of(stepper))
    known = IdSet(spec.name)
    known.try_to_add(
        torch.cat([each.reshape(-1) for batch in batches for each in batch]).numpy()
    )
    known.keep()
    ids = PassIds.of(spec.name, known)
    rows = layout_of(spec).new_rows(len(ids.ids))
    rows[:, : spec.dim] = initial_rows(spec, ids.ids)
    table = DeviceTable(spec, device=torch.device("cpu"))
    table.begin(ids, DeviceRows(ids.new_ids, rows))
    stepper.device = DeviceSource(table, stepper.store)
    stepper.table.bind(stepper.device)
    return stepper.device


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_pass_trains_to_the_bits_of_one_process(name: str) -> None:
    batches = batches_of(8)
    plain, passing = Trained(OPTIMIZERS[name]), Trained(OPTIMIZERS[name])
    device = begin_pass(passing, batches)
    assert passing.train(batches) == plain.train(batches)
    expected, written = plain.rows(), by_id(device.rows.stepped())
    assert_array_equal(written.ids, expected.ids)
    assert_array_equal(written.rows, expected.rows)
    for mine, its in zip(
        plain.model.dense.parameters(), passing.model.dense.parameters(), strict=True
    ):
        assert torch.equal(mine, its)
    assert passing.stepper.store.num_rows == 0
    assert passing.stepper.num_steps == plain.stepper.num_steps == 8


def test_a_changed_constant_of_the_rule_counts_from_the_next_step_on() -> None:
    batches = batches_of(4)
    plain, passing = (Trained(OPTIMIZERS["momentum"]) for _ in range(2))
    device = begin_pass(passing, batches)
    for trained in (plain, passing):
        trained.train(batches[:2])
        trained.optimizer.param_groups[0]["momentum"] = 0.5
        trained.train(batches[2:])
    assert_array_equal(by_id(device.rows.stepped()).rows, plain.rows().rows)


def test_a_prepared_batch_is_not_searched_for() -> None:
    trained, batches = Trained(OPTIMIZERS["sgd"]), batches_of(1)
    device = begin_pass(trained, batches)
    ids, places = batches[0][0][:2].numpy(), torch.tensor([1, 0])
    device.begin_batch(0, [(ids, places)])
    assert device.places(ids) is places
    assert device.places(ids.copy()) is not places


def test_an_id_of_no_batch_is_refused_in_training_by_batch() -> None:
    trained, batches = Trained(OPTIMIZERS["sgd"]), batches_of(2)
    device = begin_pass(trained, batches)
    device.begin_batch(5, [])
    with pytest.raises(IdOutsidePassError, match="id 77 of batch 5"):
        trained.model(torch.tensor([77]), torch.tensor([[20]]))


def test_evaluation_reads_rows_of_the_pass_and_others() -> None:
    batches = batches_of(3)
    plain, passing = (Trained(OPTIMIZERS["adagrad"]) for _ in range(2))
    begin_pass(passing, batches)
    ids, bags = torch.tensor([1, 99, 2]), torch.tensor([[98, 21], [97, 30], [99, 99]])
    scores = []
    for trained in (plain, passing):
        trained.train(batches)
        trained.model.eval()
        scores.append(trained.model(ids, bags))
    assert torch.equal(*scores)
    assert passing.stepper.store.num_rows == 0
