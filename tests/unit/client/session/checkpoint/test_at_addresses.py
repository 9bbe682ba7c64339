"""What a save to an address leaves as it was: all that it has not written itself."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import torch

import paramfleet as fleet
from paramfleet.config.roles import RoleMaker
from paramfleet.session.checkpoint import saving as saving_module
from paramfleet.session.checkpoint.replaceable import folder_to_save
from paramfleet.session.checkpoint.saving import InferenceAddressError, NamedSave, Saving
from paramfleet.session.checkpoint.whole_folders import Owner, own
from paramfleet.session.session import Session
from paramfleet_shared.checkpoint.cuts import Cut, SaveGoneError
from paramfleet_shared.checkpoint.manifest import (
    CheckpointWriteError,
    Manifest,
    write_arrays,
    write_manifest,
)
from paramfleet_shared.files.addresses import Address
from paramfleet_shared.files.folders import FolderNameError

MINE, OTHER = Owner("ads", 7), Owner("ads", 8)
HELD = ["/shop/ck/000001-step-1/manifest.json", "/shop/ck/notes.txt", "/shop/ck/t.safetensors"]


@pytest.fixture
def system() -> Iterator[Any]:
    found = fsspec.filesystem("memory")  # the process's one: other tests may have left files
    for is_after in (False, True):
        found.store.clear()
        found.pseudo_dirs[:] = [""]
        if not is_after:
            yield found


@pytest.fixture
def saving() -> Saving:
    session = Session()
    session.init(RoleMaker(distributed=False))
    model = session.distributed_model(
        torch.nn.Sequential(fleet.nn.Embedding(9, 2, name="there"), torch.nn.Linear(2, 1))
    )
    optimizer = session.distributed_optimizer(torch.optim.Adagrad(model.parameters(), lr=0.1))
    optimizer.minimize(model(torch.arange(9)).pow(2).sum())
    return Saving(session)


def begin_in(folder: Path, *, then: Callable[[], None] = lambda: None) -> Manifest:
    write_arrays(folder, "t.safetensors", {"x": np.ones(3, np.float32)}, {})
    then()
    manifest = Manifest(tables=(), files=(), cut=Cut(consistent=True))
    write_manifest(folder, manifest)
    return manifest


def fail() -> None:
    raise CheckpointWriteError(path="a", reason="no room")


def test_a_folder_that_holds_other_things_is_refused_before_anything_is_written(
    system: Any, saving: Saving
) -> None:
    for name in HELD:
        system.pipe(name, b"{}")

    for act in (saving.save_persistables, folder_to_save):
        with pytest.raises(FolderNameError, match=r"000001-step-1.* 2 more.*another folder"):
            act("memory://shop/ck")
    with pytest.raises(FolderNameError, match="000001-step-1"):  # put there since it was asked
        NamedSave(Address("memory://shop/ck"), begin_in, owner=MINE)

    assert system.find("/shop") == HELD


def test_a_model_for_inference_is_refused_at_an_address_before_anything_is_written(
    system: Any, saving: Saving
) -> None:
    with pytest.raises(InferenceAddressError, match=r"memory://shop/model.*copy the folder"):
        saving.save_inference_model("memory://shop/model")

    assert not system.find("/shop")


def test_a_file_of_the_folders_name_is_refused(system: Any) -> None:
    system.pipe("/shop/ck", b"mine")

    with pytest.raises(FolderNameError, match="not a folder"):
        folder_to_save("memory://shop/ck")


@pytest.mark.parametrize("owner", [MINE, None])
def test_a_failed_save_leaves_nothing_and_takes_nothing_of_others(
    system: Any, owner: Owner | None
) -> None:
    final = Address("memory://shop/ck")

    def others_write() -> None:
        system.pipe("/shop/ck/notes.txt", b"mine")
        system.pipe("/shop/ck/sub/t.safetensors", b"mine")
        fail()

    with pytest.raises(CheckpointWriteError, match="no room"):
        NamedSave(final, lambda folder: begin_in(folder, then=others_write), owner=owner)
    assert system.find("/shop") == ["/shop/ck/notes.txt", "/shop/ck/sub/t.safetensors"]

    system.rm("/shop", recursive=True)
    with pytest.raises(CheckpointWriteError, match="no room"):
        NamedSave(final, lambda folder: begin_in(folder, then=fail), owner=owner)
    assert not final.exists()


def test_what_another_job_is_saving_there_stays(system: Any) -> None:
    final, manifest = Address("memory://shop/ck"), Manifest(tables=(), files=())

    def begin(folder: Path) -> Manifest:
        write_arrays(folder, "t.safetensors", {"x": np.ones(3, np.float32)}, {})
        return replace(manifest, cut=Cut(consistent=True))

    theirs = NamedSave(final, begin, owner=OTHER)
    before = system.find("/shop")
    assert before == ["/shop/ck/owner.json", "/shop/ck/t.safetensors"]

    with pytest.raises(FolderNameError, match="job 'ads', run 8"):
        NamedSave(final, lambda folder: begin_in(folder, then=fail), owner=MINE)
    assert system.find("/shop") == before

    write_manifest(final, manifest)
    theirs.end()
    assert system.find("/shop") == ["/shop/ck/manifest.json", "/shop/ck/t.safetensors"]


def test_a_save_that_lost_its_folder_to_another_removes_nothing(system: Any) -> None:
    final = Address("memory://shop/ck")

    def another_comes() -> None:
        system.rm("/shop/ck", recursive=True)
        own(final, OTHER)
        write_arrays(final, "t.safetensors", {"x": np.ones(9, np.float32)}, {})
        fail()

    with pytest.raises(CheckpointWriteError, match="no room"):
        NamedSave(final, lambda folder: begin_in(folder, then=another_comes), owner=MINE)

    assert system.find("/shop") == ["/shop/ck/owner.json", "/shop/ck/t.safetensors"]


def test_a_save_that_begins_again_takes_nothing_of_others(
    system: Any, saving: Saving, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = list[Path]()

    def write(folder: Path, **_: bool) -> Manifest:
        attempts.append(folder)
        if len(attempts) > 1:
            return begin_in(folder)
        write_arrays(folder, "t.safetensors", {"x": np.ones(3, np.float32)}, {})
        raise SaveGoneError(name="1")

    monkeypatch.setattr(saving, "_write", write)
    saving.save_persistables("memory://shop/ck")
    assert len(attempts) == 2
    assert system.find("/shop") == ["/shop/ck/manifest.json", "/shop/ck/t.safetensors"]

    attempts.clear()
    system.rm("/shop", recursive=True)

    def gone_and_others(folder: Path, **_: bool) -> Manifest:
        system.pipe("/shop/ck/notes.txt", b"mine")
        return write(folder)

    monkeypatch.setattr(saving, "_write", gone_and_others)
    with pytest.raises(FolderNameError, match=r"notes\.txt"):
        saving.save_persistables("memory://shop/ck")
    assert system.find("/shop") == ["/shop/ck/notes.txt"]


def test_what_this_run_left_there_half_written_makes_way(system: Any) -> None:
    final = Address("memory://shop/ck")
    own(final, MINE)
    write_arrays(final, "u.safetensors", {"x": np.ones(3, np.float32)}, {})

    NamedSave(final, begin_in, owner=MINE).end()

    assert system.find("/shop") == ["/shop/ck/manifest.json", "/shop/ck/t.safetensors"]


def test_a_save_of_one_process_that_fails_at_its_manifest_leaves_nothing(
    system: Any, saving: Saving, monkeypatch: pytest.MonkeyPatch
) -> None:
    system.pipe("/shop/mine.txt", b"mine")

    def refuse(*_: Any) -> None:
        fail()

    monkeypatch.setattr(saving_module, "write_manifest", refuse)
    with pytest.raises(CheckpointWriteError, match="no room"):
        saving.save_persistables("memory://shop/ck")

    assert system.find("/shop") == ["/shop/mine.txt"]
