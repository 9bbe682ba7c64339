"""Passes by Paddle's names train as ``fleet.device_pass``, and refuse a wrong order."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import paramfleet as fleet
from paramfleet.api.device_passing import DevicePassing
from paramfleet.api.psgpu import PSGPU, PassArgumentError, PassOrderError, PsGpuMaking
from paramfleet.config.errors import CallOrderError
from paramfleet.config.roles import RoleMaker
from paramfleet.data.memory_dataset import NotLoadedError
from paramfleet.session.session import Session
from paramfleet.training.passes.backing import PassOpenError

Batch = tuple[torch.Tensor, torch.Tensor]


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = fleet.nn.EmbeddingBag(0, 3, mode="sum", name="words", padding_idx=0)
        torch.manual_seed(1)
        self.out = torch.nn.Linear(3, 1)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.out(self.words(words)).squeeze(1)
        return scores


class Training:
    """A model that trains in this process, and passes by Paddle's names."""

    def __init__(self) -> None:
        self.session = Session()
        self.session.init(RoleMaker(distributed=False))
        self.model = self.session.distributed_model(Model())
        inner = torch.optim.Adagrad(self.model.parameters(), lr=0.1)
        self.optimizer = self.session.distributed_optimizer(inner)
        self.passing = DevicePassing(self.session)
        self.ps = PsGpuMaking(self.session, self.passing).make()

    def step(self, words: torch.Tensor, label: torch.Tensor) -> float:
        loss = (self.model(words) - label).square().mean()
        self.optimizer.minimize(loss)
        return float(loss.detach())

    def over(self, batches: Any) -> PSGPU:
        """Return the passes, with data that is loaded."""
        self.ps.set_dataset(batches, self.model, ids=lambda batch: {"words": batch[0]})
        self.ps.load_into_memory()
        return self.ps

    def values(self) -> list[Any]:
        rows = self.model.words(torch.arange(1, 60).unsqueeze(1))
        return [rows.tolist(), *(each.tolist() for each in self.model.out.parameters())]


def batches_of(num: int, seed: int = 7) -> list[Batch]:
    dice = torch.Generator().manual_seed(seed)
    return [
        (torch.randint(1, 60, (8, 3), generator=dice), torch.rand(8, generator=dice))
        for _ in range(num)
    ]


def test_passes_train_to_the_bits_of_training_without() -> None:
    plain, passing = Training(), Training()
    batches = batches_of(6)
    ps = passing.over(iter(batches))
    for _ in range(2):
        losses = [passing.step(*batch) for batch in ps.begin_pass()]
        ps.end_pass()
        assert losses == [plain.step(*batch) for batch in batches]
    ps.finalize()
    assert passing.values() == plain.values()


def test_a_pass_has_its_date_in_its_facts_and_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    training = Training()
    ps = training.over(batches_of(3))
    ps.set_date(2026, 11, 23)
    ps.init_gpu_ps([0], device_budget=1 << 20)
    caplog.set_level("INFO", logger="paramfleet.api.psgpu")
    for batch in ps.begin_pass():
        training.step(*batch)
    ps.end_pass()

    (facts,) = ps.facts
    assert (facts["date"], facts["batches"], facts["passes"]) == ("2026-11-23", 3, 1)
    assert facts["written"] > 0
    (record,) = [each for each in caplog.records if each.message == "worker.psgpu_pass"]
    assert vars(record)["date"] == "2026-11-23"
    for wrong in ((2026, 13, 1), (2026, 2, 30), ("2026", 2, 3)):
        with pytest.raises(PassArgumentError, match="is no day"):
            ps.set_date(*wrong)
    with pytest.raises(PassOrderError, match="a pass is open"):
        open_with(ps).set_date(2026, 11, 24)


def open_with(ps: PSGPU) -> PSGPU:
    ps.begin_pass()
    return ps


def test_a_left_loop_is_written_back_by_the_end_of_its_pass() -> None:
    plain, passing = Training(), Training()
    batches = batches_of(4)
    ps = passing.over(batches)
    for number, batch in enumerate(ps.begin_pass()):
        passing.step(*batch)
        plain.step(*batch)
        if number == 1:
            break
    with pytest.raises(PassOpenError, match="device_pass"):
        next(iter(passing.passing.device_pass(batches, passing.model)))
    ps.end_pass()

    assert passing.values() == plain.values()


def test_a_wrong_order_is_refused_and_changes_nothing() -> None:
    training = Training()
    ps = training.ps
    for function in (ps.load_into_memory, ps.preload_into_memory, ps.begin_pass):
        with pytest.raises(PassOrderError, match=r"call set_dataset\(\) first"):
            function()
    with pytest.raises(PassOrderError, match=r"PSGPU.end_pass\(\): no pass is open"):
        ps.end_pass()
    with pytest.raises(PassOrderError, match=r"call preload_into_memory\(\) first"):
        ps.wait_preload_done()
    with pytest.raises(PassArgumentError, match="give ids= or forward="):
        ps.set_dataset(batches_of(2), training.model)
    ps.set_dataset(batches_of(2), training.model, ids=lambda batch: {"words": batch[0]})
    with pytest.raises(PassOrderError, match=r"call load_into_memory\(\) first"):
        ps.begin_pass()
    ps.load_into_memory()
    batches = ps.begin_pass()
    training.step(*next(batches))
    for refused in (
        ps.begin_pass,
        ps.finalize,
        lambda: ps.set_mode(True),
        lambda: ps.init_gpu_ps([0]),
        lambda: ps.set_dataset([], training.model, ids=dict),
    ):
        with pytest.raises(PassOrderError, match="a pass is open"):
            refused()
    assert len([training.step(*batch) for batch in batches]) == 1
    ps.end_pass()
    with pytest.raises(PassOrderError):
        ps.end_pass()


def test_it_needs_an_optimizer_and_no_other_pass() -> None:
    session = Session()
    session.init(RoleMaker(distributed=False))
    ps = PsGpuMaking(session, DevicePassing(session)).make()
    ps.set_dataset(batches_of(1), Model(), ids=lambda batch: {"words": batch[0]})
    ps.load_into_memory()
    with pytest.raises(CallOrderError, match=r"fleet.PSGPU\(\).begin_pass\(\)"):
        ps.begin_pass()
    training = Training()
    with training.passing.device_pass(batches_of(3), training.model) as loader:
        each = iter(loader)
        training.step(*next(each))
        training.step(*next(each))
        ps = training.over(batches_of(1))
        with pytest.raises(PassOpenError):
            ps.begin_pass()
    ps.begin_pass()
    ps.end_pass()


def test_the_next_data_is_read_while_a_pass_trains() -> None:
    plain, passing = Training(), Training()
    first, second = batches_of(3), batches_of(3, seed=8)
    reads = threading.Event()

    class Days:
        def __init__(self) -> None:
            self.days = [first, second]

        def __iter__(self) -> Iterator[Batch]:
            if len(self.days) == 1:
                reads.set()
            return iter(self.days.pop(0))

    ps = passing.over(Days())
    losses = []
    batches = ps.begin_pass()
    losses.append(passing.step(*next(batches)))
    ps.preload_into_memory()
    assert reads.wait(20)
    for refused in (ps.preload_into_memory, ps.load_into_memory):
        with pytest.raises(PassOrderError, match="is being preloaded"):
            refused()
    losses += [passing.step(*batch) for batch in batches]
    ps.wait_preload_done()
    ps.end_pass()
    losses += [passing.step(*batch) for batch in ps.begin_pass()]
    ps.end_pass()

    assert losses == [plain.step(*batch) for batch in [*first, *second]]


def test_a_preload_that_fails_leaves_the_data_of_before() -> None:
    class Once:
        is_read = False

        def __iter__(self) -> Iterator[Batch]:
            if self.is_read:
                raise OSError("the disk is gone")
            self.is_read = True
            return iter(batches_of(2))

    training = Training()
    ps = training.over(Once())
    ps.preload_into_memory()
    with pytest.raises(OSError, match="the disk is gone"):
        ps.wait_preload_done()
    assert len([training.step(*batch) for batch in ps.begin_pass()]) == 2
    ps.end_pass()
    ps.preload_into_memory()
    ps.finalize()
    with pytest.raises(PassOrderError, match="set_dataset"):
        ps.begin_pass()


def test_a_pass_for_inference_trains_nothing() -> None:
    training = Training()
    ps = training.over(batches_of(3))
    for batch in ps.begin_pass():
        training.step(*batch)
    ps.end_pass()
    before = training.values()

    ps.set_mode(True)
    for words, _ in ps.begin_pass():
        assert not training.model.training
        training.model(words)
    ps.end_pass()

    assert training.model.training
    assert torch.is_grad_enabled()
    assert ps.facts[0]["written"] == 0
    assert training.values() == before


def test_vectors_of_slots_are_checked_and_have_no_effect() -> None:
    ps = Training().ps
    ps.set_slot_vector([1, 2, 3])
    ps.set_slot_dim_vector([8, 8, 8])
    ps.set_slot_offset_vector([0, 1, 2])
    with pytest.raises(PassArgumentError, match="must be whole numbers"):
        ps.set_slot_vector([1, -2, 3])
    with pytest.raises(
        PassArgumentError, match="has 2 numbers, and set_slot_vector was given 3"
    ):
        ps.set_slot_dim_vector([8, 8])


def test_devices_are_those_of_the_machine(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ps = Training().ps
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    caplog.set_level("INFO", logger="paramfleet.api.psgpu")
    for allowed in ([], [0]):
        ps.init_gpu_ps(allowed)
    assert caplog.text.count("worker.psgpu_device") == 2
    with pytest.raises(PassArgumentError, match="there is no device 1: torch finds 0"):
        ps.init_gpu_ps([0, 1])
    with pytest.raises(PassArgumentError, match="must be at least 1"):
        ps.init_gpu_ps([0], device_budget=0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    ps.init_gpu_ps([1])
    assert ps._device == torch.device("cuda", 1)


def test_batches_of_a_dataset_in_memory_need_their_ids(tmp_path: Path) -> None:
    (tmp_path / "part").write_text("1 1 2 8 9\n1 0 1 4\n" * 8)
    dataset = fleet.data.InMemoryDataset()
    slots = [fleet.data.Slot("label", dense=True), fleet.data.Slot("words")]
    dataset.init(batch_size=4, thread_num=1, use_var=slots, pipe_command="cat")
    dataset.set_filelist([str(tmp_path / "part")])
    training = Training()
    ps = training.ps

    def words(batch: Any) -> torch.Tensor:
        found: torch.Tensor = batch["words"].padded(2)
        return found

    ps.set_dataset(dataset, training.model, forward=lambda b: training.model(words(b)))
    ps.load_into_memory()
    with pytest.raises(PassArgumentError, match="a Batch holds no tensors"):
        ps.begin_pass()
    ps.set_dataset(dataset, training.model, ids=lambda batch: {"words": words(batch)})
    ps.load_into_memory()
    taken = 0
    for batch in ps.begin_pass():
        ps_words, label = words(batch), batch["label"].dense().float().squeeze(1)
        training.step(ps_words, label)
        if not taken:
            ps.preload_into_memory()
        taken += 1
    ps.end_pass()
    assert taken == 4
    ps.wait_preload_done()
    assert len(list(ps.begin_pass())) == 4
    ps.end_pass()
    dataset.release_memory()
    with pytest.raises(NotLoadedError):
        ps.begin_pass()
