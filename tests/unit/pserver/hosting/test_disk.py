"""A group gets its folder, and lets it go, also on a disk that refuses."""

import asyncio
import errno
import logging
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paramfleet_pserver.config import PServerSettings
from paramfleet_pserver.durability.data_folder import DataFolder
from paramfleet_pserver.hosting import disk
from paramfleet_pserver.hosting.disk import GroupDisk
from paramfleet_pserver.hosting.folders import run_folder
from paramfleet_shared.errors.logs import LogInUseError
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.testing.patience import LATE_S

RUN = 7
FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def settings(tmp_path: Path) -> PServerSettings:
    return PServerSettings(job="j", data_dir=str(tmp_path), durability="async")


@pytest.mark.parametrize("refuses", ["lock", "begin"])
async def test_a_group_that_was_taken_over_gets_its_folder_when_the_disk_is_well_again(
    settings: PServerSettings,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    refuses: str,
) -> None:
    monkeypatch.setattr(disk, "RETRY_S", 0.01)
    refusals = 3
    lock, mkdir = os.open, Path.mkdir

    def refuse() -> None:
        nonlocal refusals
        if refusals:
            refusals -= 1
            raise FULL

    def locked(path: Any, *args: Any, **kwargs: Any) -> int:
        if refuses == "lock" and Path(path).name == "lock":
            refuse()
        return lock(path, *args, **kwargs)

    def made(path: Path, *args: Any, **kwargs: Any) -> None:
        if refuses == "begin" and path.name == f"run-{RUN}":
            refuse()
        mkdir(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", locked)
    monkeypatch.setattr(Path, "mkdir", made)
    parts: Any = SimpleNamespace(settings=settings, clock=SystemClock())
    hosted: Any = SimpleNamespace(folder=None)
    session: Any = SimpleNamespace(run_id=RUN)

    async with asyncio.timeout(LATE_S):
        await GroupDisk(parts, 0).claim(hosted, session)

    assert isinstance(hosted.folder, DataFolder)
    assert run_folder(settings, 0, RUN).is_dir()
    with pytest.raises(LogInUseError):
        DataFolder(Path(settings.data_dir), settings.job, 0)
    hosted.folder.close()
    warned = [each for each in caplog.records if each.getMessage() == "group.folder_not_free"]
    assert len(warned) == 1  # it is tried again each moment, and said seldom
    assert "No space left" in str(vars(warned[0])["reason"])
    assert warned[0].levelno == logging.WARNING


async def test_the_lock_is_let_go_when_the_holder_cant_be_written(
    settings: PServerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise FULL

    with monkeypatch.context() as patched:
        patched.setattr(os, "ftruncate", refuse)
        DataFolder(Path(settings.data_dir), settings.job, 0).close()
    DataFolder(Path(settings.data_dir), settings.job, 0).close()
