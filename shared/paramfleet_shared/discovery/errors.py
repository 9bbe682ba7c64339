"""What can go wrong between a member, the registry and the coordinator."""

from collections.abc import Sequence

from typing_extensions import override

from paramfleet_shared.errors import ContractError, IntegrityError, UnavailableError

__all__ = [
    "BarrierTimeoutError",
    "ConcurrentCollectiveError",
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
    "OtherCallError",
    "OtherHostingError",
    "OtherLaunchError",
    "PlacementTimeoutError",
    "RedisRefusedError",
    "TooManyBarriersError",
    "UnissuedIncarnationError",
    "UnknownRoleError",
    "WorkersOnlyError",
    "WrongDataFolderError",
    "WrongJobError",
]


class NoRedisError(UnavailableError):
    """Redis didn't answer."""

    code = "unavailable.no_redis"
    url: str
    waited_s: float
    reason: str
    remedy: str
    sentence = "no answer from Redis at {url} after {waited_s:.1f} s ({reason}): {remedy}"


class RedisRefusedError(ContractError):
    """Redis answered that this process may not use it."""

    code = "contract.redis_refused"
    url: str
    reason: str
    sentence = "Redis at {url} refused: {reason}"


class NoCoordinatorError(UnavailableError):
    """No coordinator of the job has announced itself."""

    code = "unavailable.no_coordinator"
    job: str
    waited_s: float
    reason: str = "none announced"
    sentence = (
        "no coordinator of job {job!r} after {waited_s:.1f} s ({reason}): start one with "
        "`paramfleet coordinator`, with the same job name and Redis"
    )


class WrongJobError(UnavailableError):
    """The address of a coordinator is now another job's coordinator."""

    code = "unavailable.wrong_job"
    asked: str
    served: str
    sentence = "this coordinator serves job {served!r}, not {asked!r}"


class OtherHostingError(ContractError):
    """A pserver's process hosts groups in another way than its job."""

    code = "contract.other_hosting"
    planned: bool

    @override
    def describe(self) -> str:
        if self.planned:
            return (
                "the coordinator plans which process hosts which group of this job: start its "
                "pservers with hosting=planned (PARAMFLEET_PSERVER__HOSTING)"
            )
        return (
            "each pserver of this job hosts the group of its index: leave hosting at fixed, or "
            "start the coordinator with server_processes"
        )


class UnknownRoleError(ContractError):
    """A process asked for a role that no job has."""

    code = "contract.unknown_role"
    role: str
    sentence = "there is no role {role!r}: pserver or worker"


class JobFullError(ContractError):
    """A job has all the members of a role that it was started for."""

    code = "contract.job_full"
    role: str
    limit: int

    @override
    def describe(self) -> str:
        return (
            f"the job was started for {self.limit} {self.role}s (index 0 to "
            f"{self.limit - 1}), and this "
            "would be one more"
        )


class JobFinishedError(ContractError):
    """A worker came when there was nothing left to train."""

    code = "contract.job_finished"
    role: str
    sentence = (
        "the job has finished, and accepts no {role} any more: a new run begins when its "
        "coordinator has ended"
    )


class IndexTakenError(ContractError):
    """Another process has this role and index."""

    code = "contract.index_taken"
    role: str
    index: int
    holder: str
    sentence = "{role} {index} is {holder}"


class WrongDataFolderError(ContractError):
    """A process would be a durable pserver of a run without having its data folder."""

    code = "contract.wrong_data_folder"
    index: int
    run: int
    durable: bool
    holds_run: int
    former: str

    @override
    def describe(self) -> str:
        holds = "that of no run"
        if not self.durable:
            holds = "none"
        elif self.holds_run:
            holds = f"that of run {self.holds_run}"
        return (
            f"pserver {self.index} has its training of run {self.run} in a data folder, and "
            f"this process has {holds}: start it with the data folder of the former one, "
            f"{self.former}"
        )


class JobSizeError(ContractError):
    """A coordinator was restarted with other sizes than its running job has."""

    code = "contract.job_size"
    job: str
    name: str
    running: int
    given: int
    sentence = (
        "job {job!r} is running with {name} = {running}, not {given}: "
        "end it first, or choose another job name"
    )


class CoordinatorExistsError(ContractError):
    """A job has a coordinator already."""

    code = "contract.coordinator_exists"
    job: str
    holder: str
    sentence = "job {job!r} has a coordinator already: {holder}"


class TooManyBarriersError(ContractError):
    """Workers wait at too many different barriers."""

    code = "contract.too_many_barriers"
    name: str
    limit: int
    sentence = "barrier {name!r} can't be opened: {limit} are open already, the maximum"


class WorkersOnlyError(ContractError):
    """A process that isn't a worker called what is among workers."""

    code = "contract.workers_only"
    role: str
    operation: str
    sentence = "{operation} is only for workers, and this is a {role}"


class NotAMemberError(UnavailableError):
    """The coordinator hasn't seen this member yet; its next heartbeat makes it known."""

    code = "unavailable.not_a_member"
    role: str
    index: int
    sentence = "{role} {index} hasn't joined"


class FencedError(IntegrityError):
    """A newer process has taken this one's place; what it writes is refused."""

    code = "integrity.fenced"
    role: str
    index: int
    incarnation: int
    newest: int
    sentence = "{role} {index} incarnation {incarnation} was replaced by incarnation {newest}"


class UnissuedIncarnationError(ContractError):
    """A process acts for a member with an incarnation that the coordinator never gave out."""

    code = "contract.unissued_incarnation"
    role: str
    index: int
    incarnation: int
    newest: int

    @override
    def describe(self) -> str:
        given = f"the newest is {self.newest}" if self.newest else "it gave out none"
        return (
            f"{self.role} {self.index} incarnation {self.incarnation} isn't one that the "
            "coordinator gave "
            f"out: {given}; join the job first"
        )


class OtherLaunchError(ContractError):
    """A job of this name runs already, started by another launch."""

    code = "contract.other_launch"
    job: str
    holder: str
    sentence = (
        "job {job!r} runs already: {holder}; end it first, or give this one another name "
        "with --job"
    )


class EpochEndedError(IntegrityError):
    """The job this process belongs to has ended, and another of its name has begun."""

    code = "integrity.epoch_ended"
    job: str
    epoch: int
    newest: int
    sentence = "job {job!r} is in run {newest} now; this process belongs to run {epoch}"


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


class ConcurrentCollectiveError(ContractError):
    """Two threads of a worker are in the same collective call at once."""

    code = "contract.concurrent_collective"
    operation: str
    sentence = (
        "{operation}: another thread of this worker is in this call already; which of the two "
        "comes first would differ between workers: make collective calls (barriers, "
        "fleet.metrics, fleet.util) in one thread"
    )


class OtherCallError(ContractError):
    """Workers wait for each other in different calls, so none of them can go on."""

    code = "contract.other_call"
    rank: int
    at: str
    elsewhere: str
    sentence = (
        "worker {rank} waits in {at}, {elsewhere}: every worker must make each collective call "
        "(barriers, fleet.metrics, fleet.util), in the same order; make none of them only "
        "inside `if fleet.is_first_worker():`"
    )


class GatherLostError(UnavailableError):
    """Payloads of a gather were lost, because Redis was restarted empty in between."""

    code = "unavailable.gather_lost"

    def __init__(self, *, name: str, generation: int, missing: Sequence[int]) -> None:
        super().__init__(
            f"gather {name!r} (use {generation}): Redis lost the payloads of workers "
            f"{list(missing)}",
            name=name,
            generation=generation,
            missing=list(missing),
        )
