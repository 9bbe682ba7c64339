"""A training on this pserver's disk: how it is begun there, recovered, and ended."""

import asyncio
from pathlib import Path

from paramfleet_pserver.commands.machine import Machine
from paramfleet_pserver.commands.snapshot.writing import MachineImage, snapshot_of, take_image
from paramfleet_pserver.durability.journal import Journal
from paramfleet_pserver.durability.log.disk import Disk
from paramfleet_pserver.durability.log.recovery import OpenedLog, open_log
from paramfleet_pserver.durability.log.settings import LogSettings
from paramfleet_pserver.durability.log.writer import LogWriter
from paramfleet_pserver.durability.recovery import LOG_FOLDER, recover
from paramfleet_pserver.durability.saving import save_snapshot
from paramfleet_pserver.durability.snapshot_files import SnapshotFile, write_snapshot
from paramfleet_pserver.tables.owners import Owners
from paramfleet_pserver.tables.table_store import TableStore
from paramfleet_shared.system.clock import Clock

__all__ = ["Persistence"]


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
    ) -> None:
        self.folder = folder
        self.term = term
        self.waits = waits
        self._job = job
        self._clock = clock
        self._settings = settings or LogSettings()
        self._disk = disk or Disk()
        self._saving = asyncio.Lock()
        """Held while a snapshot is written: there is one draft at a time."""

    async def recover(
        self, store: TableStore, owners: Owners
    ) -> tuple[Machine, Journal] | None:
        """Return the training that the folder holds, and its journal; None if it holds none.

        Args:
            store: Where tables go; empty.
            owners: Who works on them; they have nothing to do.

        Raises:
            FleetError: why it can't be recovered; see ``recovery.recover``.
            OSError: if the system refuses.
        """
        found = await recover(self.folder, job=self._job, store=store, owners=owners)
        if found is None:
            return None
        try:
            writer = self._continue(found.log)
        except BaseException:
            found.log.close()
            raise
        journal = Journal(
            writer,
            found.machine.identities,
            snapshot=found.snapshot,
            gap=found.gap,
            replayed_bytes=found.num_bytes,
        )
        writer.start()
        return found.machine, journal

    async def begin(self, machine: Machine) -> Journal:
        """Keep a training that begins; nothing is executed on it meanwhile.

        Raises:
            LogInUseError: if another process has the folder.
            OSError: if the system refuses.
        """
        messages = snapshot_of(machine)
        snapshot = await asyncio.to_thread(
            write_snapshot, self.folder, 0, messages, job=self._job
        )
        log = open_log(self.folder / LOG_FOLDER, job=self._job)
        writer = self._continue(log)
        writer.start()
        return Journal(writer, machine.identities, snapshot=snapshot)

    def is_due(self, journal: Journal) -> bool:
        """Return whether a snapshot is to be taken: the log is longer than it, or has a gap."""
        longest = max(self._settings.segment_bytes, journal.snapshot.path.stat().st_size)
        return journal.snapshot_wanted.is_set() or journal.num_bytes > longest

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
        journal.accepting.clear()
        try:
            image = await take_image(machine)
            position, num_bytes = journal.writer.position, journal.num_bytes
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_accept_again(image, journal))
                snapshot = await self._save(image, journal, position)
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            journal.accepting.set()
        journal.note_snapshot(snapshot, num_bytes=num_bytes)
        return snapshot

    async def _save(self, image: MachineImage, journal: Journal, position: int) -> SnapshotFile:
        """Write an image when the log before it is on the disk."""
        try:
            await journal.writer.durable(position)
        except BaseException:
            image.end()
            raise
        return await save_snapshot(image, self.folder, position, job=self._job)

    def _continue(self, log: OpenedLog) -> LogWriter:
        return log.continue_with(
            term=self.term, clock=self._clock, settings=self._settings, disk=self._disk
        )


async def _accept_again(image: MachineImage, journal: Journal) -> None:
    await image.apart()
    journal.accepting.set()
