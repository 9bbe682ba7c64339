"""The registry as a member sees it: heartbeats, payloads, and the job's decisions."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paramfleet_shared.discovery.errors import (
    EpochEndedError,
    FencedError,
    UnissuedIncarnationError,
)
from paramfleet_shared.discovery.records import (
    End,
    Failure,
    JobRecord,
    Member,
    MemberKey,
    end_to_text,
)
from paramfleet_shared.discovery.redis.scripts import BEAT, FAIL, PUT, RESTORE, Keys
from paramfleet_shared.discovery.redis.store import RedisStore

__all__ = [
    "RETENTION_MS",
    "CoordinatorRecord",
    "JobView",
    "Registry",
    "field_of",
    "raise_if_fenced",
    "read_hash",
    "read_record",
]

RETENTION_MS = 24 * 3600 * 1000
"""How long a run's keys outlive the last write of any of its members."""

_GATHER_KEEP_S = 600.0
"""How long a gather's payloads are kept at least, from the last one on."""

_PAYLOAD_TIMEOUT_S = 30.0
"""Seconds that moving a gather's payloads may take."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CoordinatorRecord:
    """The coordinator that has the job's lease."""

    endpoint: str
    """Its rpc address; empty while it starts."""

    admin: str
    host: str
    pid: int
    launch: str = ""
    """Launch it belongs to; empty for none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobView:
    """What a heartbeat learns."""

    job: JobRecord | None
    """None when Redis was restarted empty and the coordinator hasn't written it again."""

    has_coordinator: bool

    num_beats: int
    """This member's, as Redis counts them: from 1 on after it was emptied."""


class Registry:
    """A member's reads and fenced writes; each is one round trip under a deadline.

    Args:
        store: The connection; closed by whoever opened it.
        job: The job's name.
    """

    def __init__(self, store: RedisStore, *, job: str) -> None:
        self._store = store
        self._job = job
        self._keys = Keys(job)

    async def ping(self) -> None:
        """Return when Redis answers.

        Raises:
            NoRedisError: if it doesn't.
            RedisRefusedError: if Redis asks for another password.
        """
        await self._store.command("PING")

    async def find_coordinator(self) -> CoordinatorRecord | None:
        """Return the coordinator that may be called now, if there is one."""
        record = await self._store.command("HGET", self._keys.of_job("coordinator"), "record")
        coordinator = CoordinatorRecord(**json.loads(record)) if record else None
        return coordinator if coordinator is not None and coordinator.endpoint else None

    async def read_job(self, epoch: int) -> JobRecord | None:
        """Return the decisions about a run."""
        return await read_record(self._store, self._keys, epoch)

    async def read_latest(self) -> tuple[int, JobRecord | None]:
        """Return the epoch of the latest run, 0 without any, and the decisions about it.

        Raises:
            NoRedisError: if Redis doesn't answer.
        """
        epoch = int(await self._store.command("GET", self._keys.of_job("epoch")) or 0)
        return epoch, await self.read_job(epoch) if epoch else None

    async def has_finished(self, launch: str) -> bool:
        """Return whether the latest run is of a launch, and has finished well.

        Raises:
            NoRedisError: if Redis doesn't answer.
        """
        _, record = await self.read_latest()
        return record is not None and (record.launch, record.state) == (launch, "finished")

    async def read_members(self, epoch: int) -> list[Member]:
        """Return the members of a run, in no order."""
        key = self._keys.of_run(epoch)[4]
        found = read_hash(await self._store.command("HGETALL", key))
        return [Member.from_json(text) for text in found.values()]

    async def read_training(self, epoch: int) -> list[int]:
        """Return the ranks of the workers that train: who has ended or is lost doesn't."""
        ends = read_hash(await self._store.command("HGETALL", self._keys.of_run(epoch)[6]))
        return [
            member.index
            for member in await self.read_members(epoch)
            if member.role == "worker" and not ends.get(field_of(*member.key))
        ]

    async def read_incarnation(self, role: str, index: int) -> int:
        """Return the newest incarnation of a place that was given out; 0 for none."""
        field = field_of(role, index)
        return int(await self._store.command("HGET", self._keys.of_job("lives"), field) or 0)

    async def read_facts(self, epoch: int, role: str) -> dict[int, dict[str, Any]]:
        """Return what the members of a role published last, by index."""
        key = self._keys.of_run(epoch)[7]
        found = read_hash(await self._store.command("HGETALL", key))
        prefix = f"{role}:"
        return {
            int(name.removeprefix(prefix)): json.loads(text)
            for name, text in found.items()
            if name.startswith(prefix)
        }

    async def read_audit(self) -> list[dict[str, Any]]:
        """Return what operators changed of the job, in its former runs too, oldest first."""
        kept = await self._store.command("LRANGE", self._keys.of_job("audit"), 0, -1)
        return [json.loads(text) for text in kept]

    async def beat(
        self, member: Member, *, epoch: int, end: End = "", why: str = "", facts: str = ""
    ) -> JobView:
        """Renew a lease, and write again all this member has said, should Redis have lost it.

        Args:
            member: Whose lease.
            epoch: The run it belongs to.
            end: How its part has ended; empty while it hasn't.
            why: What the end says of its reason.
            facts: What it publishes, as JSON; empty for nothing new.

        Raises:
            FencedError: if a newer process has this role and index.
            EpochEndedError: if another run of the job has begun.
            NoRedisError: if Redis doesn't answer.
        """
        read = (self._keys.of_decisions(epoch), self._keys.of_job("coordinator"))
        arguments = (member.to_json(), end_to_text(end, why), facts, *read)
        _, job, num_coordinators, failure, num_beats = await self._fenced(
            BEAT, member, epoch=epoch, arguments=arguments
        )
        return JobView(
            job=_record_of(job, failure),
            has_coordinator=bool(num_coordinators),
            num_beats=int(num_beats),
        )

    async def restore(
        self, member: Member, *, epoch: int, record: JobRecord, passed: Mapping[str, int]
    ) -> None:
        """Say what is known of a run that Redis has lost, for a coordinator that lost it, too.

        Args:
            member: Who says it.
            epoch: The run.
            record: The decisions that it has read last.
            passed: How often it has passed each barrier.
        """
        known = json.dumps({"record": record.to_fields(), "passed": dict(passed)})
        await self._fenced(RESTORE, member, epoch=epoch, arguments=(known,))

    async def fail(
        self, member: Member, *, epoch: int, reason: str, of: MemberKey | None = None
    ) -> None:
        """End the job with a failure, this member's or that ``of`` another; the first stays."""
        role, index = of or member.key
        failure = Failure(role=role, index=index, reason=reason)
        arguments = (failure.to_json(), self._keys.of_decisions(epoch))
        await self._fenced(FAIL, member, epoch=epoch, arguments=arguments)

    async def put(
        self,
        member: Member,
        *,
        epoch: int,
        use: str,
        payload: bytes,
        keep_s: float = 0.0,
    ) -> None:
        """Lay down a worker's payload of one gather; may be repeated.

        It is kept for ``keep_s`` seconds, but some minutes at least.
        """
        await self._fenced(
            PUT,
            member,
            epoch=epoch,
            arguments=(round(max(keep_s, _GATHER_KEEP_S) * 1000), member.index, payload),
            more=(f"gather:{use}",),
        )

    async def read_payloads(self, *, epoch: int, use: str) -> dict[int, bytes]:
        """Return the payloads of one gather by rank."""
        key = self._keys.of_run(epoch, f"gather:{use}")[-1]
        found = read_hash(
            await self._store.command("HGETALL", key, timeout_s=_PAYLOAD_TIMEOUT_S)
        )
        return {int(rank): payload for rank, payload in found.items()}

    async def _fenced(
        self,
        script: str,
        member: Member,
        *,
        epoch: int,
        arguments: tuple[str | bytes | int, ...],
        more: tuple[str, ...] = (),
    ) -> list[Any]:
        answer = await self._store.run(
            script,
            self._keys.of_member(epoch, *more),
            (epoch, field_of(*member.key), member.incarnation, RETENTION_MS, *arguments),
            timeout_s=_PAYLOAD_TIMEOUT_S if script is PUT else None,
        )
        raise_if_fenced(answer, member, job=self._job, epoch=epoch)
        return answer


def raise_if_fenced(answer: list[Any], member: Member, *, job: str, epoch: int) -> None:
    """Turn a script's refusal into its error.

    Raises:
        FencedError: if a newer process has this role and index.
        EpochEndedError: if another run of the job has begun.
        UnissuedIncarnationError: if the coordinator didn't assign this incarnation.
    """
    if answer[0] == b"unissued":
        raise UnissuedIncarnationError(
            role=member.role,
            index=member.index,
            incarnation=member.incarnation,
            newest=int(answer[1]),
        )
    if answer[0] == b"fenced":
        raise FencedError(
            role=member.role,
            index=member.index,
            incarnation=member.incarnation,
            newest=int(answer[1]),
        )
    if answer[0] == b"epoch":
        raise EpochEndedError(job=job, epoch=epoch, newest=int(answer[1]))


async def read_record(store: RedisStore, keys: Keys, epoch: int) -> JobRecord | None:
    """Return the decisions about a run, which has failed as soon as a member has told so.

    Raises:
        NoRedisError: if Redis doesn't answer.
    """
    failure = await store.command("HGET", keys.of_failure(epoch), "failure")
    return _record_of(await store.command("HGETALL", keys.of_decisions(epoch)), failure)


def _record_of(job: Any, failure: bytes | None) -> JobRecord | None:
    fields = read_hash(job)
    if failure and "failure" not in fields and fields.get("state") != b"finished":
        fields |= {"failure": failure, "state": b"failed"}
    return JobRecord.from_fields(fields)


def field_of(role: str, index: int) -> str:
    """Return the field of a member in the registry's hashes."""
    return f"{role}:{index}"


def read_hash(answer: Any) -> dict[str, bytes]:
    """Return a hash by field; scripts answer it as a flat list, commands as a mapping."""
    if isinstance(answer, Mapping):
        return {bytes(name).decode(): bytes(value) for name, value in answer.items()}
    flat = iter(answer)
    return {bytes(name).decode(): bytes(value) for name, value in zip(flat, flat, strict=True)}
