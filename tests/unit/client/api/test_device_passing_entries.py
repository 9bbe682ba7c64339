"""Passes train tables whose ids need to be admitted, or whose rows go, as one process does."""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest
import torch

import paramfleet as fleet
from paramfleet.api.device_passing import DevicePassing
from paramfleet.api.shrinking import Shrinking
from paramfleet.config.roles import RoleMaker
from paramfleet.nn import CountFilterEntry, CtrAccessor, ProbabilityEntry
from paramfleet.session.session import Session
from paramfleet.tables.device.table import bytes_of
from paramfleet.tables.row_store import RowStore
from paramfleet.training.modes.local import LocalMode
from paramfleet_shared.tables.rowstore import SlotIndex

START = fleet.nn.uniform(-0.5, 0.5)


class Process:
    """One table and a dense layer, trained in this process alone."""

    def __init__(
        self, configs: dict[str, Any], rule: Any = torch.optim.Adagrad, **options: Any
    ) -> None:
        self.session = Session()
        self.session.init(RoleMaker(distributed=False))
        self.counts = options.get("accessor") is not None
        torch.manual_seed(1)
        rows = fleet.nn.Embedding(0, 2, name="t", initializer=START, **options)
        self.model = self.session.distributed_model(
            torch.nn.ModuleDict({"rows": rows, "dense": torch.nn.Linear(2, 1)})
        )
        self.table = rows.table
        strategy = fleet.DistributedStrategy()
        strategy.eviction_configs = configs
        self.optimizer = self.session.distributed_optimizer(
            rule(self.model.parameters(), lr=0.1), strategy
        )
        self.session.init_worker()
        self.passing = DevicePassing(self.session)
        self.shrinking = Shrinking(self.session)
        self.losses: list[float] = []

    def train(self, batches: Iterable[torch.Tensor]) -> None:
        for ids in batches:
            found = self.model["rows"](ids, **({"click": ids % 2} if self.counts else {}))
            loss = (self.model["dense"](found) - 1.0).square().mean()
            self.losses.append(float(loss.detach()))
            self.optimizer.minimize(loss)

    def train_in_passes(
        self, batches: Sequence[torch.Tensor], *, most_rows: int | None = None
    ) -> None:
        mode = self.optimizer.running
        assert isinstance(mode, LocalMode)
        (stepper,) = mode.steppers
        budget = most_rows and most_rows * bytes_of(stepper.served_spec(), 1)
        found = self.passing.device_pass(
            batches, self.model, ids=lambda ids: {"rows": ids}, device_budget=budget
        )
        self.train(found)

    @property
    def store(self) -> RowStore:
        store = self.table.source
        assert isinstance(store, RowStore)
        return store

    @property
    def rows(self) -> dict[int, list[float]]:
        """Return all columns of rows, by id."""
        ids = self.store.live_ids()
        rows = self.store.flat.reshape(-1, self.store.pitch)[self.store.held(ids)]
        return dict(sorted(zip(ids.tolist(), rows.tolist(), strict=True)))


def batches_of(num: int, *, seed: int = 7) -> list[torch.Tensor]:
    dice = torch.Generator().manual_seed(seed)
    drawn = torch.rand(num, 6, generator=dice) ** 3 * 60
    return [ids + 5 * (number // 4) for number, ids in enumerate(drawn.long())]


TABLES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "count": ({}, {"entry": CountFilterEntry(3)}),
    "chance": ({}, {"entry": ProbabilityEntry(0.4)}),
    "cap": ({"max_rows": 17, "every_steps": 0}, {}),
    "count and cap": (
        {"max_rows": 9, "every_steps": 0, "unseen_steps": 30},
        {"entry": CountFilterEntry(2)},
    ),
    "steps": ({"unseen_steps": 5, "every_steps": 0}, {}),
    "accessor": ({}, {"entry": CountFilterEntry(2), "accessor": CtrAccessor()}),
    "accessor and cap": ({"max_rows": 11, "every_steps": 0}, {"accessor": CtrAccessor()}),
}


@pytest.mark.parametrize("most_rows", [None, 30], ids=["whole", "split"])
@pytest.mark.parametrize("name", TABLES)
def test_the_same_ids_get_rows_at_the_same_steps(name: str, most_rows: int | None) -> None:
    configs, options = TABLES[name]
    plain, passes = Process(configs, **options), Process(configs, **options)

    plain.train(batches_of(12))
    passes.train_in_passes(batches_of(12), most_rows=most_rows)
    for each in (plain, passes):  # what was counted in passes holds behind them
        each.train(batches_of(6, seed=8))
    plain.train(batches_of(12, seed=9))
    passes.train_in_passes(batches_of(12, seed=9), most_rows=most_rows)

    assert passes.losses == plain.losses
    assert passes.rows == plain.rows
    if configs:
        gone = [each.optimizer.shrink(each.table, dry_run=True) for each in (plain, passes)]
        assert gone[0] == gone[1]


@pytest.mark.parametrize(
    "rule", [torch.optim.SGD, torch.optim.Adam, fleet.optim.RowwiseAdagrad]
)
def test_rules_step_rows_that_keep_when_they_were_pushed(rule: Any) -> None:
    configs = {"unseen_steps": 5, "every_steps": 0}
    plain, passes = (Process(configs, rule) for _ in range(2))

    plain.train(batches_of(9))
    passes.train_in_passes(batches_of(9))

    assert passes.rows == plain.rows


def test_rows_go_between_two_passes() -> None:
    process = Process({"unseen_steps": 4, "every_steps": 5})
    batches = [torch.tensor([10 * number, 10 * number + 1]) for number in range(12)]

    process.train_in_passes(batches, most_rows=6)

    # passes of 3 batches end after the steps 3, 6, 9 and 12: a multiple of 5 is in two of them
    assert list(process.rows) == [
        id_ for number in range(7, 12) for id_ in (10 * number, 10 * number + 1)
    ]


def test_a_full_table_is_looked_at_behind_each_pass() -> None:
    process = Process({"max_rows": 8, "headroom": 0.5, "every_steps": 30})
    for number in range(4):
        process.train_in_passes([torch.tensor([4 * number + each]) for each in range(4)])
        assert process.store.num_rows <= 8

    assert list(process.rows)[-1] == 15, "there is room for what comes later"


def test_rows_that_went_begin_anew() -> None:
    process = Process({"unseen_steps": 2, "every_steps": 0})
    process.train_in_passes([torch.tensor([1, 2]), torch.tensor([2])])
    process.train_in_passes([torch.tensor([2]), torch.tensor([3])])
    assert process.shrinking.shrink() == {"t": 1}

    process.train_in_passes([torch.tensor([1])])

    other = Process({"unseen_steps": 2, "every_steps": 0})
    other.model["dense"].load_state_dict(process.model["dense"].state_dict())
    assert list(process.rows) == [1, 2, 3]
    assert process.rows[1][-1] != 0


def test_what_no_pass_admits_takes_no_place_in_the_table() -> None:
    process = Process({}, entry=CountFilterEntry(200))
    index = process.store._index
    assert isinstance(index, SlotIndex)

    process.train_in_passes(batches_of(12), most_rows=30)

    assert index.num_slots == 0
    with torch.no_grad():
        first = process.model["rows"](torch.tensor([3]))
    other = Process({}, entry=CountFilterEntry(200))
    assert torch.equal(first, other.model["rows"](torch.tensor([3])))
