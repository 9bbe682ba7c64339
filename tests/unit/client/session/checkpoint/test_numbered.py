"""Numbers of checkpoints: only those of checkpoints count, and each is read again."""

from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
import torch

import paramfleet as fleet
from paramfleet.config.roles import RoleMaker
from paramfleet.session.checkpoint.numbered import begin_numbered, newest_in
from paramfleet.session.checkpoint.saving import Saving
from paramfleet.session.session import Session
from paramfleet_shared.checkpoint.manifest import CheckpointWriteError
from paramfleet_shared.files.addresses import Address, place_of
from paramfleet_shared.files.regular_files import write_regular

PLANTED = "999999999999999999-step-1"


@pytest.fixture(params=["local", "address"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    if request.param == "local":
        yield tmp_path / "kept"
        return
    system = fsspec.filesystem("memory")
    system.store.clear()
    yield place_of("memory://shop/kept")
    system.store.clear()
    system.pseudo_dirs[:] = [""]


@pytest.fixture
def saving() -> Saving:
    session = Session()
    session.init(RoleMaker(distributed=False))
    model = session.distributed_model(
        torch.nn.Sequential(fleet.nn.Embedding(9, 2), torch.nn.Linear(2, 1))
    )
    session.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    return Saving(session)


def plant(folder: Path) -> None:
    """Make a folder that is no checkpoint; at an address it is one by what it holds."""
    if isinstance(folder, Address):
        write_regular(folder / "notes.txt", b"somebody's")
    else:
        folder.mkdir(parents=True)


def numbered(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir() if each.name != "latest")


def test_a_folder_that_is_no_checkpoint_is_neither_the_newest_nor_kept_as_one(
    kept: Path, saving: Saving
) -> None:
    plant(kept / PLANTED)
    write_regular(kept / "000001-step-7" / "notes.txt", b"somebody's")
    assert newest_in(kept) is None

    for _ in range(4):
        saving.save_persistables(kept, keep=2)

    assert numbered(kept) == [
        "000001-step-7", "000004-step-0", "000005-step-0", PLANTED,
    ]  # fmt: skip
    assert newest_in(kept) == kept / "000005-step-0"


def test_one_of_a_number_that_another_folder_has_is_found(kept: Path, saving: Saving) -> None:
    saving.save_persistables(kept, keep=2)
    for step in (1, 10, 2):
        plant(kept / f"000001-step-{step}")

    assert newest_in(kept) == kept / "000001-step-0"
    assert begin_numbered(kept, step=3).name == "000002-step-3"


def test_numbers_go_on_behind_what_may_be_being_written(kept: Path, saving: Saving) -> None:
    saving.save_persistables(kept, keep=2)
    for number in (4, 900):
        plant(kept / f"{number:06d}-step-3")

    assert begin_numbered(kept, step=3).name == "000901-step-3"


def test_a_checkpoint_that_leaves_no_number_is_named(kept: Path, saving: Saving) -> None:
    saving.save_persistables(kept / "999999999999999998-step-1")
    saving.save_persistables(kept, keep=2)
    last = kept / "999999999999999999-step-0"
    assert newest_in(kept) == last

    with pytest.raises(CheckpointWriteError, match="no number is left") as caught:
        saving.save_persistables(kept, keep=2)

    assert f"move {last} " in str(caught.value)
    assert newest_in(kept) == last


def test_a_checkpoint_that_cant_be_read_may_be_the_newest(
    tmp_path: Path, saving: Saving
) -> None:
    for _ in range(2):
        saving.save_persistables(tmp_path, keep=2)
    manifest = tmp_path / "000002-step-0" / "manifest.json"
    manifest.unlink()
    manifest.symlink_to(manifest.name)  # every read of it fails

    assert newest_in(tmp_path) == manifest.parent
