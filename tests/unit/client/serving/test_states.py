"""Dense values that a model can't take are refused by name, and the model stays as it is."""

import hashlib
import json
import warnings
import zipfile
from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import paramfleet as fleet
from paramfleet.serving import ExportDamagedError, ExportMismatchError
from paramfleet_shared.files.tensorfile import write_tensors


def approve(folder: Path, name: str) -> None:
    """Let the manifest say that a file is as it is."""
    path = folder / "manifest.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    files = [document["model"], *(table["file"] for table in document["tables"])]
    entry = next(file for file in files if file["name"] == name)
    content = (folder / name).read_bytes()
    entry |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    path.write_text(json.dumps(document), encoding="utf-8")


def put(folder: Path, name: str, value: Any) -> None:
    """Replace one entry of the exported state."""
    state = torch.load(folder / "model.pt", weights_only=True)  # noqa: TID251 - safe
    state[name] = value
    torch.save(state, folder / "model.pt")
    approve(folder, "model.pt")


def copied(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def is_unchanged(model: torch.nn.Module, before: dict[str, torch.Tensor]) -> bool:
    after = model.state_dict()
    same = all(torch.equal(after[name], value) for name, value in before.items())
    return same and model.training


LAST = "tower.2.weight"
"""[1, 8], of the last layer: whatever is copied in order is copied before it."""


def odd_tensors() -> dict[str, torch.Tensor]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of prototypes and deprecations in torch
        return {
            "sparse": torch.ones(1, 8).to_sparse(),
            "meta": torch.ones(1, 8, device="meta"),
            "quantized": torch.quantize_per_tensor(torch.ones(1, 8), 0.1, 0, torch.qint8),
            "nested": torch.nested.nested_tensor([torch.ones(8)]),
        }


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["sparse", "meta", "quantized", "nested"])
def test_a_tensor_that_no_export_has_is_damage(
    folder: Path, make_model: Any, kind: str
) -> None:
    put(folder, LAST, odd_tensors()[kind])
    model = make_model()
    before = copied(model)

    with pytest.raises(ExportDamagedError, match=rf"model\.pt: '{LAST}' is a sparse"):
        fleet.serving.load(folder, model)

    assert is_unchanged(model, before)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (LAST, torch.ones(1, 8, dtype=torch.int64)),
        (LAST, torch.ones(1, 8, dtype=torch.bool)),
        (LAST, torch.ones(1, 8, dtype=torch.complex64)),
        ("tower.1.num_batches_tracked", torch.tensor(3.0)),
    ],
)
def test_another_kind_of_numbers_is_refused(
    folder: Path, make_model: Any, name: str, value: torch.Tensor
) -> None:
    put(folder, name, value)
    model = make_model()
    before = copied(model)

    with pytest.raises(ExportMismatchError, match=f"'{name}' in another kind of numbers"):
        fleet.serving.load(folder, model)

    assert is_unchanged(model, before)


def test_a_number_beyond_the_range_of_the_model_s_is_refused(
    folder: Path, make_model: Any
) -> None:
    put(folder, LAST, torch.full((1, 8), -1e300, dtype=torch.float64))
    model = make_model()
    before = copied(model)

    with pytest.raises(ExportMismatchError, match=f"'{LAST}'.*float32 can't hold"):
        fleet.serving.load(folder, model)

    assert is_unchanged(model, before)


def test_a_model_of_fewer_bits_takes_what_it_can_hold(folder: Path, make_model: Any) -> None:
    model = make_model()
    model.tower.to(torch.bfloat16)

    served = fleet.serving.load(folder, model)

    exported = torch.load(folder / "model.pt", weights_only=True)[LAST]  # noqa: TID251 - safe
    assert torch.equal(served.tower[2].weight, exported.to(torch.bfloat16))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (LAST, torch.full((1, 8), torch.nan)),
        (LAST, torch.full((1, 8), torch.inf)),
        ("tower.1.running_mean", torch.full((8,), torch.nan)),
        ("tower.1.running_var", torch.full((8,), torch.inf)),
        ("tower.1.running_var", torch.full((8,), -1.0)),
    ],
)
def test_learned_values_and_statistics_that_are_not_finite_are_damage(
    folder: Path, make_model: Any, name: str, value: torch.Tensor
) -> None:
    put(folder, name, value)
    model = make_model()
    before = copied(model)

    with pytest.raises(ExportDamagedError, match=f"'{name}' holds (infinit|negative)"):
        fleet.serving.load(folder, model)

    assert is_unchanged(model, before)


def compressed(path: Path) -> None:
    """Write a model's file anew, with a storage of 64 MiB of zeros."""
    state = torch.load(path, weights_only=True)  # noqa: TID251 - safe
    state["tower.2.bias"] = torch.zeros(16 << 20)[:1]
    torch.save(state, path)
    with zipfile.ZipFile(path) as archive:
        records = {each.filename: archive.read(each) for each in archive.infolist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in records.items():
            archive.writestr(name, content)


def overlapping(path: Path) -> None:
    """Let many records of a model's file name the bytes of one."""
    state = torch.load(path, weights_only=True)  # noqa: TID251 - safe
    state |= {"tower.2.bias": torch.zeros(1 << 20)[:1], "more": torch.zeros(1 << 20)[:1]}
    torch.save(state, path)
    with zipfile.ZipFile(path) as archive:
        records = {each.filename: archive.read(each) for each in archive.infolist()}
    large: zipfile.ZipInfo | None = None
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in records.items():
            if len(content) < 4 << 20 or large is None:
                archive.writestr(name, content)
                large = archive.getinfo(name) if len(content) == 4 << 20 else large
            else:
                again = copy(large)
                again.filename = name
                archive.filelist.append(again)


@pytest.mark.parametrize("harm", [compressed, overlapping])
def test_a_file_cannot_take_more_memory_than_it_has_bytes(
    folder: Path, make_model: Any, harm: Callable[[Path], None]
) -> None:
    harm(folder / "model.pt")
    approve(folder, "model.pt")
    model = make_model()
    before = copied(model)

    with pytest.raises(ExportDamagedError, match=r"is compressed|more bytes than the file"):
        fleet.serving.load(folder, model)

    assert is_unchanged(model, before)


def test_a_file_of_torch_s_former_format_is_none_of_ours(folder: Path, make_model: Any) -> None:
    path = folder / "model.pt"
    state = torch.load(path, weights_only=True)  # noqa: TID251 - safe
    torch.save(state, path, _use_new_zipfile_serialization=False)
    approve(folder, "model.pt")

    with pytest.raises(ExportDamagedError, match="BadZipFile"):
        fleet.serving.load(folder, make_model())


class Masked(torch.nn.Module):
    """A model with a mask, and a state that it refuses."""

    mask: torch.Tensor

    def __init__(self, *, refuses: bool = False) -> None:
        super().__init__()
        self.refuses = refuses
        self.words = fleet.nn.Embedding(0, 2)
        self.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
        self.last = torch.nn.Linear(2, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(self.words(ids))
        return found

    def get_extra_state(self) -> Any:
        return 3

    def set_extra_state(self, state: Any) -> None:
        if self.refuses:
            raise KeyError(state)


def test_a_mask_may_hold_infinities_and_no_nan(exported: Any) -> None:
    folder = exported(Masked()).path

    assert fleet.serving.load(folder, Masked()).mask.tolist() == [0.0, -torch.inf]
    put(folder, "mask", torch.tensor([0.0, torch.nan]))

    with pytest.raises(ExportDamagedError, match="'mask' holds NaN"):
        fleet.serving.load(folder, Masked())


def test_a_model_that_refuses_a_state_of_its_own_stays_as_it_is(exported: Any) -> None:
    folder = exported(Masked()).path
    model = Masked()
    before = copied_tensors(model)
    model.refuses = True

    with pytest.raises(ExportMismatchError, match="KeyError: 3"):
        fleet.serving.load(folder, model)

    after = copied_tensors(model)
    assert all(torch.equal(after[name], value) for name, value in before.items())


def copied_tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    found = model.state_dict().items()
    return {name: value.clone() for name, value in found if isinstance(value, torch.Tensor)}


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_rows_that_are_not_finite_are_damage(
    folder: Path, make_model: Any, number: float
) -> None:
    name = "rows.deep.safetensors"
    document = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    (count,) = [table["rows"] for table in document["tables"] if table["name"] == "deep"]
    rows = np.ones((count, 4), np.float32)
    rows[-1, -1] = number
    write_tensors(folder / name, {"ids": np.arange(count), "rows": rows}, {})
    approve(folder, name)

    with pytest.raises(ExportDamagedError, match="rows hold infinities or NaN"):
        fleet.serving.load(folder, make_model())
