"""A training whose folder takes nothing from the start."""

from pathlib import Path

import pytest
from tests.unit.pserver.commands.histories import Replica

from paramfleet_pserver.durability.copies.registered import Copies
from paramfleet_pserver.durability.persistence import Persistence
from paramfleet_shared.errors.logs import DataFolderError
from paramfleet_shared.system.clock import SystemClock


def no_copies() -> Copies:
    raise AssertionError


async def test_a_folder_that_takes_nothing_is_named(tmp_path: Path) -> None:
    (tmp_path / "run").write_bytes(b"no folder")
    kept = Persistence(tmp_path / "run", job="a", term=1, waits=True, clock=SystemClock())
    replica = Replica("async", 1, rate="full", elastic=False)

    with pytest.raises(DataFolderError, match=f"{tmp_path}/run can't be used: File "):
        await kept.begin(replica.machine, copies=no_copies)

    await replica.owners.close()
