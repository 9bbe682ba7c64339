"""What a launcher reads and writes in the job's registry.

That it runs the job, which of its processes live, and how the job and its workers ended.
"""

import contextlib
import json
import os
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from paramfleet_shared.discovery.errors import (
    NoRedisError,
    OtherLaunchError,
    RedisRefusedError,
)
from paramfleet_shared.discovery.job_registry import coordinator_of, launcher_of
from paramfleet_shared.discovery.plan import Plan
from paramfleet_shared.discovery.records import PROCESS, Failure, Voucher, end_to_text
from paramfleet_shared.discovery.redis.scripts import FAIL, LOSE, VOUCH, WITHDRAW, Keys
from paramfleet_shared.discovery.redis.store import store_of
from paramfleet_shared.discovery.registry import (
    RETENTION_MS,
    CoordinatorRecord,
    Registry,
    field_of,
)
from paramfleet_shared.settings.config import JobSettings
from paramfleet_shared.system.clock import Clock
from paramfleet_worker.core.events import FailureRecord, ProcessName

__all__ = ["JobRecords", "Published"]

CALL_TIMEOUT_S = 0.4
"""One round trip; a launcher that stops a job can't wait longer for its reasons."""

POLL_S = 0.1

ENDED = ("finished", "failed")


class Published(NamedTuple):
    """What is known of the course of a job."""

    workers: Mapping[int, Mapping[str, Any]]
    """What the workers published last, by rank."""
    ends: bool
    """Whether an operator has ended the training."""


class JobRecords:
    """The registry of one job, as its launchers use it.

    A launcher is no member: what it writes is fenced by the run of the job alone. A
    registry that doesn't answer is no error here; then it has nothing to say.

    Args:
        settings: Where the registry is, and the job's account there.
        writer: This launcher's name in the registry's fence: its first process, which no other
            launcher of the job has.
        clock: Paces the waiting.
        launch: The launch's name; empty looks at none.
        lease_ttl_s: Seconds that what it vouches for holds.
        scales: Whether the launcher starts as many processes for pservers as are wanted.
    """

    def __init__(
        self,
        settings: JobSettings,
        *,
        writer: str,
        clock: Clock,
        launch: str = "",
        lease_ttl_s: float = 4.0,
        scales: bool = False,
    ) -> None:
        self._store = store_of(settings, clock=clock, timeout_s=CALL_TIMEOUT_S)
        self._registry = Registry(self._store, job=settings.job)
        self._keys = Keys(settings.job)
        self._job = settings.job
        self._writer = writer
        self._clock = clock
        self._launch = launch
        self._lease_ttl_s = lease_ttl_s
        self._scales = scales
        self._nonce = secrets.token_hex(8)
        self._past_epoch = 0
        self._silent_since: float | None = None

    @property
    def silent_s(self) -> float:
        """Return for how long vouching has found no registry; 0 while it finds one.

        It counts from the first call that failed: a launcher that was itself stopped for a
        while has no reason to blame the registry.
        """
        since = self._silent_since
        return 0.0 if since is None else self._clock.monotonic() - since

    async def begin(self) -> None:
        """Take the job's name for this launch, as soon as a former one's lease is over.

        The lease of a killed launch expires. A launch that still runs is recognized by the
        renewal of its lease.

        Raises:
            OtherLaunchError: if another launch runs the job.
            NoRedisError: if the registry doesn't answer.
            RedisRefusedError: if it asks for another password.
        """
        before: tuple[Any, int] = (None, 0)
        while True:
            answer = await self._vouch({}, (), is_start=True)
            if answer[0] == b"ok":
                return
            left_ms = int(answer[2])
            if answer[1] == before[0] and left_ms > before[1]:
                raise OtherLaunchError(job=self._job, holder=_holder(answer))
            before = (answer[1], left_ms)
            await self._clock.sleep(min(POLL_S, 0.001 * max(1, left_ms)))

    async def vouch(self, alive: Mapping[str, int], *, gone: Sequence[str] = ()) -> str:
        """Say which processes this launcher sees alive.

        Args:
            alive: Process ids by ``role:index``.
            gone: As of ``Voucher``.

        Returns:
            Who has the job's name now if it isn't this launch, else an empty text.
        """
        try:
            answer = await self._vouch(alive, gone)
        except (NoRedisError, RedisRefusedError):
            if self._silent_since is None:
                self._silent_since = self._clock.monotonic()
            return ""
        self._silent_since = None
        return "" if answer[0] == b"ok" else _holder(answer)

    async def withdraw(self) -> None:
        """Give the job's name up: this launcher's processes have ended."""
        with contextlib.suppress(NoRedisError, RedisRefusedError):
            keys = [self._keys.of_job("launchers")]
            await self._store.run(WITHDRAW, keys, (self._writer, self._nonce))

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
        """Return why the job failed; record that it was ``name`` if there is no reason yet.

        The other machines' members read it with their next heartbeat, and so needn't
        wait for a lease to expire.

        Returns:
            None if no reason was recorded, or the registry doesn't answer.
        """
        try:
            epoch = await self._epoch()
            record = await self._registry.read_job(epoch) if epoch > self._past_epoch else None
            if record is None or record.state == "finished":
                return None
            if self._launch and record.launch != self._launch:
                return None  # how another launch ended is none of this one's business
            if record.failure is not None:
                return _as_named_here(record.failure)
            await self._write_failure(epoch, name, reason)
        except (NoRedisError, RedisRefusedError):
            return None
        return None

    async def standing(self) -> tuple[FailureRecord | None, bool]:
        """Return why this launch's job failed, if it has, and whether it has finished well.

        Nothing is written. A registry that doesn't answer knows of no end.
        """
        try:
            epoch = await self._epoch()
            record = await self._registry.read_job(epoch) if epoch > self._past_epoch else None
        except (NoRedisError, RedisRefusedError):
            return None, False
        if record is None or (self._launch and record.launch != self._launch):
            return None, False
        known = record.failure
        if known is None:
            return None, record.state == "finished"
        return _as_named_here(known), False

    async def shrinks(self) -> bool:
        """Return whether this launch's job goes on without a worker that doesn't come back."""
        try:
            epoch = await self._epoch()
            record = await self._registry.read_job(epoch) if epoch > self._past_epoch else None
        except (NoRedisError, RedisRefusedError):
            return False
        return record is not None and record.shrinks

    async def published(self) -> Published:
        """Return what the workers of this launch's job published last, and how it ends.

        Nothing if the registry doesn't answer.
        """
        try:
            epoch = await self._epoch()
            record = await self._registry.read_job(epoch) if epoch > self._past_epoch else None
            if record is None or (self._launch and record.launch != self._launch):
                return Published({}, ends=False)
            workers = await self._registry.read_facts(epoch, "worker")
            return Published(workers, ends=record.orders.ends)
        except (NoRedisError, RedisRefusedError):
            return Published({}, ends=False)

    async def wanted_processes(self) -> int:
        """Return how many processes for pservers an operator wants of the job that trains.

        0 if nobody has said, it doesn't train, or the registry doesn't answer.
        """
        try:
            epoch = await self._epoch()
            record = await self._registry.read_job(epoch) if epoch > self._past_epoch else None
        except (NoRedisError, RedisRefusedError):
            return 0
        if record is None or record.plan is None or record.state != "training":
            return 0
        if self._launch and record.launch != self._launch:
            return 0
        return Plan.from_wire(dict(record.plan)).wanted

    async def lose(
        self, name: ProcessName, pid: int, reason: str, *, is_final: bool = False
    ) -> None:
        """Report that a worker's process has ended; an elastic job then continues without it.

        Without this report the job would wait for it as long as for a slow worker. That happens
        where the registry doesn't answer.

        Args:
            name: Its role and index.
            pid: Which process; another that has the place since is left in peace.
            reason: How it ended.
            is_final: Whether no other process is started in its place.
        """
        with contextlib.suppress(NoRedisError, RedisRefusedError):
            epoch = await self._epoch()
            fence = (epoch, f"launcher:{self._writer}", 0, RETENTION_MS)
            end = end_to_text("gone" if is_final else "lost", reason)
            arguments = (*fence, field_of(name.role, name.index), pid, end, self._launch)
            await self._store.run(LOSE, self._keys.of_member(epoch), arguments)

    async def wait_members_left(self) -> None:
        """Return once the coordinator has given its lease back: it leaves last."""
        while True:
            try:
                record = await self._store.command(
                    "HGET", self._keys.of_job("coordinator"), "record"
                )
                if record is None or json.loads(record).get("launch") not in {"", self._launch}:
                    return
            except (NoRedisError, RedisRefusedError):
                return
            await self._clock.sleep(POLL_S)

    async def admin_address(
        self, pid: Callable[[], int], has_ended: Callable[[], bool]
    ) -> str | None:
        """Return where the coordinator that is a process has its admin address, once it has.

        Args:
            pid: Of the process.
            has_ended: Whether it has ended.

        Returns:
            None if it has ended: who has its address then is unknown.
        """
        while not has_ended():
            with contextlib.suppress(NoRedisError, RedisRefusedError):
                coordinator = await self._registry.find_coordinator()
                if coordinator is not None and coordinator.admin and coordinator.pid == pid():
                    return None if has_ended() else coordinator.admin
            await self._clock.sleep(POLL_S)
        return None

    async def _epoch(self) -> int:
        return int(await self._store.command("GET", self._keys.of_job("epoch")) or 0)

    async def _write_failure(self, epoch: int, name: ProcessName, reason: str) -> None:
        failure = Failure(role=name.role, index=name.index, reason=reason)
        fence = (epoch, f"launcher:{self._writer}", 0, RETENTION_MS)
        own = (self._launch,) if self._launch else ()
        arguments = (*fence, failure.to_json(), self._keys.of_decisions(epoch), *own)
        await self._store.run(FAIL, self._keys.of_member(epoch), arguments)

    async def _vouch(
        self, alive: Mapping[str, int], gone: Sequence[str], *, is_start: bool = False
    ) -> list[Any]:
        voucher = Voucher(
            launch=self._launch,
            part=self._writer,
            nonce=self._nonce,
            host=socket.gethostname(),
            pid=os.getpid(),
            alive=dict(alive),
            gone=tuple(gone),
            scales=self._scales,
        )
        lease_ms = max(1, round(self._lease_ttl_s * 1000))
        own = (self._launch, self._writer, self._nonce, lease_ms)
        coordinator = self._keys.of_job("coordinator")
        arguments = (*own, voucher.to_json(), RETENTION_MS, int(is_start), coordinator)
        return await self._store.run(VOUCH, [self._keys.of_job("launchers")], arguments)


def _holder(answer: Sequence[Any]) -> str:
    """Return in words who refused a voucher."""
    if answer[0] == b"launch":
        return launcher_of(answer[1])
    return coordinator_of(CoordinatorRecord(**json.loads(answer[1])))


def _as_named_here(failure: Failure) -> FailureRecord:
    """Return a failure by the launcher's name: a process of planned groups is its pserver."""
    role = "pserver" if failure.role == PROCESS else failure.role
    return FailureRecord(ProcessName(role, failure.index), failure.reason)
