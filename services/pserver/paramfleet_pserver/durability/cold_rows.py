"""Tables whose cold rows are on a disk: which they are, and where.

What is there is of no use to another process: a pserver that is started again has its rows from
snapshots and the log of changes, from a replica, or from a checkpoint.
"""

import errno
import logging
import os
import secrets
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path

from paramfleet_shared.files.held import FolderKind, ProcessFolder
from paramfleet_shared.tables.disk.access.buffers import Buffers
from paramfleet_shared.tables.disk.access.system import ScratchSystem
from paramfleet_shared.tables.disk.shards.moving import TieredOptions
from paramfleet_shared.tables.disk.shards.shard import TieredShard, check_row_width
from paramfleet_shared.tables.disk.stats import TierOptions
from paramfleet_shared.tables.disk.warming import warm_disk
from paramfleet_shared.tables.memory.budget import MemoryBudget
from paramfleet_shared.tables.sparse import SparseShard
from paramfleet_shared.tables.spec import TableSpec
from paramfleet_shared.values.texts import nearest

__all__ = ["WARM_DISK", "ColdFolder", "ColdTables", "warm_disk"]

WARM_DISK = "paramfleet_shared.tables.disk.warming"
"""Compiles what a tier on disk needs, where that isn't done yet."""

_KIND = FolderKind(prefix="process-", lock="lock", always_locked=True)

log = logging.getLogger(__name__)


class ColdFolder(ProcessFolder):
    """The folder of one process, below one that others may use, too.

    Args:
        parent: Made if it is missing.

    Raises:
        PermissionError: if it is another user's, who could put other files there.
        OSError: if the system refuses.
    """

    def __init__(self, parent: Path) -> None:
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        owner = parent.stat().st_uid
        if owner not in {os.geteuid(), 0}:
            reason = f"it belongs to another user (id {owner}): name a folder of your own"
            raise PermissionError(errno.EPERM, reason, str(parent))
        super().__init__(parent, _KIND)

    def new(self, table: str) -> Path:
        """Return a new folder, which isn't there as yet.

        Args:
            table: Whose rows it is for.
        """
        readable = "".join(each if each.isalnum() else "-" for each in table[:40])
        return self.path / f"{readable}-{secrets.token_hex(8)}"


def _pass(_: int) -> None:
    """Have nobody who reads ahead."""


class ColdTables:
    """Makes the shards of a process's tables.

    Args:
        folder: For the rows of all of them.
        budget_bytes: Memory for the rows of all tables that aren't in ``tables``; 0 for as much
            as they take.
        tables: Memory for the rows of some tables, by name.
        origin: Where the setting with these names came from.
        when_read: Called with an owner, by its thread, when a call has read what it needs.
    """

    def __init__(
        self,
        folder: ColdFolder,
        *,
        budget_bytes: int,
        tables: Mapping[str, int],
        origin: str = "",
        when_read: Callable[[int], None] = _pass,
    ) -> None:
        self._folder = folder
        self._origin = origin
        self._unused = set[str]()
        """Names that no table had, which were told."""
        self._budget = MemoryBudget(budget_bytes) if budget_bytes else None
        self._when_read = when_read
        self._buffers: dict[int, Buffers] = {}
        """Of each owner, who uses one tier at a time."""
        self._of_tables = {name: MemoryBudget(each) for name, each in tables.items()}

    def new_shard(
        self, spec: TableSpec, check_memory: Callable[[str, int], None], owner: int
    ) -> SparseShard:
        """Return a shard of a table, without rows."""
        budget = self._budget_of(spec)
        if budget is None:
            return SparseShard(spec, check_memory=check_memory)
        if owner not in self._buffers:
            self._buffers[owner] = Buffers(when_read=partial(self._when_read, owner))
        tier = TierOptions(system=ScratchSystem(), buffers=self._buffers[owner])
        options = TieredOptions(budget, partial(self._folder.new, spec.name), tier)
        return TieredShard(spec, options=options, check_memory=check_memory)

    def check(self, spec: TableSpec) -> None:
        """Refuse a sparse table whose rows may be on disk, and can't.

        Raises:
            TierRowError: if they are too wide.
        """
        if self._budget_of(spec) is not None:
            check_row_width(spec)

    def note_tables(self, names: Collection[str]) -> None:
        """Warn of budgets for tables that there aren't, of each once.

        Args:
            names: All sparse tables that a job's worker has declared.
        """
        for name in sorted(self._of_tables.keys() - set(names) - self._unused):
            self._unused.add(name)
            near = nearest(name, names)
            remedy = f"did you mean {near!r}?" if near else "leave it out"
            facts = {"setting": "table_memory_budgets", "origin": self._origin, "table": name}
            rule = "no sparse table of the job has this name, and its budget isn't used"
            log.warning(
                "pserver.budget_without_table",
                extra={**facts, "reason": rule, "remedy": remedy},
            )

    def _budget_of(self, spec: TableSpec) -> MemoryBudget | None:
        return self._of_tables.get(spec.name, self._budget)
