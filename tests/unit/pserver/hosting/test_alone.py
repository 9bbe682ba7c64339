"""A process without a plan joins with the run that its job names."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paramfleet_pserver.durability.data_folder import DataFolder
from paramfleet_pserver.hosting.alone import join_with_run
from paramfleet_shared.discovery.errors import WrongDataFolderError

OWN, STRAY = 7, 77


class Coordinator:
    """Admits who has the folder of the job's run."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    async def join(self, *, index: int, holds_run: int) -> Any:
        self.asked.append(holds_run)
        if holds_run != OWN:
            raise WrongDataFolderError(
                index=index, run=OWN, durable=True, holds_run=holds_run, former="gone"
            )
        return SimpleNamespace(run_id=OWN)


async def test_a_stray_newer_folder_hides_no_run(tmp_path: Path) -> None:
    folder, coordinator = DataFolder(tmp_path, "job", 0), Coordinator()
    folder.begin(OWN)
    folder.begin(STRAY)
    os.utime(folder.run(OWN), (1, 1))

    session = await join_with_run(folder, coordinator.join)

    assert session.run_id == OWN
    assert coordinator.asked == [STRAY, OWN]
    folder.close()


async def test_a_run_that_is_not_there_is_asked_for_once(tmp_path: Path) -> None:
    folder, coordinator = DataFolder(tmp_path, "job", 0), Coordinator()
    folder.begin(STRAY)

    with pytest.raises(WrongDataFolderError, match="that of run 77"):
        await join_with_run(folder, coordinator.join)

    assert coordinator.asked == [STRAY]
    folder.close()
