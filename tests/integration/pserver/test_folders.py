"""Save and load take folders below the configured ones only."""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING, Any

import pytest

from paramfleet_shared.checkpoint.increments import Base, Increment
from paramfleet_shared.checkpoint.manifest import (
    CheckpointWriteError,
    Manifest,
    ManifestError,
    write_manifest,
)
from paramfleet_shared.files.folders import (
    CheckpointDirs,
    FolderNameError,
    FolderNotAllowedError,
)
from paramfleet_shared.tables.spec import TableSpec

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tests.integration.pserver.conftest import Cluster

    Start = Callable[..., Awaitable[Cluster]]

FLAT = TableSpec(name="flat", kind="dense", size=8)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def plant(victim: Path, link: Path) -> None:
    if not victim.exists():
        victim.write_text("precious")
    link.parent.mkdir()
    link.symlink_to(victim)


@pytest.mark.parametrize("operation", ["save", "load"])
async def test_a_folder_elsewhere_is_refused_however_it_is_written(
    start_servers: Start, tmp_path: Path, operation: str
) -> None:
    plant(tmp_path, tmp_path / "kept" / "out")
    cluster = await start_servers(1, dirs=CheckpointDirs.of(str(tmp_path / "kept")))
    worker = cluster.worker()
    await worker.declare(FLAT)

    for path in ("x", "../x", "out/x", "out"):
        with pytest.raises(FolderNotAllowedError, match="CHECKPOINT_DIRS"):
            await worker.ask(operation, dirname=os.path.join(tmp_path / "kept", "..", path))  # noqa: PTH118 - keeps the dots
    with pytest.raises(FolderNotAllowedError):
        await worker.ask(operation, dirname=str(tmp_path / "kept" / "out" / "x"))

    assert names_in(tmp_path) == ["kept"]


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 300, "x/" * 3000, "a/" * 1500, "a\nb"])
@pytest.mark.parametrize("operation", ["save", "load"])
async def test_a_name_that_no_folder_can_have_is_the_caller_s_mistake(
    start_servers: Start, operation: str, name: str
) -> None:
    cluster = await start_servers(1)
    worker = cluster.worker()
    await worker.declare(FLAT)
    dirname = f"{tempfile.gettempdir()}/{name}" if name else ""

    with pytest.raises(FolderNameError):
        await worker.ask(operation, dirname=dirname)


async def test_a_link_in_place_of_a_table_s_file_is_not_written_through(
    start_servers: Start, tmp_path: Path
) -> None:
    cluster = await start_servers(1)
    worker = cluster.worker()
    await worker.declare(FLAT)
    (answer,) = await worker.ask("save", dirname=str(tmp_path / "one"))
    (file,) = answer.fields["files"]
    victim = tmp_path / "victim"
    plant(victim, tmp_path / "two" / file["name"])

    with pytest.raises(CheckpointWriteError):
        await worker.ask("save", dirname=str(tmp_path / "two"))

    assert victim.read_text() == "precious"


async def test_a_refusal_repeats_little_of_a_long_path(start_servers: Start) -> None:
    cluster = await start_servers(1)
    worker = cluster.worker()
    await worker.declare(FLAT)
    long: Any = "/etc" + ("/" + "long" * 40) * 20

    with pytest.raises(FolderNotAllowedError) as caught:
        await worker.ask("load", dirname=long)
    assert len(str(caught.value)) < 500

    with pytest.raises(ManifestError):
        await worker.ask("load", dirname=f"{tempfile.gettempdir()}/not-there")


async def test_what_an_increment_builds_on_is_below_the_folders_too(
    start_servers: Start, tmp_path: Path
) -> None:
    cluster = await start_servers(1, dirs=CheckpointDirs.of(str(tmp_path / "kept")))
    write_manifest(tmp_path / "secret", Manifest(tables=(), files=(), save="a" * 32))
    base = Base(save="a" * 32, folder="secret")
    increment = Manifest(tables=(), files=(), increment=Increment(base=base), save="b" * 32)
    write_manifest(tmp_path / "kept", increment)
    worker = cluster.worker()
    await worker.declare(FLAT)

    with pytest.raises(FolderNotAllowedError, match="secret"):
        await worker.ask("load", dirname=str(tmp_path / "kept"))
