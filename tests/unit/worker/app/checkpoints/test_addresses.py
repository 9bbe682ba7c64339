"""Checkpoints at addresses: listed, verified, merged and chosen as those in folders."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import fsspec
import pytest
from tests.unit.worker.app.checkpoints.test_increments import EXPECTED, chain, values_of

from paramfleet.session.checkpoint.numbered import (
    begin_numbered,
    clear_left,
    end_numbered,
    newest_in,
)
from paramfleet.session.checkpoint.replaceable import folder_to_save
from paramfleet.session.checkpoint.saving import NamedSave
from paramfleet_shared.checkpoint.cuts import Cut
from paramfleet_shared.checkpoint.manifest import (
    CheckpointDamagedError,
    CheckpointWriteError,
    Manifest,
    ManifestError,
    read_manifest,
    write_manifest,
)
from paramfleet_shared.files.addresses import Address, place_of
from paramfleet_shared.files.folders import FolderNameError
from paramfleet_shared.files.owned import OWNER, Owner, is_owned
from paramfleet_shared.files.regular_files import write_regular
from paramfleet_worker.app.checkpoints.compacting import compact
from paramfleet_worker.app.checkpoints.diffing import diff
from paramfleet_worker.app.checkpoints.listing import CheckpointFolderError, list_checkpoints
from paramfleet_worker.app.checkpoints.resuming import RESUME_FROM, resume_environment
from paramfleet_worker.app.checkpoints.verifying import verify

MINE, OTHER = Owner("ads", 7), Owner("ads", 8)

Write = Callable[..., Path]


def own(folder: Path, owner: Owner) -> None:
    write_regular(folder / OWNER, json.dumps(owner._asdict()).encode())


@pytest.fixture
def kept(write: Write) -> Iterator[Address]:
    """Return where a whole checkpoint and two increments are."""
    _, _, newest = chain(write)
    system = fsspec.filesystem("memory")
    for folder in newest.parent.iterdir():
        for path in folder.iterdir():
            system.pipe(f"/shop/kept/{folder.name}/{path.name}", path.read_bytes())
    address = place_of("memory://shop/kept")
    assert isinstance(address, Address)
    yield address
    system.store.clear()
    system.pseudo_dirs[:] = [""]


def test_they_are_listed_verified_read_and_compared(kept: Address, tmp_path: Path) -> None:
    listed = list_checkpoints(kept)
    assert {each.name for each in listed} == {f"00000{n}-step-{n}" for n in (1, 2, 3)}
    assert all(each.whole for each in listed), listed
    newest = kept / "000003-step-3"
    assert not verify(newest).problems
    assert values_of(newest) == EXPECTED
    assert diff(newest, tmp_path / "saved" / newest.name).equal


def test_a_job_continues_from_the_newest(kept: Address) -> None:
    said = list[str]()
    (kept / "000003-step-3" / "manifest.json").unlink()
    environment = resume_environment(kept, said.append)
    assert environment == {RESUME_FROM: "memory://shop/kept/000002-step-2"}
    with pytest.raises(CheckpointFolderError):
        resume_environment(place_of("memory://shop/none"), said.append)


def test_compact_writes_elsewhere(kept: Address, tmp_path: Path) -> None:
    newest = kept / "000003-step-3"
    with pytest.raises(FolderNameError, match="holds a checkpoint"):
        compact(newest)
    for target in (place_of("memory://shop/whole"), tmp_path / "whole"):
        assert compact(newest, target).layers == 3
        assert not verify(target).problems
        assert values_of(target) == EXPECTED
    assert not verify(newest).problems


def test_a_failed_compact_leaves_nothing_at_its_address(kept: Address) -> None:
    damaged, target = kept / "000001-step-1", place_of("memory://shop/whole")
    write_regular(damaged / "ads.server0.00000.safetensors", b"x")
    with pytest.raises(CheckpointDamagedError):
        compact(kept / "000003-step-3", target)
    assert not target.exists()


def test_compact_takes_nothing_of_others_at_its_address(kept: Address) -> None:
    write_regular(kept / "000001-step-1" / "ads.server0.00000.safetensors", b"x")
    target = place_of("memory://shop/team")
    held = {"precious.csv", "sub/t.safetensors"}
    for name in held:
        write_regular(target / name, b"data")

    with pytest.raises(FolderNameError, match=r"'precious\.csv' and 1 more"):
        compact(kept / "000003-step-3", target)

    found = fsspec.filesystem("memory").find("/shop/team")
    assert {each.removeprefix("/shop/team/") for each in found} == held


def test_numbers_go_on_and_old_ones_go(kept: Address) -> None:
    assert begin_numbered(kept, step=9).name == "000004-step-9"
    end_numbered(kept / "000003-step-3", keep=1)
    assert len(list(kept.iterdir())) == 3, "they are needed"
    (kept / "000003-step-3" / "manifest.json").unlink()
    own(kept / "000003-step-3", MINE)
    clear_left(kept, owner=MINE)
    end_numbered(kept / "000001-step-1", keep=2)
    assert [each.name for each in kept.iterdir()] == ["000001-step-1", "000002-step-2"]


def test_a_save_replaces_nothing_there(kept: Address) -> None:
    with pytest.raises(FolderNameError):
        folder_to_save(str(kept / "000001-step-1"))
    assert folder_to_save(str(kept / "new")) == kept / "new"


def test_what_others_write_or_keep_there_stays(kept: Address) -> None:
    own(kept / "000007-step-9", OTHER)
    write_regular(kept / "000007-step-9" / "a.safetensors", b"its manifest comes last")
    write_regular(kept / "000008-step-9" / "notes.txt", b"somebody's")
    own(kept / "000009-step-9", MINE)
    for owner in (None, MINE):
        clear_left(kept, owner=owner)
    names = [each.name for each in kept.iterdir()]
    assert names[3:] == ["000007-step-9", "000008-step-9"]

    end_numbered(kept / "000003-step-3", keep=1)
    assert [each.name for each in kept.iterdir()] == names, "unfinished ones count as none"


def test_only_what_a_manifest_names_goes(kept: Address, write: Write) -> None:
    write_regular(kept / "000001-step-1" / "notes.txt", b"somebody's")
    whole = write("000004-step-4")
    for path in whole.iterdir():
        write_regular(kept / whole.name / path.name, path.read_bytes())

    end_numbered(kept / whole.name, keep=1)

    assert [each.name for each in kept.iterdir()] == ["000001-step-1", "000004-step-4"]
    assert [each.name for each in (kept / "000001-step-1").iterdir()] == ["notes.txt"]


def test_a_save_has_its_writers_mark_until_it_is_complete(kept: Address) -> None:
    final, marked = kept / "000009-step-9", list[bool]()

    def begin(folder: Path) -> Manifest:
        marked.append(is_owned(folder, MINE) and not is_owned(folder, OTHER))
        manifest = replace(read_manifest(kept / "000001-step-1"), cut=Cut(consistent=True))
        write_manifest(folder, manifest)
        return manifest

    NamedSave(final, begin, owner=MINE).end()

    assert marked == [True]
    assert [each.name for each in final.iterdir()] == ["manifest.json"]


def test_an_address_that_cant_be_listed_begins_no_numbers_anew() -> None:
    refused = place_of("nosuch://shop/kept")
    with pytest.raises(CheckpointWriteError):
        begin_numbered(refused, step=1)
    with pytest.raises(ManifestError):
        newest_in(refused)
    end_numbered(refused / "000001-step-1", keep=1)
    clear_left(refused, owner=MINE)
