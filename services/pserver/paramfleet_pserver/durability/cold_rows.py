"""Tables whose cold rows are on a disk: which they are, and where.

What is there is of no use to another process: a pserver that is started again has its rows from
snapshots and the log of changes, from a replica, or from a checkpoint.
"""

import contextlib
import errno
import re
import secrets
import shutil
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from paramfleet_pserver.durability.locking import FolderLock
from paramfleet_shared.errors.logs import LogInUseError
from paramfleet_shared.tables.disk.access.buffers import Buffers
from paramfleet_shared.tables.disk.access.system import ScratchSystem
from paramfleet_shared.tables.disk.shards.moving import TieredOptions
from paramfleet_shared.tables.disk.shards.shard import TieredShard
from paramfleet_shared.tables.disk.stats import TierOptions
from paramfleet_shared.tables.disk.warming import warm_disk
from paramfleet_shared.tables.memory.budget import MemoryBudget
from paramfleet_shared.tables.sparse import SparseShard
from paramfleet_shared.tables.spec import TableSpec

__all__ = ["WARM_DISK", "ColdFolder", "ColdTables", "warm_disk"]

WARM_DISK = "paramfleet_shared.tables.disk.warming"
"""Compiles what a tier on disk needs, where that isn't done yet."""

_LOCK = "lock"
_NAME = re.compile("process-[0-9a-f]{16}")
"""Other names in the same folder are somebody else's."""
_TRIES = 16


class ColdFolder:
    """The folder of one process, below one that others may use, too.

    Folders of processes that have ended are removed.

    Args:
        parent: Made if it is missing.

    Raises:
        OSError: if the system refuses.
    """

    def __init__(self, parent: Path) -> None:
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path, self._lock = _new_folder(parent)
        for other in parent.glob("process-*"):
            if _NAME.fullmatch(other.name) and other != self.path and not other.is_symlink():
                _remove_if_left(other)

    def new(self, table: str) -> Path:
        """Return a new folder, which isn't there as yet.

        Args:
            table: Whose rows it is for.
        """
        readable = "".join(each if each.isalnum() else "-" for each in table[:40])
        return self.path / f"{readable}-{secrets.token_hex(8)}"

    def close(self) -> None:
        """Remove it with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def _new_folder(parent: Path) -> tuple[Path, FolderLock]:
    """Return a new folder of this process, and its lock.

    Before it is locked, another process may take it for one that was left, and remove it.

    Raises:
        OSError: if the system refuses.
    """
    for _ in range(_TRIES):
        folder = parent / f"process-{secrets.token_hex(8)}"
        with contextlib.suppress(LogInUseError, FileNotFoundError):
            lock = FolderLock(folder, _LOCK)
            if lock.is_in(folder, _LOCK):
                return folder, lock
            lock.close()
    raise OSError(errno.EAGAIN, "no folder could be kept in it")


def _remove_if_left(folder: Path) -> None:
    """Remove a folder whose process has ended."""
    # Another process may be doing the same, or begin at this moment.
    with contextlib.suppress(LogInUseError, OSError):
        lock = FolderLock(folder, _LOCK)
        if lock.is_in(folder, _LOCK):
            shutil.rmtree(folder, ignore_errors=True)
        lock.close()


class ColdTables:
    """Makes the shards of a process's tables.

    Args:
        folder: For the rows of all of them.
        budget_bytes: Memory for the rows of all tables that aren't in ``tables``; 0 for as much
            as they take.
        tables: Memory for the rows of some tables, by name.
    """

    def __init__(
        self, folder: ColdFolder, *, budget_bytes: int, tables: Mapping[str, int]
    ) -> None:
        self._folder = folder
        self._budget = MemoryBudget(budget_bytes) if budget_bytes else None
        self._buffers = defaultdict[int, Buffers](Buffers)
        """Of each owner, who uses one tier at a time."""
        self._of_tables = {name: MemoryBudget(each) for name, each in tables.items()}

    def new_shard(
        self, spec: TableSpec, check_memory: Callable[[str, int], None], owner: int
    ) -> SparseShard:
        """Return a shard of a table, without rows."""
        budget = self._of_tables.get(spec.name, self._budget)
        if budget is None:
            return SparseShard(spec, check_memory=check_memory)
        tier = TierOptions(system=ScratchSystem(), buffers=self._buffers[owner])
        options = TieredOptions(budget, partial(self._folder.new, spec.name), tier)
        return TieredShard(spec, options=options, check_memory=check_memory)
