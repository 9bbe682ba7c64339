"""What can go wrong between a member, the registry and the coordinator."""

from collections.abc import Sequence

from paramfleet_shared.errors import ContractError, IntegrityError, UnavailableError

__all__ = [
    "BarrierTimeoutError",
    "CoordinatorExistsError",
    "EpochEndedError",
    "FencedError",
    "GatherLostError",
    "IndexTakenError",
    "JobFinishedError",
    "JobFullError",
    "JobSizeError",
    "NoCoordinatorError",
    "NoRedisError",
    "NotAMemberError",
    "OtherLaunchError",
    "PlacementTimeoutError",
    "RedisRefusedError",
    "TooManyBarriersError",
    "UnissuedIncarnationError",
    "UnknownRoleError",
    "WorkersOnlyError",
    "WrongJobError",
]


class NoRedisError(UnavailableError):
    """Redis didn't answer."""

    code = "unavailable.no_redis"

    def __init__(self, *, url: str, waited_s: float, reason: str, remedy: str) -> None:
        super().__init__(
            f"no answer from Redis at {url} after {waited_s:.1f} s ({reason}): {remedy}",
            url=url,
            waited_s=waited_s,
            reason=reason,
            remedy=remedy,
        )


class RedisRefusedError(ContractError):
    """Redis answered that this process may not use it."""

    code = "contract.redis_refused"

    def __init__(self, *, url: str, reason: str) -> None:
        super().__init__(f"Redis at {url} refused: {reason}", url=url, reason=reason)


class NoCoordinatorError(UnavailableError):
    """No coordinator of the job has announced itself."""

    code = "unavailable.no_coordinator"

    def __init__(self, *, job: str, waited_s: float, reason: str = "none announced") -> None:
        super().__init__(
            f"no coordinator of job {job!r} after {waited_s:.1f} s ({reason}): start one with "
            "`paramfleet coordinator`, with the same job name and Redis",
            job=job,
            waited_s=waited_s,
            reason=reason,
        )


class WrongJobError(UnavailableError):
    """The address of a coordinator is now another job's coordinator."""

    code = "unavailable.wrong_job"

    def __init__(self, *, asked: str, served: str) -> None:
        super().__init__(
            f"this coordinator serves job {served!r}, not {asked!r}", asked=asked, served=served
        )


class UnknownRoleError(ContractError):
    """A process asked for a role that no job has."""

    code = "contract.unknown_role"

    def __init__(self, *, role: str) -> None:
        super().__init__(f"there is no role {role!r}: pserver or worker", role=role)


class JobFullError(ContractError):
    """A job has all the members of a role that it was started for."""

    code = "contract.job_full"

    def __init__(self, *, role: str, limit: int) -> None:
        super().__init__(
            f"the job was started for {limit} {role}s (index 0 to {limit - 1}), and this "
            "would be one more",
            role=role,
            limit=limit,
        )


class JobFinishedError(ContractError):
    """A worker came when there was nothing left to train."""

    code = "contract.job_finished"

    def __init__(self, *, role: str) -> None:
        super().__init__(
            f"the job has finished, and takes no {role} any more: a new run of it begins once "
            "its coordinator has ended",
            role=role,
        )


class IndexTakenError(ContractError):
    """Another process has this role and index."""

    code = "contract.index_taken"

    def __init__(self, *, role: str, index: int, holder: str) -> None:
        super().__init__(f"{role} {index} is {holder}", role=role, index=index, holder=holder)


class JobSizeError(ContractError):
    """A coordinator was restarted with other sizes than its running job has."""

    code = "contract.job_size"

    def __init__(self, *, job: str, name: str, running: int, given: int) -> None:
        super().__init__(
            f"job {job!r} is running with {name} = {running}, not {given}: "
            "end it first, or choose another job name",
            job=job,
            name=name,
            running=running,
            given=given,
        )


class CoordinatorExistsError(ContractError):
    """A job has a coordinator already."""

    code = "contract.coordinator_exists"

    def __init__(self, *, job: str, holder: str) -> None:
        super().__init__(
            f"job {job!r} has a coordinator already: {holder}", job=job, holder=holder
        )


class TooManyBarriersError(ContractError):
    """Workers wait at too many different barriers."""

    code = "contract.too_many_barriers"

    def __init__(self, *, name: str, limit: int) -> None:
        super().__init__(
            f"barrier {name!r} can't be opened: {limit} are open already, which is the most",
            name=name,
            limit=limit,
        )


class WorkersOnlyError(ContractError):
    """A process that isn't a worker called what is among workers."""

    code = "contract.workers_only"

    def __init__(self, *, role: str, operation: str) -> None:
        super().__init__(
            f"{operation} is among workers, and this is a {role}",
            role=role,
            operation=operation,
        )


class NotAMemberError(UnavailableError):
    """The coordinator hasn't seen this member yet; its next heartbeat makes it known."""

    code = "unavailable.not_a_member"

    def __init__(self, *, role: str, index: int) -> None:
        super().__init__(f"{role} {index} hasn't joined", role=role, index=index)


class FencedError(IntegrityError):
    """A newer process has taken this one's place; what it writes is refused."""

    code = "integrity.fenced"

    def __init__(self, *, role: str, index: int, incarnation: int, newest: int) -> None:
        super().__init__(
            f"{role} {index} incarnation {incarnation} was replaced by incarnation {newest}",
            role=role,
            index=index,
            incarnation=incarnation,
            newest=newest,
        )


class UnissuedIncarnationError(ContractError):
    """A process acts for a member with an incarnation that the coordinator never gave out."""

    code = "contract.unissued_incarnation"

    def __init__(self, *, role: str, index: int, incarnation: int, newest: int) -> None:
        given = f"the newest is {newest}" if newest else "it gave out none"
        super().__init__(
            f"{role} {index} incarnation {incarnation} isn't one that the coordinator gave "
            f"out: {given}; join the job first",
            role=role,
            index=index,
            incarnation=incarnation,
            newest=newest,
        )


class OtherLaunchError(ContractError):
    """A job of this name runs already, started by another launch."""

    code = "contract.other_launch"

    def __init__(self, *, job: str, holder: str) -> None:
        super().__init__(
            f"job {job!r} runs already: {holder}; end it first, or give this one another name "
            "with --job",
            job=job,
            holder=holder,
        )


class EpochEndedError(IntegrityError):
    """The job this process belongs to has ended, and another of its name has begun."""

    code = "integrity.epoch_ended"

    def __init__(self, *, job: str, epoch: int, newest: int) -> None:
        super().__init__(
            f"job {job!r} has gone on to run {newest}; this process belongs to run {epoch}",
            job=job,
            epoch=epoch,
            newest=newest,
        )


class PlacementTimeoutError(UnavailableError):
    """Not every pserver was serving in time."""

    code = "unavailable.placement_timeout"

    def __init__(self, *, missing: Sequence[int], waited_s: float) -> None:
        names = ", ".join(f"pserver {index}" for index in missing) or "the coordinator's word"
        super().__init__(
            f"the pservers weren't complete after {waited_s:.1f} s; missing: {names}",
            missing=list(missing),
            waited_s=waited_s,
        )
        self.missing = list(missing)


class BarrierTimeoutError(UnavailableError):
    """A barrier's last worker didn't come in time; waiting again is allowed."""

    code = "unavailable.barrier_timeout"

    def __init__(
        self,
        *,
        name: str,
        generation: int,
        arrived: Sequence[int],
        missing: Sequence[int],
        waited_s: float,
        reason: str = "",
    ) -> None:
        super().__init__(
            f"barrier {name!r} (use {generation}) after {waited_s:.1f} s: workers "
            f"{list(arrived)} arrived, {list(missing)} are missing"
            + (f" ({reason})" if reason else ""),
            name=name,
            generation=generation,
            arrived=list(arrived),
            missing=list(missing),
            waited_s=waited_s,
            reason=reason,
        )
        self.arrived = list(arrived)
        self.missing = list(missing)


class GatherLostError(UnavailableError):
    """Payloads of a gather vanished, because Redis came back empty in between."""

    code = "unavailable.gather_lost"

    def __init__(self, *, name: str, generation: int, missing: Sequence[int]) -> None:
        super().__init__(
            f"gather {name!r} (use {generation}): Redis lost the payloads of workers "
            f"{list(missing)}",
            name=name,
            generation=generation,
            missing=list(missing),
        )
