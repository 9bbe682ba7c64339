"""A training on this pserver's disk: how it is begun there, recovered, and ended."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from paramfleet_pserver.commands.machine import Machine
from paramfleet_pserver.commands.snapshot.writing import MachineImage, snapshot_of, take_image
from paramfleet_pserver.durability.copies.registered import Copies
from paramfleet_pserver.durability.disk_log import DiskLog
from paramfleet_pserver.durability.journal import Journal
from paramfleet_pserver.durability.lives import new_life, newest_life, remove_others
from paramfleet_pserver.durability.log.disk import Disk
from paramfleet_pserver.durability.log.recovery import OpenedLog, open_log
from paramfleet_pserver.durability.log.settings import LogSettings
from paramfleet_pserver.durability.log.writer import LogWriter
from paramfleet_pserver.durability.recovery import LOG_FOLDER, RestoreProgress, recover
from paramfleet_pserver.durability.saving import save_snapshot
from paramfleet_pserver.durability.snapshot_files import SnapshotFile, write_snapshot
from paramfleet_pserver.tables.owners import Owners
from paramfleet_pserver.tables.table_store import TableStore
from paramfleet_shared.errors.logs import DataFolderError
from paramfleet_shared.system.clock import Clock

__all__ = ["Persistence"]

_LOG_PER_SNAPSHOT = 2
"""Bytes of the log for each of the snapshot before it, until the next one is taken. Snapshots
then cost at most half of what the log does; a recovery executes at most so much again, which
takes about as long as the snapshot takes to load."""

_SEGMENTS_PER_SNAPSHOT = 4
"""Full segments that the log has at least when a snapshot is taken. A training with small
tables and large gradients would take one each second otherwise, which costs it more than the
log does; a recovery executes 256 MiB within about a second."""


class Persistence:
    """One run's folder. Used from one event loop, by the process that has the folder.

    Args:
        folder: Of the run.
        job: The job's name, with the run's epoch.
        term: Of this process: its incarnation.
        waits: Whether each change is answered only when it is durable.
        clock: Measures the time between syncs.
        settings: The log's settings.
        disk: The calls of the system.
        stream_bytes: Of commands that are kept for followers.
    """

    def __init__(  # noqa: PLR0913 (all but the first by keyword)
        self,
        folder: Path,
        *,
        job: str,
        term: int,
        waits: bool,
        clock: Clock,
        settings: LogSettings | None = None,
        disk: Disk | None = None,
        stream_bytes: int | None = None,
    ) -> None:
        self.folder = folder
        self._live = folder
        """Where this process writes: in it, if another one has begun the training."""
        self._stream_bytes = stream_bytes
        self.term = term
        self.waits = waits
        self._job = job
        self._clock = clock
        self._settings = settings or LogSettings()
        self._disk = disk or Disk()
        self._saving = asyncio.Lock()
        """Held while a snapshot is written: there is one draft at a time."""

    async def recover(
        self,
        store: TableStore,
        owners: Owners,
        *,
        copies: Callable[[], Copies],
        progress: RestoreProgress | None = None,
    ) -> tuple[Machine, Journal] | None:
        """Return the training that the folder holds, and its journal; None if it holds none.

        Args:
            store: Where tables go; empty.
            owners: Who works on them; they have nothing to do.
            copies: Makes what says which copies there are.
            progress: Is told how far it is.

        Raises:
            FleetError: why it can't be recovered; see ``recovery.recover``.
            OSError: if the system refuses.
        """
        life = newest_life(self.folder)
        self._live = life.path
        found = await recover(
            life.path,
            job=self._job,
            store=store,
            owners=owners,
            begun=life.position,
            progress=progress,
        )
        if found is None:
            return None
        try:
            writer = self._continue(found.log)
        except BaseException:
            found.log.close()
            raise
        disk = DiskLog(
            writer,
            snapshot=found.snapshot,
            gap=found.gap,
            replayed_bytes=found.num_bytes,
        )
        return found.machine, self._journal(found.machine, disk, copies())

    async def begin(self, machine: Machine, *, copies: Callable[[], Copies]) -> Journal:
        """Keep a training that begins; nothing is executed on it meanwhile.

        Args:
            machine: It.
            copies: Makes what says which copies there are.

        Raises:
            LogInUseError: if another process has the folder.
            DataFolderError: if the system refuses, as on a full disk.
        """
        messages = snapshot_of(machine)
        try:
            snapshot = await asyncio.to_thread(
                write_snapshot, self._live, 0, messages, job=self._job
            )
            log = open_log(self._live / LOG_FOLDER, job=self._job)
        except OSError as error:
            reason = error.strerror or str(error)
            raise DataFolderError(path=str(self.folder), reason=reason) from error
        disk = DiskLog(self._continue(log), snapshot=snapshot)
        return self._journal(machine, disk, copies())

    async def join(self, machine: Machine, journal: Journal) -> SnapshotFile:
        """Keep a training, too, that another process has begun, from its position now on.

        What the folder holds of it, of a former owner, stays until there is a snapshot.

        Args:
            machine: It goes on meanwhile.
            journal: Its; it has no log on the disk.

        Raises:
            TablesDamagedError: if a change was applied in part.
            TableMemoryError: if there was no memory for rows that have changed since.
            LogInUseError: if another process has the folder.
            LogClosedError: if the log is closed before.
            OSError: if the system refuses, as on a full disk.
        """
        async with self._saving:
            snapshot = await self._take(machine, journal)
        journal.copies.add_disk()
        journal.progress()
        await asyncio.to_thread(remove_others, self.folder, self._live)
        return snapshot

    def is_due(self, journal: Journal) -> bool:
        """Return whether a snapshot is to be taken: the log is too long, or has a gap."""
        disk = journal.disk
        if disk is None or disk.snapshot is None:
            return False  # ``join`` is for that
        try:
            snapshot_bytes = disk.snapshot.path.stat().st_size
        except FileNotFoundError:  # somebody removed it
            return True
        longest = max(
            _SEGMENTS_PER_SNAPSHOT * self._settings.segment_bytes,
            _LOG_PER_SNAPSHOT * snapshot_bytes,
        )
        return disk.snapshot_wanted.is_set() or disk.num_bytes > longest

    async def snapshot(self, machine: Machine, journal: Journal) -> SnapshotFile:
        """Take a snapshot beside the training, and remove the log before it.

        Raises:
            TablesDamagedError: if a change was applied in part.
            TableMemoryError: if there was no memory for rows that have changed since.
            LogClosedError: if the log is closed before.
            OSError: if the system refuses, as on a full disk.
        """
        async with self._saving:
            return await self._take(machine, journal)

    async def _take(self, machine: Machine, journal: Journal) -> SnapshotFile:
        """Take a snapshot; nobody else does."""
        hold = journal.hold()
        try:
            image = await take_image(machine)
            try:
                disk = journal.disk or self._attach(journal)
            except BaseException:
                image.end()
                raise
            position, num_bytes = journal.position, disk.num_bytes
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(hold.end_with(image))
                snapshot = await self._save(image, disk, position)
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            hold.end()
        disk.note_snapshot(snapshot, num_bytes=num_bytes)
        journal.progress()
        return snapshot

    async def _save(self, image: MachineImage, disk: DiskLog, position: int) -> SnapshotFile:
        """Write an image when the log before it is on the disk."""
        try:
            await disk.writer.durable(position)
        except BaseException:
            image.end()
            raise
        return await save_snapshot(image, self._live, position, job=self._job)

    def _attach(self, journal: Journal) -> DiskLog:
        """Have a training's commands in a log from now on.

        Raises:
            LogInUseError: if another process has the folder.
            OSError: if the system refuses.
        """
        self._live = new_life(self.folder, self.term, journal.position)
        log = open_log(self._live / LOG_FOLDER, job=self._job, held=journal.position)
        disk = DiskLog(self._continue(log), snapshot=None)
        journal.attach(disk)
        disk.writer.start(journal.progress)
        return disk

    def _journal(self, machine: Machine, disk: DiskLog, copies: Copies) -> Journal:
        journal = Journal(
            machine.identities,
            copies=copies,
            clock=self._clock,
            disk=disk,
            stream_bytes=self._stream_bytes,
        )
        disk.writer.start(journal.progress)
        return journal

    def _continue(self, log: OpenedLog) -> LogWriter:
        return log.continue_with(
            term=self.term, clock=self._clock, settings=self._settings, disk=self._disk
        )
