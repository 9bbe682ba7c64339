"""Buffers and extra states go into a checkpoint and come back, or an error names them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typing_extensions import override

from paramfleet.config.roles import RoleMaker
from paramfleet.model_state.module_state import BufferMismatchError
from paramfleet.model_state.saved_state import StateNumbersError
from paramfleet.session.checkpoint.saving import Saving
from paramfleet.session.session import Session
from paramfleet_shared.checkpoint.manifest import CheckpointDamagedError, ManifestError
from paramfleet_shared.files.tensorfile import read_tensors, write_tensors


class Counting(torch.nn.Module):
    """A linear layer behind BatchNorm, with an extra state."""

    def __init__(self, state: Any = None, width: int = 2) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(width)
        self.last = torch.nn.Linear(width, 1)
        self.state = state
        self.register_buffer("scratch", torch.zeros(1), persistent=False)
        self.register_buffer("rounded", torch.zeros(3, dtype=torch.bfloat16))
        self.register_buffer("none", None)

    @override
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(self.norm(x))
        return found

    @override
    def get_extra_state(self) -> Any:
        return self.state

    @override
    def set_extra_state(self, state: Any) -> None:
        self.state = state


def alone(model: torch.nn.Module) -> tuple[Any, Saving]:
    session = Session()
    session.init(RoleMaker(distributed=False))
    session.distributed_model(model)
    session.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    return model, Saving(session)


def trained(state: Any = None) -> tuple[Any, Saving]:
    model, saving = alone(Counting(state))
    for _ in range(3):
        model(torch.randn(8, 2) * 5 + 2)
    model.rounded.fill_(1.5)
    model.scratch.fill_(7.0)
    return model, saving


def edit(folder: Path, change: Any) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    change(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))


def test_a_loaded_model_evaluates_as_the_saved_one(tmp_path: Path) -> None:
    model, saving = trained({"seen": 24, "last": torch.ones(2)})
    saving.save_persistables(tmp_path / "one")
    other, loading = alone(Counting())

    lacking = loading.load_model(tmp_path / "one")

    x = torch.randn(4, 2)
    assert lacking == []
    assert torch.equal(other.eval()(x), model.eval()(x))
    assert torch.equal(other.rounded, model.rounded)
    assert other.norm.num_batches_tracked.item() == 3
    assert other.scratch.item() == 0.0
    assert other.state["seen"] == 24
    assert torch.equal(other.state["last"], torch.ones(2))


def test_a_model_without_state_saves_no_file_of_it(tmp_path: Path) -> None:
    _, saving = alone(torch.nn.Linear(2, 1))

    saving.save_persistables(tmp_path / "one")

    assert not (tmp_path / "one" / "module.safetensors").exists()
    assert saving.load_model(tmp_path / "one") == []


def test_a_checkpoint_without_buffers_loads_and_says_what_it_lacks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trained()[1].save_persistables(tmp_path / "one")
    edit(tmp_path / "one", lambda manifest: manifest.pop("module"))
    model, loading = alone(Counting())

    lacking = loading.load_model(tmp_path / "one")

    assert {"norm.running_mean", "norm.num_batches_tracked", "_extra_state"} < set(lacking)
    assert torch.equal(model.norm.running_mean, torch.zeros(2))
    (record,) = [r for r in caplog.records if "not_in_checkpoint" in r.getMessage()]
    assert record.__dict__["missing"] == lacking


def test_what_the_model_does_not_have_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, saving = trained()
    model.register_buffer("former", torch.ones(1))
    saving.save_persistables(tmp_path / "one")

    alone(Counting())[1].load_model(tmp_path / "one")

    (record,) = [r for r in caplog.records if "not_in_model" in r.getMessage()]
    assert record.__dict__["unknown"] == ["former"]


def test_a_buffer_of_another_shape_is_an_error_and_nothing_is_changed(tmp_path: Path) -> None:
    model, saving = trained()
    model.register_buffer("table", torch.ones(3))
    saving.save_persistables(tmp_path / "one")
    other, loading = alone(Counting())
    other.register_buffer("table", torch.ones(4))
    before = {
        name: value.clone() for name, value in other.state_dict().items() if value is not None
    }

    with pytest.raises(BufferMismatchError, match=r"'table'.*\[4\].*\[3\]"):
        loading.load_model(tmp_path / "one")

    for name, value in before.items():
        assert torch.equal(other.state_dict()[name], value)


@pytest.mark.parametrize("state", [{1, 2}, {"fn": len}, b"bytes"])
def test_an_extra_state_that_is_not_plain_is_left_out_by_name(
    state: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _, saving = trained(state)
    saving.save_persistables(tmp_path / "one")
    saving.save_inference_model(tmp_path / "two")

    manifest = json.loads((tmp_path / "one" / "manifest.json").read_text())
    assert list(manifest["module"]["not_saved"]) == ["_extra_state"]
    assert any("state_not_saved" in record.getMessage() for record in caplog.records)
    assert alone(Counting())[1].load_model(tmp_path / "one") == ["_extra_state"]
    exported = torch.load(tmp_path / "two" / "model.pt", weights_only=True)  # noqa: TID251 - safe
    assert "norm.running_mean" in exported
    assert "_extra_state" not in exported


def test_a_changed_file_is_refused_and_nothing_is_changed(tmp_path: Path) -> None:
    trained()[1].save_persistables(tmp_path / "one")
    victim = tmp_path / "one" / "module.safetensors"
    content = bytearray(victim.read_bytes())
    content[-1] ^= 1
    victim.write_bytes(bytes(content))
    other, loading = alone(Counting())
    before = other.last.weight.clone()

    with pytest.raises(CheckpointDamagedError, match=r"module\.safetensors"):
        loading.load_model(tmp_path / "one")

    assert torch.equal(other.last.weight, before)


@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_running_statistics_that_are_not_finite_are_left_out_by_name(
    number: float, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, saving = trained()
    model.norm.running_var[1] = number
    saving.save_persistables(tmp_path / "one")
    other, loading = alone(Counting())

    lacking = loading.load_model(tmp_path / "one")

    assert lacking == ["norm.running_var"]
    assert torch.equal(other.norm.running_var, torch.ones(2))
    assert torch.equal(other.norm.running_mean, model.norm.running_mean)
    (record,) = [r for r in caplog.records if "state_not_saved" in r.getMessage()]
    left_out = {"norm.running_var": "it holds infinities or NaN"}
    assert record.__dict__["left_out"] == left_out


def test_a_mask_of_infinities_is_saved_and_one_with_nan_is_not(tmp_path: Path) -> None:
    model, saving = trained()
    model.rounded[0] = -torch.inf
    saving.save_persistables(tmp_path / "one")
    model.rounded[1] = torch.nan
    saving.save_persistables(tmp_path / "two")
    other, loading = alone(Counting())

    assert loading.load_model(tmp_path / "one") == []
    assert other.rounded.tolist() == [-torch.inf, 1.5, 1.5]
    assert loading.load_model(tmp_path / "two") == ["rounded"]


def test_statistics_that_are_not_finite_are_not_exported(tmp_path: Path) -> None:
    model, saving = trained()
    model.norm.running_mean[0] = torch.nan

    with pytest.raises(StateNumbersError, match=r"'norm\.running_mean' of the model holds"):
        saving.save_inference_model(tmp_path / "two")

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_a_file_with_statistics_that_are_not_finite_is_damaged(
    number: float, tmp_path: Path
) -> None:
    trained()[1].save_persistables(tmp_path / "one")
    path = tmp_path / "one" / "module.safetensors"
    content = path.read_bytes()
    entry = json.loads((tmp_path / "one" / "manifest.json").read_text())["module"]
    read = read_tensors(path, num_bytes=len(content), sha256=entry["sha256"])
    read.tensors["buffers/norm.running_var"][1] = number
    written = write_tensors(path, read.tensors, read.metadata)
    edit(tmp_path / "one", lambda manifest: manifest["module"].update(sha256=written.sha256))
    other, loading = alone(Counting())
    before = other.last.weight.clone()

    with pytest.raises(CheckpointDamagedError, match=r"'norm\.running_var' holds infinities"):
        loading.load_model(tmp_path / "one")

    assert torch.equal(other.last.weight, before)


def set_file(name: str) -> Any:
    return lambda manifest: manifest["module"].update(file=name)


def add_buffer(**wire: Any) -> Any:
    buffer = {"name": "norm.running_mean", "dtype": "float32", "shape": [2], **wire}
    return lambda manifest: manifest["module"].update(buffers=[buffer])


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (set_file("../elsewhere"), ManifestError),
        (set_file("nowhere.safetensors"), CheckpointDamagedError),
        (add_buffer(name="other"), CheckpointDamagedError),
        (add_buffer(dtype="int64"), CheckpointDamagedError),
        (add_buffer(shape=[3]), CheckpointDamagedError),
        (add_buffer(shape=[-1]), ManifestError),
        (add_buffer(dtype="load"), CheckpointDamagedError),
        (lambda manifest: manifest["module"].pop("extra"), ManifestError),
        (lambda manifest: manifest["module"].update(extra={"": {"run": "x"}}), ManifestError),
        (lambda manifest: manifest.update(module=3), ManifestError),
    ],
)
def test_a_manifest_that_lies_is_refused(
    change: Any, error: type[Exception], tmp_path: Path
) -> None:
    trained({"seen": 1})[1].save_persistables(tmp_path / "one")
    edit(tmp_path / "one", change)
    other, loading = alone(Counting())

    with pytest.raises(error):
        loading.load_model(tmp_path / "one")

    assert torch.equal(other.norm.running_mean, torch.zeros(2))


def test_states_of_two_modules_do_not_mix(tmp_path: Path) -> None:
    both = torch.nn.Sequential(
        Counting({"x": torch.ones(1)}), Counting({"x": torch.zeros(1)}, 1)
    )
    alone(both)[1].save_persistables(tmp_path / "one")
    other, loading = alone(torch.nn.Sequential(Counting(), Counting(width=1)))

    loading.load_model(tmp_path / "one")

    assert [each.state["x"].item() for each in other] == [1.0, 0.0]


def test_alone_the_average_is_ones_own() -> None:
    model, saving = trained()
    before = model.norm.running_mean.clone()

    saving._session.average_buffers()

    assert torch.equal(model.norm.running_mean, before)
