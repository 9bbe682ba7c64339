"""Torn and hostile folders: refused by name, and nothing of them is run or followed."""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import paramfleet as fleet
from paramfleet.serving import ExportDamagedError, ExportError
from paramfleet_shared.files.tensorfile import write_tensors

ROWS, MODEL, MANIFEST = "rows.deep.safetensors", "model.pt", "manifest.json"


def manifest_of(folder: Path) -> Any:
    return json.loads((folder / MANIFEST).read_text(encoding="utf-8"))


def write_manifest(folder: Path, document: Any) -> None:
    (folder / MANIFEST).write_text(json.dumps(document), encoding="utf-8")


def described(folder: Path, name: str) -> Any:
    """Return a file's entry in the manifest, and the whole manifest."""
    document = manifest_of(folder)
    files = [document["model"], *(table["file"] for table in document["tables"])]
    return next(file for file in files if file["name"] == name), document


def approve(folder: Path, name: str) -> None:
    """Let the manifest say that a file is as it is."""
    entry, document = described(folder, name)
    content = (folder / name).read_bytes()
    entry |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    write_manifest(folder, document)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))


def to_link(path: Path) -> None:
    elsewhere = path.parent.parent / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


def to_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def to_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("name", [ROWS, MODEL])
@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (flip, "SHA-256"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "bytes, and"),
        (lambda path: path.write_bytes(b""), "has 0 bytes"),
        (Path.unlink, "No such file"),
        (to_link, "is a link"),
        (to_pipe, "isn't a regular file"),
        (to_folder, "regular file|bytes|directory"),
    ],
    ids=["flipped", "cut", "empty", "missing", "link", "pipe", "folder"],
)
def test_a_damaged_file_is_refused_by_name(
    folder: Path, make_model: Any, name: str, harm: Callable[[Path], object], message: str
) -> None:
    harm(folder / name)

    with pytest.raises(ExportDamagedError, match=message) as refused:
        fleet.serving.load(folder, make_model())

    assert name in str(refused.value)


def test_without_proof_lengths_are_still_compared(folder: Path, make_model: Any) -> None:
    flip(folder / ROWS)

    fleet.serving.load(folder, make_model(), verify=False)
    (folder / ROWS).write_bytes(b"short")

    with pytest.raises(ExportDamagedError, match="has 5 bytes"):
        fleet.serving.load(folder, make_model(), verify=False)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"ids": np.arange(20), "rows": np.ones((20, 5), np.float32)}, "other shapes"),
        ({"ids": np.arange(19), "rows": np.ones((20, 4), np.float32)}, "other shapes"),
        ({"ids": np.arange(20)}, "no tensor 'rows'"),
        ({"ids": np.arange(20)[::-1], "rows": np.ones((20, 4), np.float32)}, "aren't sorted"),
        ({"ids": np.zeros(20, np.int64), "rows": np.ones((20, 4), np.float32)}, "sorted"),
        ({"ids": np.ones(20, np.float32), "rows": np.ones((20, 4), np.float32)}, "int64"),
    ],
)
def test_a_file_of_other_tensors_is_refused(
    folder: Path, make_model: Any, tensors: Any, message: str
) -> None:
    write_tensors(folder / ROWS, tensors, {})
    approve(folder, ROWS)
    document = manifest_of(folder)
    for table in document["tables"]:
        table["rows"] = 20 if table["name"] == "deep" else table["rows"]
    write_manifest(folder, document)

    with pytest.raises(ExportDamagedError, match=message):
        fleet.serving.load(folder, make_model())


@pytest.mark.parametrize("content", [b"", b"\xff" * 40, b"\x08" + b"\0" * 7 + b"[[[[[[[["])
def test_a_file_that_is_none_of_tensors_is_refused(
    folder: Path, make_model: Any, content: bytes
) -> None:
    for name in (ROWS, MODEL):
        former = (folder / name).read_bytes()
        (folder / name).write_bytes(content)
        approve(folder, name)

        with pytest.raises(ExportDamagedError, match=name):
            fleet.serving.load(folder, make_model())

        (folder / name).write_bytes(former)
        approve(folder, name)


class Bomb:
    """Makes a folder where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("verify", [True, False])
def test_nothing_in_a_folder_is_run(
    folder: Path, make_model: Any, tmp_path: Path, verify: bool
) -> None:
    torch.save({"tower.0.weight": Bomb(tmp_path / "ran")}, folder / MODEL)
    approve(folder, MODEL)

    with pytest.raises(ExportDamagedError, match="isn't a file of tensors"):
        fleet.serving.load(folder, make_model(), verify=verify)

    assert not (tmp_path / "ran").exists()


class Scaled(torch.nn.Module):
    """A tower with an extra state."""

    def __init__(self) -> None:
        super().__init__()
        self.words = fleet.nn.Embedding(0, 2)
        self.scale: Any = torch.tensor(1.0)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = self.words(ids) * self.scale
        return rows

    def get_extra_state(self) -> Any:
        return self.scale

    def set_extra_state(self, state: Any) -> None:
        self.scale = state


@pytest.mark.parametrize("extra", [{"_extra_state": 7.5}, {"_extra_state": torch.ones(2)}, {}])
def test_an_extra_state_is_any_plain_value_or_stays_the_model_s(
    exported: Any, extra: Any
) -> None:
    folder = exported(Scaled()).path
    torch.save(extra, folder / MODEL)
    approve(folder, MODEL)

    served = fleet.serving.load(folder, Scaled())

    assert torch.equal(
        torch.as_tensor(served.scale), torch.as_tensor(extra.get("_extra_state", 1.0))
    )


@pytest.mark.parametrize("state", [[torch.ones(1)], {"a": 1}, {1: torch.ones(1)}])
def test_what_is_no_state_dict_is_refused(folder: Path, make_model: Any, state: Any) -> None:
    torch.save(state, folder / MODEL)
    approve(folder, MODEL)

    with pytest.raises(ExportDamagedError, match="isn't a state_dict"):
        fleet.serving.load(folder, make_model())


@pytest.mark.parametrize(
    "name", ["../other/model.pt", "/etc/passwd", "..", "a/b", ".hidden", "", "x\0y", 7, None]
)
def test_a_name_in_the_manifest_cannot_lead_out_of_the_folder(
    folder: Path, make_model: Any, name: Any
) -> None:
    for place in (MODEL, ROWS):
        entry, document = described(folder, place)
        former, entry["name"] = entry["name"], name
        write_manifest(folder, document)

        with pytest.raises(ExportError, match="isn't that of a file of the folder"):
            fleet.serving.load(folder, make_model())

        entry["name"] = former
        write_manifest(folder, document)


def changed(name: str, value: Any) -> Callable[[Any], None]:
    def change(document: Any) -> None:
        document["tables"][0][name] = value

    return change


def twice(document: Any) -> None:
    document["tables"] *= 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (changed("dim", 0), "dim"),
        (changed("dim", "4"), "whole number"),
        (changed("rows", -1), "rows = -1 is no whole number"),
        (changed("rows", True), "whole number"),
        (changed("seed", "0"), "seed"),
        (changed("storage", "float8"), "storage"),
        (changed("initializer", {"kind": "pickle"}), "initializer.kind"),
        (changed("initializer", {"kind": "normal", "std": 1e39}), "initializer.std"),
        (changed("initializer", {"sort": "normal"}), "malformed"),
        (changed("initializer", 7), "malformed"),
        (changed("name", "../x"), "name"),
        (changed("name", ["x"]), "name|malformed"),
        (changed("unknown", "what"), "unknown"),
        (changed("unknown", [1.0]), "unknown"),
        (changed("unknown", ["1", 2, 3, 4]), "unknown"),
        (changed("unknown", [1e39, 2, 3, 4]), "unknown"),
        (changed("unknown", [float("nan"), 2, 3, 4]), "NaN is no finite number"),
        (changed("rows", float("inf")), "Infinity is no finite number"),
        (changed("rows", 2**54), "whole number"),
        (changed("seed", 10**400), "more than 1023 bits"),
        (changed("unknown", {"a": 1}), "unknown"),
        (changed("file", []), "malformed"),
        (twice, "twice"),
        (dict.clear, "must be paramfleet-export version 1"),
        (lambda document: document.update(version=2), "is a delta"),
        (lambda document: document.update(version=3), "version 1"),
        (lambda document: document.update(release={"kind": "base"}), "malformed"),
        (lambda document: document.update(tables=7), "malformed"),
        (lambda document: document.pop("model"), "malformed"),
    ],
)
def test_a_malformed_manifest_is_refused(
    folder: Path, make_model: Any, change: Callable[[Any], None], message: str
) -> None:
    document = manifest_of(folder)
    change(document)
    write_manifest(folder, document)

    with pytest.raises(ExportError, match=message):
        fleet.serving.load(folder, make_model())


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff", b"[]", b"7", b"[" * 100_000], ids=range(6)
)
def test_a_manifest_that_is_none_is_refused(
    folder: Path, make_model: Any, content: bytes
) -> None:
    (folder / MANIFEST).write_bytes(content)

    with pytest.raises(ExportError, match=r"fleet\.save_inference_model"):
        fleet.serving.load(folder, make_model())


@pytest.mark.parametrize("harm", [to_link, to_pipe, to_folder])
def test_a_manifest_that_is_no_regular_file_is_refused(
    folder: Path, make_model: Any, harm: Callable[[Path], object]
) -> None:
    harm(folder / MANIFEST)

    with pytest.raises(ExportError, match="can't be read"):
        fleet.serving.load(folder, make_model())


def test_a_folder_without_a_manifest_and_a_checkpoint_are_told_apart(
    exported: Any, make_model: Any, tmp_path: Path
) -> None:
    export = exported()
    export.saving.save_persistables(tmp_path / "checkpoint")

    with pytest.raises(ExportError, match=r"for a checkpoint, use fleet\.load_model"):
        fleet.serving.load(tmp_path / "checkpoint", make_model())
    with pytest.raises(ExportError, match="No such file"):
        fleet.serving.load(tmp_path / "none", make_model())
