"""A pserver's training from its disk: the newest snapshot, and the log behind it.

The folder has the snapshots, and the log in ``log/``. A training begins with a snapshot at
position 0, which says what the job is; so without any snapshot there is nothing to recover. An
owner that has followed another one begins with a snapshot at the position that it came to.

State = snapshot + commands behind its position. Commands are executed as they were when they
came, so the machine has the state of the server that wrote them, to the bit, up to the last one
that is on the disk.
"""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from paramfleet_pserver.commands.codec import from_bytes
from paramfleet_pserver.commands.machine import Machine
from paramfleet_pserver.commands.snapshot.reading import restore
from paramfleet_pserver.durability.log.recovery import OpenedLog, open_log
from paramfleet_pserver.durability.snapshot_files import (
    SnapshotFile,
    newest_snapshot,
    read_snapshot,
)
from paramfleet_pserver.tables.owners import Owners
from paramfleet_pserver.tables.table_store import TableStore
from paramfleet_shared.errors import FleetError
from paramfleet_shared.errors.logs import LogDamagedError, ReplayError
from paramfleet_shared.settings.failpoints import failpoint

__all__ = ["LOG_FOLDER", "Recovered", "RestoreProgress", "recover"]

GAP = b"gap"
"""In the log in the place of a load, which a later snapshot has. What follows isn't durable
before there is one: without it the log ends here."""

LOG_FOLDER = "log"
"""In a pserver's folder."""

SETTLED_COMMANDS = 64
"""Commands that are executed before owners are waited for; their numbers are in memory."""


@dataclass(slots=True)
class RestoreProgress:
    """How far a recovery is; ``recover`` writes it, and its caller may read it meanwhile."""

    snapshot_bytes: int = 0
    """Of the snapshot's file that were read."""
    of_snapshot_bytes: int = 0
    commands: int = 0
    """Of the log that were executed again."""
    of_commands: int = 0

    def note_read(self, num_bytes: int) -> None:
        """Count bytes of the snapshot that were read."""
        self.snapshot_bytes += num_bytes

    def facts(self) -> dict[str, Any]:
        """Return it in plain values."""
        return {
            "snapshot_bytes": self.snapshot_bytes,
            "of_snapshot_bytes": self.of_snapshot_bytes,
            "commands": self.commands,
            "of_commands": self.of_commands,
        }


class Recovered(NamedTuple):
    """A training as it was on the disk."""

    machine: Machine
    position: int
    """Of the last command that it has the effect of."""
    snapshot: SnapshotFile
    """What it began with."""
    gap: int | None
    """Where the log was cut off, at a gap; None if it wasn't."""
    num_bytes: int
    """Of the commands that were executed again."""
    log: OpenedLog
    """Held by this process: ``continue_with`` writes on, ``close`` gives it back."""


async def recover(
    folder: Path,
    *,
    job: str,
    store: TableStore,
    owners: Owners,
    begun: int = 0,
    progress: RestoreProgress | None = None,
) -> Recovered | None:
    """Return the training that a folder holds; None if it holds none.

    Args:
        folder: Of one pserver; nobody else may have its log open.
        job: The job's name, its epoch included.
        store: Where tables go; empty. After an error it is of no use.
        owners: Who works on them; they have nothing to do.
        begun: The log begins behind this position: a snapshot of it may be without one.
        progress: Is told how far it is.

    Raises:
        LogInUseError: if another process has the folder.
        SnapshotOfOtherJobError: if it is of another job.
        LogOfOtherJobError: if its log is.
        SnapshotDamagedError: if the snapshot isn't what was written.
        LogDamagedError: if commands that were on the disk can't be read.
        ReplayError: if one can't be executed on the state before it.
        FleetError: why this server can't hold the tables; see ``restore``.
        OSError: if the system refuses.
    """
    snapshot = newest_snapshot(folder)
    has_log = any((folder / LOG_FOLDER).glob("segment-*.log"))
    if snapshot is None and not has_log:
        return None
    if snapshot is None or (snapshot.position > begun and not has_log):
        reason = "of its log and the snapshot before it one is lacking"
        raise LogDamagedError(path=str(folder), offset=0, position=0, reason=reason)
    log = open_log(folder / LOG_FOLDER, job=job, held=snapshot.position)
    try:
        progress = progress or RestoreProgress()
        progress.of_snapshot_bytes = snapshot.path.stat().st_size
        progress.of_commands = log.last_position - snapshot.position
        messages = read_snapshot(snapshot, job=job, note_read=progress.note_read)
        machine = await restore(messages, store, owners)
        position = snapshot.position
        num_bytes, gap = 0, None
        for position, _, body in log.commands(snapshot.position + 1):
            if body == GAP:
                gap = position
                break
            num_bytes += len(body)
            failpoint("while_replaying")
            _execute(machine, bytearray(body), position, folder)
            progress.commands += 1
            if position % SETTLED_COMMANDS == 0:
                await _settle(machine, owners)
        await _settle(machine, owners)
    except BaseException:
        log.close()
        raise
    return Recovered(
        machine, position if gap is None else gap - 1, snapshot, gap, num_bytes, log
    )


def _execute(machine: Machine, body: bytearray, position: int, folder: Path) -> None:
    """Execute a command as it was before.

    Raises:
        ReplayError: if it is refused: the server that wrote it had accepted it.
    """
    try:
        machine.execute(from_bytes(body, machine.store), alone=True)
    except FleetError as error:
        path = str(folder / LOG_FOLDER)
        raise ReplayError(path=path, position=position, reason=str(error)) from error


async def _settle(machine: Machine, owners: Owners) -> None:
    """Wait until all owners have carried out what they were given; others have the loop then.

    Raises:
        TablesDamagedError: if one could not.
    """
    await asyncio.sleep(0)  # where all was carried out here, nothing else waits
    await machine.settle()
    await owners.settle()
    machine.check_whole()
