"""Schedules, steps and positions are a part of checkpoints."""

import copy
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

import paramfleet as fleet
from paramfleet.config.roles import RoleMaker
from paramfleet.model_state.plain import pack
from paramfleet.session.backends.resuming import take_progress
from paramfleet.session.checkpoint.saving import Saving
from paramfleet.session.registered import (
    Registered,
    RegisteredStateError,
    RegistrationError,
    SavedProgress,
)
from paramfleet.session.saved_progress import read_progress
from paramfleet.session.session import Session
from paramfleet_shared.checkpoint.manifest import ManifestError, read_manifest

SCHEDULES: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "step": lambda o: lr_scheduler.StepLR(o, 2, gamma=0.5),
    "multistep": lambda o: lr_scheduler.MultiStepLR(o, [2, 4, 4, 7], gamma=0.5),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 20),
    "one_cycle": lambda o: lr_scheduler.OneCycleLR(
        o, 0.4, total_steps=30, cycle_momentum=False
    ),
    "cyclic": lambda o: lr_scheduler.CyclicLR(
        o, 0.1, 0.4, step_size_up=3, cycle_momentum=False
    ),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 / (1 + step)),
    "warm_up": lambda o: lr_scheduler.SequentialLR(
        o,
        [lr_scheduler.LinearLR(o, total_iters=3), lr_scheduler.ExponentialLR(o, 0.9)],
        milestones=[4],
    ),
}


class Script:
    """A training alone, as a script writes it."""

    def __init__(
        self, schedule: Callable[[torch.optim.Optimizer], Any], **objects: Any
    ) -> None:
        self.session = Session()
        self.session.init(RoleMaker(distributed=False))
        model = self.session.distributed_model(torch.nn.Linear(2, 1))
        inner = torch.optim.Adagrad(model.parameters(), lr=0.4)
        self.optimizer = self.session.distributed_optimizer(inner)
        self.scheduler = schedule(self.optimizer)
        self.session.register_for_checkpointing(scheduler=self.scheduler, **objects)
        self.saving = Saving(self.session)
        self.model = model

    def steps(self, count: int) -> list[float]:
        """Take steps, and return the learning rate of each."""
        rates = []
        for _ in range(count):
            rates.append(float(self.optimizer.param_groups[0]["lr"]))
            self.optimizer.minimize(self.model(torch.ones(1, 2)).sum())
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # SequentialLR's own, of torch
                self.scheduler.step()
        return rates


@pytest.fixture(autouse=True)
def quiet() -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*lr_scheduler.step.*")
        warnings.filterwarnings("ignore", category=UserWarning, module="torch.optim")
        yield


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_and_the_steps_come_back(tmp_path: Path, name: str) -> None:
    script = Script(SCHEDULES[name])
    script.steps(5)
    script.saving.save_persistables(tmp_path / "one")
    expected = script.steps(6)

    other = Script(SCHEDULES[name])
    assert other.saving.load_model(tmp_path / "one") == []

    assert other.optimizer.num_steps == 5
    assert other.steps(6) == expected


def test_a_plateau_comes_back(tmp_path: Path) -> None:
    def schedule(optimizer: torch.optim.Optimizer) -> Any:
        return lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)

    script = Script(schedule)
    for loss in (3.0, 2.0, 2.0):
        script.scheduler.step(loss)
    script.saving.save_persistables(tmp_path / "one")

    other = Script(schedule)
    other.saving.load_model(tmp_path / "one")
    other.scheduler.step(2.0)

    assert other.optimizer.param_groups[0]["lr"] == pytest.approx(0.04)


@pytest.mark.parametrize("often", [True, False], ids=["each step", "each epoch"])
def test_a_checkpoint_inside_a_step_knows_that_the_schedule_steps_behind_it(
    tmp_path: Path, *, often: bool
) -> None:
    def train(script: Script, steps: range) -> list[float]:
        rates = []
        for step in steps:
            rates.append(script.optimizer.param_groups[0]["lr"])
            script.optimizer.minimize(script.model(torch.ones(1, 2)).sum())
            if often or step % 4 == 3:
                script.scheduler.step()
        return rates

    script = Script(SCHEDULES["cosine"])
    saved = []

    def save() -> None:
        if script.optimizer.num_steps in {5, 6}:  # 5 is the first one of an epoch
            saved.append(tmp_path / str(script.optimizer.num_steps))
            script.saving.save_persistables(saved[-1])

    script.session.between_steps = save
    rates = train(script, range(10))

    for folder, steps in zip(saved, (5, 6), strict=True):
        other = Script(SCHEDULES["cosine"])
        other.saving.load_model(folder)
        assert other.optimizer.num_steps == steps
        assert train(other, range(steps, 10)) == rates[steps:]


def test_a_position_comes_back_exactly(tmp_path: Path) -> None:
    numbers = tmp_path / "numbers"
    numbers.write_text("".join(f"1 {number}\n" for number in range(10)))

    def dataset() -> Any:
        made = fleet.data.QueueDataset()
        made.init(batch_size=2, use_var=[fleet.data.Slot("n")])
        made.set_filelist([str(numbers)])
        return made

    data = dataset()
    script = Script(SCHEDULES["step"], data=data)
    seen = []
    for batch in data:
        seen += batch["n"].values.tolist()
        script.steps(1)
        if len(seen) == 6:
            break
    script.saving.save_persistables(tmp_path / "one")

    later = dataset()
    other = Script(SCHEDULES["step"], data=later)
    other.saving.load_model(tmp_path / "one")

    assert [n for batch in later for n in batch["n"].values.tolist()] == [6, 7, 8, 9]


def test_what_a_checkpoint_lacks_stays_and_is_named(tmp_path: Path) -> None:
    script = Script(SCHEDULES["step"])
    script.saving.save_persistables(tmp_path / "one")
    counter = lr_scheduler.StepLR(torch.optim.SGD([torch.zeros(1)], lr=1.0), 1)

    other = Script(SCHEDULES["step"], later=counter)

    assert other.saving.load_model(tmp_path / "one") == ["later"]


class Odd:
    def state_dict(self) -> dict[str, Any]:
        return {"code": print}

    def load_state_dict(self, state: Any) -> None:
        raise AssertionError(state)


def test_what_is_not_plain_is_left_out_by_name(tmp_path: Path) -> None:
    Script(SCHEDULES["step"], odd=Odd()).saving.save_persistables(tmp_path / "one")

    progress = read_manifest(tmp_path / "one").progress
    assert progress is not None
    assert "builtin_function" in progress.not_saved["states/odd"]
    other = Script(SCHEDULES["step"], odd=Odd())
    assert other.saving.load_model(tmp_path / "one") == ["odd"]


@pytest.mark.parametrize(
    ("state", "rule"),
    [
        ({"dict": {"step": 3}}, "'step', which a StepLR doesn't have"),
        ({"dict": {"optimizer": None}}, "'optimizer', which"),
        ({"dict": {"base_lrs": "x"}}, "'base_lrs' of type str"),
        ({"dict": {"_last_lr": [{"float": "nan"}]}}, "learning rate"),
        (
            {"dict": {"_last_lr": [0.1, 0.1]}},
            "of 2 parameter groups, and the optimizer has 1: .* leave 'scheduler' unregistered",
        ),
        ({"dict": {"step_size": 0}}, "ZeroDivisionError"),
        ({"dict": {"step_size": 0, "last_epoch": 0}}, "ZeroDivisionError"),
        (["x"], "'x', which"),
        (7, "TypeError"),
    ],
)
def test_a_schedule_takes_no_state_of_something_else(
    tmp_path: Path, state: Any, rule: str
) -> None:
    script = Script(SCHEDULES["step"])
    script.saving.save_persistables(tmp_path / "one")
    rewrite(tmp_path / "one", {"states/scheduler": state})
    before = script.scheduler.state_dict()
    script.optimizer.minimize(script.model(torch.ones(1, 2)).sum())
    weight = script.model.weight.clone()

    with pytest.raises(RegisteredStateError, match=rule) as caught:
        script.saving.load_model(tmp_path / "one")

    assert "'scheduler'" in str(caught.value)
    assert script.scheduler.state_dict() == before
    assert torch.equal(script.model.weight, weight)
    assert script.optimizer.num_steps == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"steps": -1},
        {"steps": "7"},
        {"steps": 2**54},
        {"steps": True},
        {"workers": 0},
        {"pending": [1]},
        {"states/scheduler": {"tensor": "gone", "dtype": "float32", "shape": [1]}},
        {"positions/x/data": {}},
        {"other": 1},
        {"states/scheduler": {"counter": [[1]]}},
    ],
)
def test_a_malformed_progress_is_refused_before_anything_is_loaded(
    tmp_path: Path, wrong: dict[str, Any]
) -> None:
    script = Script(SCHEDULES["step"])
    script.saving.save_persistables(tmp_path / "one")
    rewrite(tmp_path / "one", wrong)
    script.steps(2)
    before = script.model.weight.clone()

    with pytest.raises(ManifestError, match="manifest"):
        script.saving.load_model(tmp_path / "one")

    assert torch.equal(script.model.weight, before)


def rewrite(folder: Path, documents: dict[str, Any]) -> None:
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["progress"]["extra"] |= documents
    path.write_text(json.dumps(manifest))


def test_only_what_has_states_can_be_registered_and_the_last_by_a_name_counts() -> None:
    registered = Registered()
    with pytest.raises(RegistrationError, match="no state_dict"):
        registered.add({"x": object()})
    with pytest.raises(RegistrationError, match="a name must be"):
        registered.add({"a/b": Odd()})
    assert not registered
    registered.add({"x": Odd()})
    registered.add({"x": Spread()})
    assert registered.has_positions


class Place:
    """A position that follows from those of other workers."""

    def __init__(self) -> None:
        self.at: Any = 0

    def __iter__(self) -> Any:
        return iter(())

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: Any) -> None:
        self.at = state["at"]


@pytest.mark.parametrize("often", [True, False], ids=["each step", "each epoch"])
def test_a_load_inside_a_step_leaves_the_schedule_its_step_behind_it(
    tmp_path: Path, *, often: bool
) -> None:
    def train(script: Script, steps: int) -> list[float]:
        rates = []
        for _ in range(steps):
            rates.append(script.optimizer.param_groups[0]["lr"])
            script.optimizer.minimize(script.model(torch.ones(1, 2)).sum())
            if often or script.optimizer.num_steps % 4 == 3:
                script.scheduler.step()
        return rates

    script = Script(SCHEDULES["cosine"])
    loaded: list[list[str]] = []

    def act() -> None:
        steps = script.optimizer.num_steps
        if steps == 6:
            script.saving.save_persistables(tmp_path / "six")
        if steps == 14 and not loaded:
            loaded.append(script.saving.load_model(tmp_path / "six"))

    script.session.between_steps = act
    rates = train(script, 14)
    again = train(script, 8)

    assert loaded == [[]]
    assert script.optimizer.num_steps == 14
    assert again == rates[6:]


def test_positions_stay_where_only_the_model_goes_back() -> None:
    place = Place()
    registered = Registered()
    registered.add({"a": place})
    before = place.at
    saved = SavedProgress(positions={0: {"a": {"at": before + 3}}})

    with registered.taking(saved, rank=0, workers=1, positions=False) as lacking:
        assert lacking == {}

    assert place.at == before


class Spread(Place):
    def reshard(self, states: Any, rank: int, size: int) -> Any:
        return {"at": sum(state["at"] for state in states) + 100 * rank + 10 * size}


class Reader(Place):
    """A reader of a user's own, which counts epochs."""

    def __init__(self) -> None:
        super().__init__()
        self.epoch = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state: Any) -> None:
        self.at, self.epoch = state["at"], state["epoch"]


def test_positions_are_each_worker_s_own_and_spread_where_they_can() -> None:
    saved = SavedProgress(
        workers=2, positions={rank: {"a": {"at": rank + 1}} for rank in range(2)}
    )
    fixed, spread = Place(), Spread()
    for each in (fixed, spread):
        registered = Registered()
        registered.add({"a": each})
        assert registered.take(saved, rank=1, workers=2) == []
        assert each.at == 2
        assert registered.take(saved, rank=2, workers=3) == (["a"] if each is fixed else [])
    assert (fixed.at, spread.at) == (2, 233)
    registered = Registered()
    registered.add({"a": spread})
    lacking = SavedProgress(workers=3, positions=saved.positions)
    assert registered.take(lacking, rank=0, workers=1) == ["a"]


def test_a_reader_that_cannot_reshard_keeps_its_epoch_and_begins_it_anew() -> None:
    states = [{"at": 7, "epoch": 4}, {"at": 1, "epoch": 5}]
    saved = SavedProgress(workers=2, positions={r: {"a": s} for r, s in enumerate(states)})
    reader = Reader()
    registered = Registered()
    registered.add({"a": reader})
    reader.at = 3  # as where a load comes in the middle

    with registered.taking(saved, rank=2, workers=3) as lacking:
        assert lacking["a"].endswith("; epoch 4 starts from its beginning")

    assert (reader.epoch, reader.at) == (4, 0)
    with registered.taking(saved, rank=1, workers=2) as lacking:
        assert lacking == {}
    assert (reader.epoch, reader.at) == (5, 1)


def test_what_does_not_come_back_is_named_with_why_and_what_to_do(
    caplog: pytest.LogCaptureFixture,
) -> None:
    script = Script(SCHEDULES["step"], place=Place(), odd=Odd(), mine=Place())
    positions = {rank: {"place": {"at": rank}} for rank in range(2)}
    not_saved = {"states/odd": "its value is a function", "positions/0/mine": "too deep"}
    saved = SavedProgress(workers=2, positions=positions, not_saved=not_saved)
    one = SavedProgress(workers=1, not_saved=not_saved)

    for each in (saved, one):
        take_progress(script.session.backend, script.optimizer, each, "x")

    two = (
        "it was saved by 2 workers, and there are 1 now; a Place has no reshard(states, rank, "
        "size)"
    )
    other, same = (vars(r) for r in caplog.records if r.getMessage() == "worker.not_resumed")
    assert other["reasons"] == {
        "scheduler": "the checkpoint has no state of it",
        "place": f"{two}; no epoch of it is known: it stays as it is",
        "odd": "it wasn't saved: its value is a function",
        "mine": f"{two}; no epoch of it is known: it stays as it is",
    }
    assert other["remedy"] == (
        "load with 2 workers to continue from positions, or give their objects a "
        "reshard(states, rank, size)"
    )
    assert same["reasons"]["place"] == "the checkpoint has no position of worker 0"
    assert same["reasons"]["mine"] == "it wasn't saved: too deep"
    assert same["remedy"] == "they stay as they are"
    assert other["folder"] == "x"


def test_a_state_that_does_not_fit_leaves_all_others_as_they_were(tmp_path: Path) -> None:
    numbers = tmp_path / "numbers"
    numbers.write_text("".join(f"1 {number}\n" for number in range(4)))
    data = fleet.data.InMemoryDataset()
    data.init(batch_size=2, use_var=[fleet.data.Slot("n")], seed=3)
    data.set_filelist([str(numbers)])
    data.load_into_memory()
    weights = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(weights.parameters(), lr=0.4)
    schedule = lr_scheduler.SequentialLR(
        optimizer,
        [lr_scheduler.LinearLR(optimizer), lr_scheduler.StepLR(optimizer, 2)],
        milestones=[2],
    )
    objects: dict[str, Any] = {
        "place": Place(),
        "weights": weights,
        "schedule": schedule,
        "data": data,
    }
    registered = Registered()
    registered.add({**objects, "last": Place()})
    other = torch.nn.Linear(1, 1)
    later = lr_scheduler.SequentialLR(
        optimizer,
        [lr_scheduler.LinearLR(optimizer), lr_scheduler.StepLR(optimizer, 2)],
        milestones=[3],
    )
    later._schedulers[0].last_epoch = 3
    for group in optimizer.param_groups:
        group["lr"] = 0.4
    states = {name: copy.deepcopy(each.state_dict()) for name, each in objects.items()}
    saved = SavedProgress(
        steps=7,
        states={"schedule": later.state_dict(), "weights": other.state_dict()},
        positions={0: {"place": {"at": 9}, "data": states["data"] | {"row": 2}, "last": {}}},
    )

    with pytest.raises(RegisteredStateError, match="'last' doesn't fit: KeyError"):
        registered.take(saved, rank=0, workers=1)

    for name, each in objects.items():
        assert pack(each.state_dict()) == pack(states[name])
    assert optimizer.param_groups[0]["lr"] == 0.4
    assert registered.positions()["place"] == {"at": 0}
    assert [batch["n"].values.tolist() for batch in data] == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    ("now", "rule"),
    [
        (torch.nn.Linear(4, 2), "size mismatch for weight"),
        (torch.nn.Linear(3, 2, bias=False), "Unexpected key"),
    ],
    ids=["shape", "keys"],
)
def test_a_module_s_state_that_does_not_fit_is_named(now: torch.nn.Linear, rule: str) -> None:
    registered = Registered()
    registered.add({"head": now})
    saved = SavedProgress(states={"head": torch.nn.Linear(3, 2).state_dict()})
    before = now.weight.clone()

    with pytest.raises(RegisteredStateError, match=f"(?s)'head' doesn't fit: .*{rule}"):
        registered.take(saved, rank=0, workers=1)

    assert torch.equal(now.weight, before)


class Broken(Place):
    """One that takes no state any more, not even its own."""

    def __init__(self, error: type[BaseException]) -> None:
        super().__init__()
        self.error = error

    def load_state_dict(self, state: Any) -> None:
        super().load_state_dict(state)
        raise self.error("boom")


@pytest.mark.parametrize(
    "error",
    [RuntimeError, OSError, AssertionError, StopIteration, KeyboardInterrupt, SystemExit],
)
def test_one_that_takes_not_even_its_own_state_keeps_no_other_from_it(
    error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    weights = torch.nn.Linear(1, 1)
    objects: dict[str, Any] = {"weights": weights, "broken": Broken(error)}
    registered = Registered()
    registered.add(objects)
    before = weights.weight.clone()
    saved = SavedProgress(
        states={"weights": torch.nn.Linear(1, 1).state_dict()},
        positions={0: {"broken": {"at": 9}}},
    )

    with pytest.raises((error, RegisteredStateError), match="boom") as caught:
        registered.take(saved, rank=0, workers=1)

    assert torch.equal(weights.weight, before)
    assert objects["broken"].at == 0
    (note,) = caught.value.__notes__
    assert "state of 'broken' was not put back" in note
    assert "boom" in note
    (record,) = caplog.records
    assert record.message == "worker.state_not_put_back"
    assert vars(record)["registered"] == "broken"


class Interrupted(Place):
    """One during whose way back the user interrupts."""

    def load_state_dict(self, state: Any) -> None:
        if state == {"at": 0}:
            raise KeyboardInterrupt
        raise ValueError("unfit")


def test_an_interrupt_while_states_are_put_back_ends_the_script() -> None:
    objects = {"first": Place(), "second": Interrupted()}
    registered = Registered()
    registered.add(objects)
    saved = SavedProgress(positions={0: {"first": {"at": 9}, "second": {"at": 9}}})

    with pytest.raises(KeyboardInterrupt):
        registered.take(saved, rank=0, workers=1)

    assert objects["first"].at == 0


class Meter:
    """What a script adds losses to: its tensor has a graph."""

    def __init__(self) -> None:
        self.total = torch.zeros(())
        self.parts = [self.total]

    def add(self, loss: torch.Tensor) -> None:
        self.total = self.total * 0.9 + loss
        self.parts.append(self.total)

    def state_dict(self) -> dict[str, Any]:
        return {"total": self.total, "parts": self.parts}

    def load_state_dict(self, state: Any) -> None:
        self.total, self.parts[:] = state["total"], state["parts"]


def test_a_state_with_a_graph_is_loaded_and_put_back(tmp_path: Path) -> None:
    def add(meter: Meter) -> None:
        meter.add(torch.ones((), requires_grad=True) * 2)

    meter = Meter()
    script = Script(SCHEDULES["step"], meter=meter)
    add(meter)
    script.saving.save_persistables(tmp_path / "one")
    add(meter)

    script.saving.load_model(tmp_path / "one")

    assert meter.total.item() == 2
    add(meter)
    script.session.register_for_checkpointing(broken=Broken(ValueError))
    states = {"meter": {"total": torch.zeros(()), "parts": []}}
    saved = SavedProgress(states=states, positions={0: {"broken": {"at": 1}}})
    with pytest.raises(RegisteredStateError, match="boom"):
        script.session.registered.take(saved, rank=0, workers=1)
    assert [part.item() for part in meter.parts] == pytest.approx([0, 2, 3.8])
    assert meter.total.item() == pytest.approx(3.8)


def test_steps_are_those_of_before_where_a_state_does_not_fit(tmp_path: Path) -> None:
    script = Script(SCHEDULES["step"])
    script.saving.save_persistables(tmp_path / "one")
    rewrite(tmp_path / "one", {"states/scheduler": 7, "steps": 5})
    progress = read_progress(tmp_path / "one", read_manifest(tmp_path / "one"))

    with pytest.raises(RegisteredStateError):
        take_progress(script.session.backend, script.optimizer, progress, "")

    assert script.optimizer.num_steps == 0


def test_a_dataset_in_memory_comes_back_with_its_shuffles(tmp_path: Path) -> None:
    numbers = tmp_path / "numbers"
    numbers.write_text("".join(f"1 {number}\n" for number in range(10)))

    def dataset() -> Any:
        made = fleet.data.InMemoryDataset()
        made.init(batch_size=2, use_var=[fleet.data.Slot("n")], seed=3)
        made.set_filelist([str(numbers)])
        return made

    def use(script: Script, data: Any, most: int) -> list[int]:
        data.load_into_memory()
        data.local_shuffle()
        seen: list[int] = []
        for batch in data:
            seen += batch["n"].values.tolist()
            script.steps(1)
            if len(seen) == most:
                break
        return seen

    data = dataset()
    script = Script(SCHEDULES["step"], data=data)
    seen = use(script, data, 6)
    data.release_memory()
    script.saving.save_persistables(tmp_path / "one")

    later = dataset()
    other = Script(SCHEDULES["step"], data=later)
    assert other.saving.load_model(tmp_path / "one") == []
    other.saving.save_persistables(tmp_path / "two")  # before anything is in memory again
    last = dataset()
    third = Script(SCHEDULES["step"], data=last)
    third.saving.load_model(tmp_path / "two")

    assert sorted(seen + use(third, last, 10)) == list(range(10))


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_who_takes_a_worker_s_place_goes_on_with_its_schedule(name: str) -> None:
    """Where it was is taken inside the step, before the schedule has taken its own."""
    kept: list[SavedProgress] = []
    script = keeping(SCHEDULES[name], kept)
    rates = script.steps(12)

    for taken in range(2, 12):  # of the first step nobody knows what follows it
        other = Script(SCHEDULES[name])
        other.session.registered.take(kept[taken - 1], rank=0, workers=1)
        assert other.steps(12 - taken) == pytest.approx(rates[taken:], abs=0.0), taken


def keeping(
    schedule: Callable[[torch.optim.Optimizer], Any], kept: list[SavedProgress]
) -> Script:
    """Return a training that notes in each step what a successor goes on from."""
    script = Script(schedule)
    registered, optimizer = script.session.registered, script.optimizer
    optimizer._between_steps = _before(
        optimizer._between_steps,
        lambda: kept.append(registered.kept(rank=0, steps=optimizer.num_steps, workers=1)),
    )
    return script


def _before(then: Callable[[], None], first: Callable[[], None]) -> Callable[[], None]:
    def both() -> None:
        first()
        then()

    return both


def test_a_state_that_is_not_plain_is_left_out_and_named() -> None:
    class Odd:
        def state_dict(self) -> dict[str, Any]:
            return {"what": object()}

        def load_state_dict(self, state: dict[str, Any]) -> None: ...

    class OddData(Odd):
        def __iter__(self) -> Any: ...

    registered = Registered()
    registered.add({"odd": Odd(), "data": OddData()})

    found = registered.kept(rank=3, steps=5, workers=4)

    assert (found.steps, found.states, found.positions) == (5, {}, {})
    assert sorted(found.not_saved) == ["positions/3/data", "states/odd"]


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_a_worker_may_be_replaced_again_right_after_its_first_step(name: str) -> None:
    rates = Script(SCHEDULES[name]).steps(8)
    kept: list[SavedProgress] = []
    keeping(SCHEDULES[name], kept).steps(taken := 3)

    for number in range(taken, 7):
        following: list[SavedProgress] = []
        script = keeping(SCHEDULES[name], following)
        script.session.registered.take(kept[-1], rank=0, workers=1)
        assert script.steps(1) == pytest.approx(rates[number : number + 1], abs=0.0), number
        kept = following
