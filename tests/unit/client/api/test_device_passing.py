"""``fleet.device_pass`` trains to the bits of one process, however the data is split."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import paramfleet as fleet
from paramfleet.api.device_passing import DevicePassing
from paramfleet.api.removing import Removing
from paramfleet.config.errors import CallOrderError
from paramfleet.config.roles import RoleMaker
from paramfleet.nn.watching import PrefetchError
from paramfleet.session.checkpoint.saving import Saving
from paramfleet.session.session import Session
from paramfleet.tables.device.pass_ids import IdOutsidePassError
from paramfleet.tables.device.plan import DeviceBudgetError
from paramfleet.tables.device.table import bytes_of
from paramfleet.tables.rules import OptimizerNotServedError
from paramfleet.training.modes.local import LocalMode
from paramfleet.training.modes.rowstep import RowStepper
from paramfleet.training.passes.backing import PassOpenError

Make = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]
Batch = tuple[torch.Tensor, torch.Tensor]


def adamw(values: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    rows, dense = values[:2], values[2:]
    return torch.optim.AdamW(
        [{"params": rows, "weight_decay": 0.0}, {"params": dense, "weight_decay": 0.1}], lr=0.01
    )


OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda values: torch.optim.SGD(values, lr=0.1),
    "momentum": lambda values: torch.optim.SGD(values, lr=0.1, momentum=0.9, nesterov=True),
    "adagrad": lambda values: torch.optim.Adagrad(values, lr=0.1),
    "adam": lambda values: torch.optim.Adam(values, lr=0.01),
    "adamw": adamw,
    "ftrl": lambda values: fleet.optim.FTRL(values, lr=0.1, l1=1e-3),
    "rowwise": lambda values: fleet.optim.Combined(
        [
            fleet.optim.RowwiseAdagrad(values[:2], lr=0.1),
            torch.optim.Adagrad(values[2:], lr=0.1),
        ]
    ),
}


class Model(torch.nn.Module):
    """Two tables, one of them used by two modules, and a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        self.users = fleet.nn.Embedding(0, 3, name="users", padding_idx=0)
        self.items = fleet.nn.Embedding(0, 4, name="items", seed=3)
        self.bags = fleet.nn.EmbeddingBag(0, 4, name="items", seed=3, mode="mean")
        torch.manual_seed(1)
        self.dense = torch.nn.Linear(11, 1)

    def forward(self, ids: torch.Tensor, bags: torch.Tensor) -> torch.Tensor:
        """Return [B, 1] of ids [B, 2], of users and items, and bags [B, n]."""
        found = [self.users(ids[:, 0]), self.items(ids[:, 1]), self.bags(bags)]
        scores: torch.Tensor = self.dense(torch.cat(found, 1))
        return scores


class Stateful:
    """A loader that says how many of its batches were read.

    Args:
        batches: They.
    """

    def __init__(self, batches: list[Batch]) -> None:
        self.batches = batches
        self.place = 0

    def __iter__(self) -> Iterator[Batch]:
        while self.place < len(self.batches):
            self.place += 1
            yield self.batches[self.place - 1]
        self.place = 0

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state["place"]


class Process:
    """A model that trains in this process alone."""

    def __init__(self, make: Make = OPTIMIZERS["adagrad"]) -> None:
        self.session = Session()
        self.session.init(RoleMaker(distributed=False))
        self.model = self.session.distributed_model(Model())
        users, items, *dense = dict.fromkeys(self.model.parameters())
        self.optimizer = self.session.distributed_optimizer(make([users, items, *dense]))
        self.passing = DevicePassing(self.session)
        self.saving = Saving(self.session)

    def step(self, batch: Batch) -> float:
        loss = (self.model(*batch) - 1.0).square().mean()
        self.optimizer.minimize(loss)
        return float(loss.detach())

    def saved(self, folder: Path) -> dict[str, list[object]]:
        """Return all rows with their states, and dense values."""
        self.saving.save_persistables(folder)
        found: dict[str, list[object]] = {
            name: [value.tolist()] for name, value in self.model.dense.state_dict().items()
        }
        for name in ("users", "items"):
            rows = fleet.load_rows(folder, name)
            found[name] = [rows.ids.tolist(), rows.rows.tolist()]
        return found

    def steppers(self) -> list[RowStepper]:
        mode = self.optimizer.running
        assert isinstance(mode, LocalMode)
        return mode.steppers

    def is_open(self) -> bool:
        return any(stepper.device is not None for stepper in self.steppers())

    @property
    def row_bytes(self) -> int:
        """Return what a row of the wider table takes on a device."""
        return max(bytes_of(stepper.served_spec(), 1) for stepper in self.steppers())


def batches_of(num: int) -> list[Batch]:
    dice = torch.Generator().manual_seed(7)
    return [
        (
            torch.randint(0, 30, (8, 2), generator=dice),
            torch.randint(10 * (number // 3), 40 + 10 * (number // 3), (8, 3), generator=dice),
        )
        for number in range(num)
    ]


@pytest.mark.parametrize("budget_rows", [None, 45], ids=["whole", "split"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_epochs_of_passes_train_to_the_bits_of_one_process(
    name: str, budget_rows: int | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    batches = batches_of(9)
    plain, passing = Process(OPTIMIZERS[name]), Process(OPTIMIZERS[name])
    budget = None if budget_rows is None else budget_rows * passing.row_bytes
    loader = passing.passing.device_pass(batches, passing.model, device_budget=budget)
    caplog.set_level("INFO", logger="paramfleet.training.passes.running")
    for _ in range(2):
        assert [passing.step(batch) for batch in loader] == [plain.step(b) for b in batches]
    assert not passing.is_open()
    # States went back, too: plain training goes on alike.
    assert [passing.step(batch) for batch in batches] == [plain.step(b) for b in batches]
    assert passing.saved(tmp_path / "passing") == plain.saved(tmp_path / "plain")
    passes = [getattr(record, "passes", 0) for record in caplog.records]
    assert max(passes) == 1 if budget is None else max(passes) > 1


def test_lookups_may_be_said_instead_of_watched(tmp_path: Path) -> None:
    batches = batches_of(4)
    plain, passing = Process(), Process()

    def lookups(batch: Batch) -> dict[object, torch.Tensor]:
        ids, bags = batch
        return {passing.model.users: ids[:, 0], "items": ids[:, 1], "bags": bags}

    loader = passing.passing.device_pass(batches, passing.model, ids=lookups)
    assert [passing.step(batch) for batch in loader] == [plain.step(b) for b in batches]
    assert passing.saved(tmp_path / "passing") == plain.saved(tmp_path / "plain")


def test_a_forward_without_training_may_show_the_lookups() -> None:
    plain, passing = Process(), Process()
    batches = batches_of(6)
    expected = [plain.step(batch) for batch in batches]

    with passing.passing.device_pass(
        batches, passing.model, forward=lambda batch: passing.model(*batch)
    ) as loader:
        losses = [passing.step(batch) for batch in loader]

    assert losses == expected
    assert passing.model.training


def test_a_checkpoint_in_a_pass_has_what_was_trained(tmp_path: Path) -> None:
    batches = batches_of(6)
    plain, passing = Process(), Process()
    saved = []
    for number, batch in enumerate(passing.passing.device_pass(batches, passing.model)):
        passing.step(batch)
        plain.step(batch)
        if number == 3:
            assert passing.is_open()
            saved.append(passing.saved(tmp_path / "passing"))
            assert saved == [plain.saved(tmp_path / "plain")]
    assert saved
    assert passing.saved(tmp_path / "again") == plain.saved(tmp_path / "end")


def test_what_was_trained_goes_back_when_the_loop_is_left(tmp_path: Path) -> None:
    batches = batches_of(6)
    plain, passing = Process(), Process()
    with passing.passing.device_pass(batches, passing.model) as loader:
        for number, batch in enumerate(loader):
            passing.step(batch)
            plain.step(batch)
            if number == 3:
                break
            assert passing.is_open() is (number > 0), "the first batch is watched"
    assert not passing.is_open()
    assert passing.saved(tmp_path / "passing") == plain.saved(tmp_path / "plain")


def test_a_load_and_a_removal_wait_for_the_end_of_a_pass(tmp_path: Path) -> None:
    process = Process()
    process.saving.save_persistables(tmp_path / "ck")
    removing = Removing(process.session)
    with process.passing.device_pass(batches_of(3), process.model) as loader:
        batches = iter(loader)
        process.step(next(batches))
        process.step(next(batches))
        with pytest.raises(PassOpenError, match=r"fleet\.load_model\(\) during"):
            process.saving.load_model(tmp_path / "ck")
        with pytest.raises(PassOpenError, match=r"fleet\.remove_rows\(\) during"):
            removing.remove_rows("items", [1])
        with pytest.raises(PassOpenError, match=r"fleet\.device_pass\(\) during"):
            next(iter(process.passing.device_pass(batches_of(1), process.model)))
        process.step(next(batches))
    assert removing.remove_rows("items", range(99)) > 0


def test_evaluation_in_a_pass_reads_rows_of_any_id() -> None:
    batches = batches_of(4)
    plain, passing = Process(), Process()
    other = (torch.tensor([[1, 1], [77, 78]]), torch.tensor([[79], [12]]))
    for batch in passing.passing.device_pass(batches, passing.model):
        scores = []
        for process in (plain, passing):
            process.step(batch)
            process.model.eval()
            scores.append(process.model(*other))
            process.model.train()
        assert torch.equal(*scores)


def test_an_id_that_no_batch_has_is_refused_in_training_and_nothing_is_lost() -> None:
    batches = batches_of(3)
    process = Process()
    with process.passing.device_pass(batches, process.model) as loader:
        each = iter(loader)
        process.step(next(each))
        ids, bags = next(each)
        with pytest.raises(IdOutsidePassError, match="table 'items': id 999 of batch 0"):
            process.model(ids, bags + 999 - bags[:1, :1])
        process.step((ids, bags))


def test_a_batch_larger_than_the_budget_is_refused_before_anything_is_trained() -> None:
    batches = batches_of(3)
    process = Process()
    loader = process.passing.device_pass(batches, process.model, device_budget=100)
    each = iter(loader)
    process.step(next(each))
    with pytest.raises(DeviceBudgetError, match="rows of batch 0 take"):
        next(each)
    assert not process.is_open()


def test_an_optimizer_without_a_rule_is_refused_by_name() -> None:
    process = Process(lambda values: torch.optim.RMSprop(values, lr=0.01))
    each = iter(process.passing.device_pass(batches_of(2), process.model))
    process.step(next(each))
    with pytest.raises(OptimizerNotServedError, match="RMSprop"):
        next(each)


def test_a_module_that_the_model_lacks_is_refused() -> None:
    process = Process()
    loader = process.passing.device_pass(
        batches_of(2), process.model, ids=lambda _: {"towels": torch.tensor([1])}
    )
    with pytest.raises(PrefetchError, match="'towels': is neither"):
        next(iter(loader))


def test_it_needs_an_optimizer() -> None:
    session = Session()
    session.init(RoleMaker(distributed=False))
    nothing: list[Batch] = []
    loader = DevicePassing(session).device_pass(nothing, Model())
    with pytest.raises(CallOrderError, match="distributed_optimizer"):
        list(loader)


def test_nothing_to_train_is_no_pass() -> None:
    process = Process()
    assert list(process.passing.device_pass([], process.model)) == []
    assert len(process.passing.device_pass([1, 2], process.model)) == 2


def test_a_state_is_that_behind_the_batch_in_use_though_all_were_read() -> None:
    process, loader = Process(), Stateful(batches_of(5))
    seen = []
    with process.passing.device_pass(
        loader, process.model, forward=lambda batch: process.model(*batch)
    ) as batches:
        for number, batch in enumerate(batches):
            process.step(batch)
            seen.append(batches.state_dict())
            if number == 2:
                break
    assert seen == [{"place": 1}, {"place": 2}, {"place": 3}]

    again = process.passing.device_pass(Stateful(loader.batches), process.model)
    again.load_state_dict(seen[-1])

    rest = [batch[0] for batch in again]
    assert len(rest) == 2
    assert torch.equal(torch.stack(rest), torch.stack([ids for ids, _ in loader.batches[3:]]))
    assert again.state_dict() == {"place": 0}


def test_a_loader_without_a_state_has_none_to_save() -> None:
    process = Process()
    loader = process.passing.device_pass(batches_of(1), process.model)
    with pytest.raises(PrefetchError, match="a list has no state_dict"):
        loader.state_dict()
    assert loader.reshard is None


def test_what_waits_for_the_end_of_a_pass_is_done_between_two() -> None:
    process, done = Process(), list[int]()
    passing = DevicePassing(
        process.session, between=lambda: done.append(process.optimizer.num_steps)
    )
    budget = 45 * process.row_bytes
    loader = passing.device_pass(
        batches_of(9),
        process.model,
        forward=lambda batch: process.model(*batch),
        device_budget=budget,
    )
    for batch in loader:
        process.step(batch)

    assert done[0] == 0
    assert done[-1] == 9
    assert len(set(done)) > 2, done


def test_no_batch_is_read_when_none_is_wanted() -> None:
    process, loader = Process(), Stateful(batches_of(2))
    passing = DevicePassing(process.session, stops=lambda: True)
    assert list(passing.device_pass(loader, process.model)) == []
    assert loader.place == 0


def test_copies_that_a_forward_makes_on_a_device_show_the_lookups(
    caplog: pytest.LogCaptureFixture,
) -> None:
    process = Process()

    def forward(batch: Batch) -> torch.Tensor:
        ids, bags = (each.to("cpu", copy=True) for each in batch)
        found: torch.Tensor = process.model(ids, bags)
        return found

    caplog.set_level("INFO", logger="paramfleet.training.passes.running")
    for batch in process.passing.device_pass(batches_of(3), process.model, forward=forward):
        process.step(batch)
    (record,) = [each for each in caplog.records if each.message == "worker.device_pass"]
    assert vars(record)["rows"] > 0
