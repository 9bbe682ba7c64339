"""A training on this pserver's disk: how it is begun there, recovered, and ended."""

import asyncio
import shutil
from pathlib import Path

from paramfleet_pserver.commands.machine import Machine
from paramfleet_pserver.commands.snapshot.writing import snapshot_of
from paramfleet_pserver.durability.journal import Journal
from paramfleet_pserver.durability.log.disk import Disk
from paramfleet_pserver.durability.log.recovery import OpenedLog, open_log
from paramfleet_pserver.durability.log.settings import LogSettings
from paramfleet_pserver.durability.log.writer import LogWriter
from paramfleet_pserver.durability.recovery import LOG_FOLDER, recover
from paramfleet_pserver.durability.snapshot_files import write_snapshot
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

    def __init__(
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
        journal = Journal(writer, found.machine.identities)
        writer.start()
        return found.machine, journal

    async def begin(self, machine: Machine) -> Journal:
        """Keep a training that begins; nothing is executed on it meanwhile.

        Raises:
            LogInUseError: if another process has the folder.
            OSError: if the system refuses.
        """
        messages = snapshot_of(machine)
        await asyncio.to_thread(write_snapshot, self.folder, 0, messages, job=self._job)
        log = open_log(self.folder / LOG_FOLDER, job=self._job)
        writer = self._continue(log)
        writer.start()
        return Journal(writer, machine.identities)

    def _continue(self, log: OpenedLog) -> LogWriter:
        return log.continue_with(
            term=self.term, clock=self._clock, settings=self._settings, disk=self._disk
        )

    def remove(self) -> None:
        """Remove the folder: the job has ended well, and nobody goes on with it.

        Raises:
            OSError: if the system refuses.
        """
        shutil.rmtree(self.folder, ignore_errors=False)
