"""Errors that a pserver answers with, as classes that its workers know too.

A worker doesn't import the pserver's code. An error that lived there would reach it as
its bare branch (see ``errors.error_from_wire``), and no script could catch it by name.
"""

from typing import Any

from typing_extensions import override

from paramfleet_shared.errors import ContractError, IntegrityError, UnavailableError
from paramfleet_shared.errors.following import (
    CopyDamagedError,
    FollowAgainError,
    HandoverError,
    MovedError,
    NotExpectedError,
    NotMovableError,
    NotWholeError,
    PlanChangedError,
    TooManyFollowersError,
)
from paramfleet_shared.errors.logs import (
    CommandTooLargeError,
    DataFolderError,
    DiskFailingError,
    DiskFullError,
    LogBehindError,
    LogClosedError,
    LogDamagedError,
    LogInUseError,
    LogOfOtherJobError,
    LogTermError,
    NotDurableError,
    OtherTermError,
    ReplayError,
    SnapshotDamagedError,
    SnapshotOfOtherJobError,
    SnapshotPlaceError,
)
from paramfleet_shared.errors.numbers import (
    BadWeightError,
    LearningRateRefusedError,
    NonFiniteGradientError,
    NonFiniteValuesError,
    ShowCountError,
)
from paramfleet_shared.errors.passes import (
    ForeignWriteError,
    PassCommittedError,
    PassInDoubtError,
    PassNotPreparedError,
    PassNumberError,
    PassNumbersError,
    PassPieceRepeatedError,
    PassPiecesError,
    PassPreparedError,
    PassUpdatesError,
)
from paramfleet_shared.errors.totals import (
    NormFailedError,
    NormMismatchError,
    NormNotSharedError,
    TotalIncompleteError,
    TotalMismatchError,
    TotalsTooLargeError,
)

__all__ = [
    "AnswerTooLargeError",
    "BadWeightError",
    "CommandTooLargeError",
    "CopyDamagedError",
    "DataFolderError",
    "DiskFailingError",
    "DiskFullError",
    "ElasticModeError",
    "FencedError",
    "FollowAgainError",
    "ForeignWriteError",
    "GeoRuleError",
    "HandoverError",
    "KnownIdsGoneError",
    "LearningRateRefusedError",
    "LogBehindError",
    "LogClosedError",
    "LogDamagedError",
    "LogInUseError",
    "LogOfOtherJobError",
    "LogTermError",
    "ModeMismatchError",
    "MovedError",
    "NonFiniteGradientError",
    "NonFiniteValuesError",
    "NormFailedError",
    "NormMismatchError",
    "NormNotSharedError",
    "NotAMemberError",
    "NotDurableError",
    "NotExpectedError",
    "NotKeptError",
    "NotMovableError",
    "NotWholeError",
    "OperationModeError",
    "OtherTermError",
    "ParkedStepError",
    "PassCommittedError",
    "PassInDoubtError",
    "PassNotPreparedError",
    "PassNumberError",
    "PassNumbersError",
    "PassPieceRepeatedError",
    "PassPiecesError",
    "PassPreparedError",
    "PassUpdatesError",
    "PlanChangedError",
    "PulledIdsGoneError",
    "PushRepeatedError",
    "ReplayError",
    "SequenceTooEarlyError",
    "ShowCountError",
    "SnapshotDamagedError",
    "SnapshotOfOtherJobError",
    "SnapshotPlaceError",
    "StepBegunError",
    "StepIncompleteError",
    "StepPassedError",
    "StepTooEarlyError",
    "TablesDamagedError",
    "TablesNotDeclaredError",
    "TooManyFollowersError",
    "TooManyVoidedError",
    "TotalIncompleteError",
    "TotalMismatchError",
    "TotalsTooLargeError",
    "TurnTimeoutError",
    "UnknownTableError",
    "UnknownWorkerError",
]


class ModeMismatchError(ContractError):
    """Two workers declare the job differently."""

    code = "contract.mode_mismatch"
    field: str
    have: Any
    got: Any
    sentence = (
        "the job runs with {field} = {have!r}, but a worker declares {got!r}: "
        "every worker must use the same strategy"
    )


class NotKeptError(ContractError):
    """A pserver that keeps the training on its disk can't keep a part of it."""

    code = "contract.not_kept"
    what: str
    sentence = (
        "{what} can't be used with pservers that keep the training on their disks: leave it "
        "out, or set durability to none"
    )


class TurnTimeoutError(UnavailableError):
    """A worker waited in vain for the slowest to come near enough."""

    code = "unavailable.turn_timeout"
    rank: int
    step: int
    slowest: int
    waited_s: float
    sentence = (
        "worker {rank} waited {waited_s:.1f} s to begin step {step}: the slowest "
        "worker has finished {slowest} steps"
    )


class NotAMemberError(ContractError):
    """A worker acted for a step it takes no part in."""

    code = "contract.not_a_member"
    rank: int
    step: int
    num_workers: int
    sentence = (
        "worker {rank} takes no part in step {step}: it left before, or isn't "
        "one of the job's {num_workers} workers"
    )


class StepPassedError(ContractError):
    """A push names a step that was already applied."""

    code = "contract.step_passed"
    rank: int
    step: int
    next_step: int
    sentence = (
        "worker {rank} pushed step {step}, but the servers have applied every step "
        "before {next_step}"
    )


class StepBegunError(ContractError):
    """Rows were to be removed or written when a worker had pushed the step; none was."""

    code = "contract.step_begun"
    rank: int
    step: int
    other: int
    sentence = (
        "worker {rank} removes or writes rows before step {step}, which worker {other} has "
        "pushed already: in sync every worker does so between the same two steps"
    )


class StepTooEarlyError(ContractError):
    """A push names a step too far beyond the one in progress."""

    code = "contract.step_too_early"
    rank: int
    step: int
    next_step: int
    max_ahead_steps: int
    sentence = (
        "worker {rank} pushed step {step} while step {next_step} is in progress: "
        "at most {max_ahead_steps} steps ahead are kept"
    )


class PartLostError(IntegrityError):
    """A worker is gone together with its part of a step, which other pservers have."""

    code = "integrity.part_lost"
    rank: int
    step: int
    sentence = (
        "worker {rank} is gone, and so is its part of step {step} here, which other pservers "
        "have: it died together with this pserver; resume from a checkpoint"
    )


class VersionGoneError(IntegrityError):
    """A worker that was started again asks for values of a step that are kept no more."""

    code = "integrity.version_gone"
    version: int
    applied: int
    kept: int
    sentence = (
        "the values after {version} steps are gone: {applied} are applied, and those of the "
        "last {kept} are kept; resume from a checkpoint"
    )


class AnswerTooLargeError(ContractError):
    """What is asked for in one request doesn't fit into one answer."""

    code = "contract.answer_too_large"
    table: str
    rows: int
    num_bytes: int
    limit_bytes: int
    sentence = (
        "table {table!r}: with {rows} rows of it the answer would have {num_bytes} bytes, "
        "and {limit_bytes} are accepted: ask for less at a time"
    )


class PulledIdsGoneError(ContractError):
    """The ids of a pull that a request names aren't kept any more; nothing was changed."""

    code = "contract.pulled_ids_gone"
    table: str
    rank: int
    pull: int
    sentence = (
        "table {table!r}: the ids of worker {rank}'s pull {pull} aren't kept any more: "
        "send the ids"
    )


class KnownIdsGoneError(ContractError):
    """The numbers by which a request names ids aren't known here; nothing was changed."""

    code = "contract.known_ids_gone"
    table: str
    rank: int
    book: int
    sentence = (
        "table {table!r}: the numbers of worker {rank}'s list {book} of ids aren't known: "
        "send the ids, and begin another list"
    )


class PushRepeatedError(ContractError):
    """A worker pushed a step twice, as two different pushes."""

    code = "contract.push_repeated"
    rank: int
    step: int
    sentence = "worker {rank} pushed step {step} before, under another identity"


class FencedError(IntegrityError):
    """A former process of a worker sent a request after its successor had begun."""

    code = "integrity.worker_fenced"
    worker: int
    incarnation: int
    current: int
    sentence = (
        "worker {worker}: incarnation {incarnation} was replaced by {current}; "
        "this process must stop"
    )


class SequenceTooEarlyError(ContractError):
    """A change came too far ahead of one that is lacking; nothing was changed."""

    code = "contract.sequence_too_early"
    worker: int
    sequence: int
    awaited: int
    max_later: int
    sentence = (
        "worker {worker}: change {sequence} is more than {max_later} ahead of {awaited}, which "
        "has not arrived: send or void that one first"
    )


class TooManyVoidedError(ContractError):
    """A worker voided more of its changes than are remembered; nothing was changed."""

    code = "contract.too_many_voided"
    worker: int
    sequence: int
    most: int
    sentence = (
        "worker {worker}: change {sequence} can't be voided: {most} were voided already, "
        "because so many were refused; find the cause, and start the worker again"
    )


class UnknownWorkerError(ContractError):
    """A worker acted that never joined, or after leaving."""

    code = "contract.unknown_worker"
    rank: int
    sentence = "worker {rank} is not a member of this job"


class ParkedStepError(ContractError):
    """A worker committed a step that it had been asked to hold."""

    code = "contract.parked_step"
    rank: int
    step: int
    sentence = (
        "worker {rank} committed step {step}, which waits until the slowest worker continues"
    )


class StepIncompleteError(UnavailableError):
    """A pull waited in vain for a step that some workers have not pushed."""

    code = "unavailable.step_incomplete"
    version: int
    step: int
    missing: list[int]
    waited_s: float
    places: list[str] = []  # noqa: RUF012 - the default of a fact
    """Where the missing workers are, as far as is known."""

    @override
    def describe(self) -> str:
        known = zip(self.missing, self.places, strict=False) if self.places else ()
        places = {rank: place for rank, place in known if place}
        ranks = ", ".join(
            f"{rank} ({places[rank]})" if rank in places else str(rank) for rank in self.missing
        )
        return f"version {self.version} was not reached within {self.waited_s:.1f} s: " + (
            f"step {self.step} waits for worker(s) {ranks}"
            if self.missing
            else "no worker is left"
        )


class TablesDamagedError(IntegrityError):
    """An update failed in the middle: some shards have it and some have not."""

    code = "integrity.tables_damaged"
    step: int
    reason: str
    sentence = "step {step} was applied in part: {reason}"


class TablesNotDeclaredError(ContractError):
    """A worker acts before any worker has declared the tables."""

    code = "contract.tables_not_declared"
    operation: str
    sentence = "{operation!r} was called before any 'declare'"


class OperationModeError(ContractError):
    """An operation doesn't exist in the mode the job runs in."""

    code = "contract.operation_mode"
    operation: str
    mode: str
    sentence = "{operation!r} is not an operation of mode {mode!r}"


class ElasticModeError(ContractError):
    """A job whose workers come and go was to train in a mode that waits for all of them."""

    code = "contract.elastic_mode"
    mode: str

    @override
    def describe(self) -> str:
        takes = f"mode {self.mode!r} takes every worker into every pass"
        remedy = "set elastic = False, or train with one worker"
        if self.mode != "gpubox":
            takes = (
                f"mode {self.mode!r} (strategy.a_sync = False) takes every worker into "
                "every step"
            )
            remedy = "set strategy.a_sync = True, or elastic = False"
        return (
            f"{takes}, and the coordinator's setting elastic = True lets workers come and go: "
            f"{remedy}"
        )


class UnknownTableError(ContractError):
    """A request names a table that no worker has declared."""

    code = "contract.unknown_table"
    table: str
    sentence = "table {table!r} was not declared"


class GeoRuleError(ContractError):
    """A job declares a table whose optimizer would run on the servers, and not in workers."""

    code = "contract.geo_rule"
    table: str
    rule: str
    sentence = (
        "table {table!r} is declared with rule {rule!r}: in this mode workers run its "
        "optimizer and servers add up, so the rule must be 'sum'"
    )
