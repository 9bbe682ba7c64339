"""The registry as the coordinator sees it: its lease, the whole run, and its decisions."""

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, TypeVar

from paramfleet_shared.discovery.errors import OtherLaunchError
from paramfleet_shared.discovery.orders import Orders
from paramfleet_shared.discovery.records import (
    PROCESS,
    ROLES,
    End,
    JobRecord,
    Lost,
    Member,
    MemberKey,
    Release,
    Snapshot,
    Voucher,
    end_from_text,
    end_to_text,
)
from paramfleet_shared.discovery.redis.scripts import (
    ARRIVE,
    AUDIT,
    CLAIM,
    EVICT,
    KNOWN,
    REGISTER,
    RELEASE,
    RESIGN,
    TICK,
    WRITE_JOB,
    WRITE_ORDERS,
    Keys,
)
from paramfleet_shared.discovery.redis.store import RedisStore
from paramfleet_shared.discovery.registry import (
    RETENTION_MS,
    CoordinatorRecord,
    field_of,
    raise_if_fenced,
    read_hash,
    read_record,
)
from paramfleet_shared.values.texts import printable, shortened

__all__ = ["AUDIT_ENTRIES", "JobRegistry", "coordinator_of", "launcher_of"]

AUDIT_ENTRIES = 1000
"""Changes by operators that are kept; the oldest goes first."""

_AUDIT_RETENTION_MS = 90 * 24 * 3600 * 1000
"""How long they are kept after the last of them."""

_UNREADABLE = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)
"""What text that is none of ours raises."""

_MOST_UNREADABLE = 100
"""Fields that are logged."""

T = TypeVar("T")

log = logging.getLogger(__name__)


class JobRegistry:
    """The right to decide for one job, as a lease; every write carries its incarnation.

    ``epoch`` is the run it decides for: set it before the first ``tick``.

    Args:
        store: The connection; closed by whoever opened it.
        job: The job's name.
        record: Where the coordinator is.
        lease_ttl_s: Seconds the lease outlives its last tick.
    """

    def __init__(
        self, store: RedisStore, *, job: str, record: CoordinatorRecord, lease_ttl_s: float
    ) -> None:
        self._store = store
        self._job = job
        self._keys = Keys(job)
        self._record = record
        self._lease_ms = max(1, round(lease_ttl_s * 1000))
        self._unreadable = set[tuple[str, str]]()
        self._member = Member(
            role="coordinator",
            index=0,
            incarnation=0,
            endpoint=record.endpoint,
            admin=record.admin,
            host=record.host,
            pid=record.pid,
            launch=record.launch,
        )
        self.epoch = 0

    @property
    def member(self) -> Member:
        """Return the coordinator's own record."""
        return self._member

    async def try_claim(self) -> CoordinatorRecord | None:
        """Take the lease if it is free.

        Returns:
            None if the lease is now ours, else who holds it.

        Raises:
            NoRedisError: if Redis doesn't answer.
            OtherLaunchError: if the job is another launch's.
        """
        own = self._record.launch
        arguments = (self._lease_ms, self._record_text(), own)
        answer = await self._store.run(CLAIM, self._keys.of_run(0), arguments)
        if answer[0] == b"launch":
            raise OtherLaunchError(job=self._job, holder=launcher_of(answer[1]))
        if answer[0] == b"taken":
            holder = CoordinatorRecord(**json.loads(answer[1]))
            if own and holder.launch not in {"", own}:
                raise OtherLaunchError(job=self._job, holder=coordinator_of(holder))
            return holder
        self._member = replace(self._member, incarnation=int(answer[1]))
        return None

    def announce(self, *, endpoint: str, admin: str) -> None:
        """Let members know the addresses; the next tick writes them."""
        self._record = replace(self._record, endpoint=endpoint, admin=admin)
        self._member = replace(self._member, endpoint=endpoint, admin=admin)

    async def read_epoch(self) -> int:
        """Return the latest run of the job; 0 if Redis knows none."""
        return int(await self._store.command("GET", self._keys.of_job("epoch")) or 0)

    async def read_run(self, epoch: int) -> tuple[JobRecord | None, dict[str, bytes]]:
        """Return the decisions about a run, and its members' counts of heartbeats."""
        record = await read_record(self._store, self._keys, epoch)
        beats = self._keys.of_run(epoch)[5]
        return record, read_hash(await self._store.command("HGETALL", beats))

    async def tick(self) -> Snapshot:
        """Renew the lease and read the run.

        Raises:
            FencedError: if another coordinator has taken the lease.
            EpochEndedError: if another run has begun.
            NoRedisError: if Redis doesn't answer.
        """
        answer = await self._fenced(TICK, self._lease_ms, self._record_text())
        job, members, beats, ends, facts, released, launchers = map(read_hash, answer[1:])
        said = {name: facts.pop(name) for name in sorted(facts) if name.startswith(KNOWN)}
        known = list(self._read("facts", said, lambda _, text: _known(text)).values())
        found = self._read("members", members, _member)
        ended = self._read("ends", ends, lambda name, text: (_key(name), _end(text)))
        counts = self._read("beats", beats, lambda name, text: (_key(name), int(text)))
        told = self._read("facts", facts, lambda name, text: (_key(name), _facts(text)))
        return Snapshot(
            job=JobRecord.from_fields(job),
            members={member.key: member for member in found.values()},
            beats=dict(counts.values()),
            ends={key: end for key, (end, _) in ended.values()},
            last_words={key: why for key, (_, why) in ended.values() if why},
            facts=dict(told.values()),
            released=self._read("released", released, _release),
            known=_known_of([record for record, _ in known]),
            passed=[passed for _, passed in known],
            vouchers=self._read("launchers", launchers, lambda _, text: _voucher(text)),
        )

    def _read(
        self, kind: str, found: Mapping[str, bytes], read: Callable[[str, bytes], T]
    ) -> dict[str, T]:
        """Return what can be read of a hash's fields; of the others each is logged once.

        Members may write what they like into their own; it must not end the coordinator.
        """
        entries = dict[str, T]()
        for name, text in found.items():
            try:
                entries[name] = read(name, text)
            except _UNREADABLE as error:
                where = (kind, name)
                if len(self._unreadable) < _MOST_UNREADABLE and where not in self._unreadable:
                    self._unreadable.add(where)
                    reason = f"{type(error).__name__}: {error}"
                    facts = {"field": _shown(name), "reason": _shown(reason)}
                    log.warning("registry.unreadable", extra={"kind": kind, **facts})
        return entries

    async def register(self, member: Member, *, after: int = 0) -> int:
        """Write a new member and count its life; may be repeated by the same nonce.

        Args:
            member: Who; its incarnation is ignored.
            after: The last incarnation of its place that is known, should Redis have lost it.

        Returns:
            Its incarnation.
        """
        key = field_of(*member.key)
        return int((await self._fenced(REGISTER, key, member.to_json(), after))[1])

    async def evict(self, lost: Lost, *, standing: Iterable[tuple[str, int]]) -> None:
        """Refuse whatever a worker's process writes from now on; may be repeated.

        Args:
            lost: Who, and why.
            standing: Name and generation of the open barriers; it stands there no more.
        """
        key, end = field_of("worker", lost.index), end_to_text("lost", lost.reason)
        more = tuple(f"barrier:{generation}:{name}" for name, generation in standing)
        await self._fenced(EVICT, key, lost.incarnation, end, lost.index, more=more)

    async def write_job(self, record: JobRecord) -> JobRecord:
        """Write decisions; a failure, an end and newer orders that are written already stay.

        Returns:
            The record as it is now.
        """
        words = [word for pair in record.to_fields().items() for word in pair]
        written = JobRecord.from_fields(read_hash((await self._fenced(WRITE_JOB, *words))[1]))
        assert written is not None, "it was written in the same script"
        return written

    async def write_orders(self, orders: Orders, *, after: int) -> Orders | None:
        """Write an operator's orders, unless others were written meanwhile.

        Args:
            orders: The new ones.
            after: The version of those that they change.

        Returns:
            None if they are written, else the newer ones that are stored.

        Raises:
            NoRedisError: if Redis doesn't answer; the next ``tick`` shows what is stored.
        """
        answer = await self._fenced(WRITE_ORDERS, after, orders.to_json())
        return None if answer[0] == b"ok" else Orders.from_json(answer[1])

    async def arrive(self, name: str, generation: int, rank: int) -> None:
        """Note that a worker stands at a barrier; may be repeated."""
        use = f"{generation}:{name}"
        await self._fenced(ARRIVE, use, rank, more=(f"barrier:{use}",))

    async def release(self, release: Release) -> None:
        """Note that a barrier let its workers go; may be repeated."""
        use = f"{release.generation}:{release.name}"
        text = json.dumps({"generation": release.generation, "ranks": release.ranks})
        await self._fenced(RELEASE, release.name, text, use, more=(f"barrier:{use}",))

    async def read_arrivals(self) -> dict[tuple[str, int], set[int]]:
        """Return who stands at which open barrier, by name and generation."""
        arrivals = {}
        for use in await self._store.command("SMEMBERS", self._keys.of_run(self.epoch)[9]):
            generation, name = bytes(use).decode().split(":", maxsplit=1)
            key = self._keys.of_run(self.epoch, f"barrier:{generation}:{name}")[-1]
            ranks = await self._store.command("SMEMBERS", key)
            arrivals[name, int(generation)] = {int(rank) for rank in ranks}
        return arrivals

    async def keep_audit(self, after: int, entries: Sequence[str]) -> bool:
        """Keep what operators changed, beyond this run; may be repeated.

        Args:
            after: The number of the entry before these; 0 if it need not be there.
            entries: JSON objects, each with its ``number``.

        Returns:
            False if that entry is lost; nothing was kept then.
        """
        key = self._keys.of_job("audit")
        numbers = (_AUDIT_RETENTION_MS, AUDIT_ENTRIES, after)
        answer = await self._fenced(AUDIT, *numbers, *entries, keys=(key,))
        return bytes(answer[0]) == b"ok"

    async def read_audit(self) -> list[bytes]:
        """Return the entries that are kept, oldest first."""
        return list(await self._store.command("LRANGE", self._keys.of_job("audit"), 0, -1))

    async def resign(self) -> None:
        """Give the lease back, so that the next coordinator needn't wait for its end."""
        await self._fenced(RESIGN)

    def _record_text(self) -> str:
        return json.dumps(asdict(self._record))

    async def _fenced(
        self,
        script: str,
        *arguments: str | int,
        more: tuple[str, ...] = (),
        keys: tuple[str, ...] = (),
    ) -> list[Any]:
        own = (self.epoch, "coordinator:0", self._member.incarnation, RETENTION_MS)
        keys = (*self._keys.of_run(self.epoch, *more), *keys)
        answer = await self._store.run(script, keys, (*own, *arguments))
        raise_if_fenced(answer, self._member, job=self._job, epoch=self.epoch)
        return answer


def coordinator_of(holder: CoordinatorRecord | Member) -> str:
    """Return in words who coordinates a job."""
    where = f" ({holder.endpoint})" if holder.endpoint else ""
    launch = f" of launch {holder.launch}" if holder.launch else ""
    return f"its coordinator{launch} is process {holder.pid} on {holder.host}{where}"


def launcher_of(text: str | bytes) -> str:
    """Return in words whose voucher this is."""
    found = Voucher.from_json(text)
    return f"launch {found.launch}, its launcher is process {found.pid} on {found.host}"


def _known(text: bytes) -> tuple[JobRecord | None, Mapping[str, int]]:
    """Return what a member has read last of the job, and which barriers it has passed."""
    said = json.loads(text)
    fields = {name: value.encode() for name, value in said["record"].items()}
    passed = {str(name): int(generation) for name, generation in said["passed"].items()}
    return JobRecord.from_fields(fields), passed


def _known_of(known: Sequence[JobRecord | None]) -> JobRecord | None:
    """Return what was read last, as its placement says; of equal ones a pserver's."""
    records = [each for each in known if each is not None]
    return max(records, key=lambda each: (each.placement or {}).get("epoch", 0), default=None)


def _member(name: str, text: bytes) -> Member:
    """Return a member.

    Raises:
        ValueError: if it is no member of that name.
    """
    member = Member.from_json(text)
    if field_of(*member.key) != name or member.role not in {*ROLES, PROCESS, "coordinator"}:
        rule = "it isn't the member of its field"
        raise ValueError(rule)
    return member


def _end(text: bytes) -> tuple[End, str]:
    return end_from_text(text.decode())


def _facts(text: bytes) -> Mapping[str, Any]:
    """Return what a member says of itself.

    Raises:
        TypeError: if those are no facts.
    """
    facts = json.loads(text)
    if not isinstance(facts, dict):
        raise TypeError(type(facts).__name__)
    return facts


def _shown(text: str) -> str:
    return printable(shortened(text, 200))


def _voucher(text: bytes) -> tuple[int, Voucher]:
    until_ms, _, voucher = text.partition(b" ")
    return int(until_ms), Voucher.from_json(voucher)


def _key(name: str) -> MemberKey:
    role, index = name.rsplit(":", maxsplit=1)
    return role, int(index)


def _release(name: str, text: bytes) -> Release:
    facts = json.loads(text)
    return Release(name=name, generation=int(facts["generation"]), ranks=tuple(facts["ranks"]))
