"""What a launcher reads and writes in the job's registry: how it and its workers ended."""

import contextlib
from collections.abc import Callable

from paramfleet_shared.clock import Clock
from paramfleet_shared.config import JobSettings
from paramfleet_shared.discovery.errors import NoRedisError, RedisRefusedError
from paramfleet_shared.discovery.records import Failure, end_to_text
from paramfleet_shared.discovery.registry import RETENTION_MS, Registry, field_of
from paramfleet_shared.discovery.scripts import FAIL, LOSE, Keys
from paramfleet_shared.discovery.store import store_of
from paramfleet_worker.core.events import FailureRecord, ProcessName

__all__ = ["JobRecords"]

CALL_TIMEOUT_S = 0.4
"""One round trip; a launcher that stops a job can't wait longer for its reasons."""

POLL_S = 0.1

ENDED = ("finished", "failed")


class JobRecords:
    """The registry of one job, as its launchers use it.

    A launcher is no member: what it writes is fenced by the run of the job alone. A
    registry that doesn't answer is no error here; then it has nothing to say.

    Args:
        settings: Where the registry is, and the job's account there.
        writer: This launcher's name in the registry's fence, different on each machine.
        clock: Paces the waiting.
    """

    def __init__(self, settings: JobSettings, *, writer: str, clock: Clock) -> None:
        self._store = store_of(settings, clock=clock, timeout_s=CALL_TIMEOUT_S)
        self._registry = Registry(self._store, job=settings.job)
        self._keys = Keys(settings.job)
        self._writer = writer
        self._clock = clock
        self._past_epoch = 0

    async def close(self) -> None:
        """Close the connection."""
        await self._store.close()

    async def answers(self) -> bool:
        """Tell whether the registry answers now.

        Raises:
            RedisRefusedError: if it asks for another password.
        """
        try:
            await self._registry.ping()
        except NoRedisError:
            return False
        return True

    async def note_past(self) -> None:
        """Remember a run of the job that has ended already; how it ended isn't news.

        Raises:
            RedisRefusedError: if the registry asks for another password.
        """
        try:
            epoch = await self._epoch()
            record = await self._registry.read_job(epoch) if epoch else None
        except NoRedisError:
            return
        if record is not None and record.state in ENDED:
            self._past_epoch = epoch

    async def failure_or(self, name: ProcessName, reason: str) -> FailureRecord | None:
        """Return why the job failed; where nobody has said so yet, say it was ``name``.

        The other machines' members read it with their next heartbeat, and so needn't
        wait for a lease to expire.

        Returns:
            None if nobody had said it, or nobody can be asked.
        """
        try:
            epoch = await self._epoch()
            record = await self._registry.read_job(epoch) if epoch > self._past_epoch else None
            if record is None or record.state == "finished":
                return None
            if record.failure is not None:
                known = record.failure
                return FailureRecord(ProcessName(known.role, known.index), known.reason)
            await self._write_failure(epoch, name, reason)
        except (NoRedisError, RedisRefusedError):
            return None
        return None

    async def lose(self, name: ProcessName, pid: int, reason: str) -> None:
        """Say that a worker's process has ended; an elastic job goes on without it at once.

        Without a word it would be waited for as long as for one that is only slow. Where
        nobody can be told, that is what happens.

        Args:
            name: Whose place it had.
            pid: Which process; another that has the place since is left in peace.
            reason: How it ended.
        """
        with contextlib.suppress(NoRedisError, RedisRefusedError):
            epoch = await self._epoch()
            fence = (epoch, f"launcher:{self._writer}", 0, RETENTION_MS)
            end = end_to_text("lost", reason)
            arguments = (*fence, field_of(name.role, name.index), pid, end)
            await self._store.run(LOSE, self._keys.of_run(epoch), arguments)

    async def wait_members_left(self) -> None:
        """Return once the coordinator has given its seat back: it leaves last."""
        while True:
            try:
                if not await self._store.command("EXISTS", self._keys.of_job("seat")):
                    return
            except (NoRedisError, RedisRefusedError):
                return
            await self._clock.sleep(POLL_S)

    async def admin_address(self, pid: Callable[[], int]) -> str:
        """Return where the coordinator that is a process has its admin address, once it has."""
        while True:
            with contextlib.suppress(NoRedisError, RedisRefusedError):
                seat = await self._registry.find_coordinator()
                if seat is not None and seat.admin and seat.pid == pid():
                    return seat.admin
            await self._clock.sleep(POLL_S)

    async def _epoch(self) -> int:
        return int(await self._store.command("GET", self._keys.of_job("epoch")) or 0)

    async def _write_failure(self, epoch: int, name: ProcessName, reason: str) -> None:
        failure = Failure(role=name.role, index=name.index, reason=reason)
        fence = (epoch, f"launcher:{self._writer}", 0, RETENTION_MS)
        await self._store.run(FAIL, self._keys.of_run(epoch), (*fence, failure.to_json()))
