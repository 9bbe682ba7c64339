"""What ``compact`` refuses: a checkpoint saved anew meanwhile, and files that were changed."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.worker.app.checkpoints.test_increments import chain, increment_of

from paramfleet.session.checkpoint.whole_folders import give_name, temporary_beside
from paramfleet_shared.checkpoint.manifest import (
    CheckpointDamagedError,
    ManifestError,
    read_manifest,
    write_part,
)
from paramfleet_shared.files.folders import FolderNameError
from paramfleet_worker.app.checkpoints import compacting
from paramfleet_worker.app.checkpoints.compacting import compact
from paramfleet_worker.app.checkpoints.verifying import verify

Write = Callable[..., Path]
MODULE = "module.safetensors"


@pytest.mark.parametrize("elsewhere", [False, True])
def test_what_is_saved_anew_while_it_merges_stays(
    write: Write, monkeypatch: pytest.MonkeyPatch, elsewhere: bool
) -> None:
    base, one, _ = chain(write)
    final = base.parent / "kept" if elsewhere else one

    def saved_anew(*args: Any) -> Any:
        if not (base.parent / "anew").exists():
            (base.parent / "anew").touch()
            temporary = temporary_beside(final)
            shutil.copytree(write("again", ids=[1, 2], servers=1), temporary)
            give_name(temporary, final)
        return write_part(*args)

    monkeypatch.setattr(compacting, "write_part", saved_anew)
    with pytest.raises(ManifestError, match=f"{final.name}.*replaced.*compact it again"):
        compact(one, final if elsewhere else None)

    assert sum(file.rows for file in read_manifest(final).files if file.kind == "sparse") == 2
    assert not verify(final).problems
    assert not list(base.parent.glob(".*.partial"))


@pytest.mark.parametrize("file", [MODULE, "progress.safetensors"])
@pytest.mark.parametrize("damage", ["bit", "longer", "huge", "link", "gone"])
def test_files_that_are_copied_are_proven(write: Write, damage: str, file: str) -> None:
    base = write("000001-step-1")
    part = "module" if file == MODULE else "progress"
    if part == "progress":
        shutil.copy(base / MODULE, base / file)
        document = json.loads((base / "manifest.json").read_text())
        copied = ("sha256", "bytes")
        document["progress"] |= {name: document["module"][name] for name in copied}
        document["progress"]["file"] = file
        (base / "manifest.json").write_text(json.dumps(document))
    one = increment_of(base, "000002-step-2", ids=[3], removed=[])
    path = one / file
    content = path.read_bytes()
    if damage == "bit":
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif damage == "longer":
        path.write_bytes(content + b"x")
    elif damage == "huge":
        document = json.loads((one / "manifest.json").read_text())
        document[part]["bytes"] = 2**53
        (one / "manifest.json").write_text(json.dumps(document))
    else:
        path.rename(base.parent / "away")
        if damage == "link":
            path.symlink_to(base.parent / "away")
    before = read_manifest(one).digest

    with pytest.raises(CheckpointDamagedError) as caught:
        compact(one, base.parent / "whole")
    assert caught.value.path == str(path)
    with pytest.raises((CheckpointDamagedError, FolderNameError), match=file):
        compact(one)

    assert read_manifest(one).digest == before
    assert not (base.parent / "whole").exists()
    assert not list(base.parent.glob(".*.partial"))
