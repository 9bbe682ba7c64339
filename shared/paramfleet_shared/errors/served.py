"""Errors that a pserver answers with, as classes that its workers know too.

A worker doesn't import the pserver's code. An error that lived there would reach it as
its bare branch (see ``errors.error_from_wire``), and no script could catch it by name.
"""

from typing import Any

from paramfleet_shared.errors import ContractError, IntegrityError, UnavailableError
from paramfleet_shared.errors.numbers import (
    BadWeightError,
    LearningRateRefusedError,
    NonFiniteGradientError,
    NonFiniteValuesError,
)
from paramfleet_shared.errors.totals import (
    TotalIncompleteError,
    TotalMismatchError,
    TotalsTooLargeError,
)

__all__ = [
    "AnswerTooLargeError",
    "BadWeightError",
    "ElasticModeError",
    "FencedError",
    "GeoRuleError",
    "KnownIdsGoneError",
    "LearningRateRefusedError",
    "ModeMismatchError",
    "NonFiniteGradientError",
    "NonFiniteValuesError",
    "NotAMemberError",
    "OperationModeError",
    "ParkedStepError",
    "PulledIdsGoneError",
    "PushRepeatedError",
    "SequenceExpiredError",
    "StepIncompleteError",
    "StepPassedError",
    "StepTooEarlyError",
    "TablesDamagedError",
    "TablesNotDeclaredError",
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

    def __init__(self, *, field: str, have: Any, got: Any) -> None:
        super().__init__(
            f"the job runs with {field} = {have!r}, but a worker declares {got!r}: "
            "every worker must use the same strategy",
            field=field,
            have=have,
            got=got,
        )
        self.field = field
        self.have = have
        self.got = got


class TurnTimeoutError(UnavailableError):
    """A worker waited in vain for the slowest to come near enough."""

    code = "unavailable.turn_timeout"

    def __init__(self, *, rank: int, step: int, slowest: int, waited_s: float) -> None:
        super().__init__(
            f"worker {rank} waited {waited_s:.1f} s to begin step {step}: the slowest "
            f"worker has finished {slowest} steps",
            rank=rank,
            step=step,
            slowest=slowest,
            waited_s=waited_s,
        )
        self.rank = rank
        self.step = step
        self.slowest = slowest
        self.waited_s = waited_s


class NotAMemberError(ContractError):
    """A worker acted for a step it takes no part in."""

    code = "contract.not_a_member"

    def __init__(self, *, rank: int, step: int, num_workers: int) -> None:
        super().__init__(
            f"worker {rank} takes no part in step {step}: it left before, or isn't "
            f"one of the job's {num_workers} workers",
            rank=rank,
            step=step,
            num_workers=num_workers,
        )
        self.rank = rank
        self.step = step
        self.num_workers = num_workers


class StepPassedError(ContractError):
    """A push names a step that was already applied."""

    code = "contract.step_passed"

    def __init__(self, *, rank: int, step: int, next_step: int) -> None:
        super().__init__(
            f"worker {rank} pushed step {step}, but the servers have applied every step "
            f"before {next_step}",
            rank=rank,
            step=step,
            next_step=next_step,
        )
        self.rank = rank
        self.step = step
        self.next_step = next_step


class StepTooEarlyError(ContractError):
    """A push names a step too far beyond the one in progress."""

    code = "contract.step_too_early"

    def __init__(self, *, rank: int, step: int, next_step: int, max_ahead_steps: int) -> None:
        super().__init__(
            f"worker {rank} pushed step {step} while step {next_step} is in progress: "
            f"at most {max_ahead_steps} steps ahead are kept",
            rank=rank,
            step=step,
            next_step=next_step,
            max_ahead_steps=max_ahead_steps,
        )
        self.rank = rank
        self.step = step
        self.next_step = next_step
        self.max_ahead_steps = max_ahead_steps


class AnswerTooLargeError(ContractError):
    """What is asked for in one request doesn't fit into one answer."""

    code = "contract.answer_too_large"

    def __init__(self, *, table: str, rows: int, num_bytes: int, limit_bytes: int) -> None:
        super().__init__(
            f"table {table!r}: with {rows} rows of it the answer would have {num_bytes} bytes, "
            f"and {limit_bytes} are accepted: ask for less at a time",
            table=table,
            rows=rows,
            num_bytes=num_bytes,
            limit_bytes=limit_bytes,
        )


class PulledIdsGoneError(ContractError):
    """The ids of a pull that a request names aren't kept any more; nothing was changed."""

    code = "contract.pulled_ids_gone"

    def __init__(self, *, table: str, rank: int, pull: int) -> None:
        super().__init__(
            f"table {table!r}: the ids of worker {rank}'s pull {pull} aren't kept any more: "
            "send the ids",
            table=table,
            rank=rank,
            pull=pull,
        )


class KnownIdsGoneError(ContractError):
    """The numbers by which a request names ids aren't known here; nothing was changed."""

    code = "contract.known_ids_gone"

    def __init__(self, *, table: str, rank: int, book: int) -> None:
        super().__init__(
            f"table {table!r}: the numbers of worker {rank}'s book {book} aren't known: "
            "send the ids, and begin another book",
            table=table,
            rank=rank,
            book=book,
        )


class PushRepeatedError(ContractError):
    """A worker pushed a step twice, as two different pushes."""

    code = "contract.push_repeated"

    def __init__(self, *, rank: int, step: int) -> None:
        super().__init__(
            f"worker {rank} pushed step {step} before, under another identity",
            rank=rank,
            step=step,
        )
        self.rank = rank
        self.step = step


class FencedError(IntegrityError):
    """A former life of a worker acted after its successor had begun."""

    code = "integrity.worker_fenced"

    def __init__(self, *, worker: int, incarnation: int, current: int) -> None:
        super().__init__(
            f"worker {worker}: incarnation {incarnation} was replaced by {current}; "
            "this process must stop",
            worker=worker,
            incarnation=incarnation,
            current=current,
        )
        self.worker = worker
        self.incarnation = incarnation
        self.current = current


class SequenceExpiredError(ContractError):
    """A push came so late that nobody knows whether it was taken before."""

    code = "contract.sequence_expired"

    def __init__(self, *, worker: int, table: str, sequence: int, oldest: int) -> None:
        super().__init__(
            f"worker {worker}, table {table!r}: push {sequence} is older than {oldest}, "
            "the oldest that can still be told from a retry",
            worker=worker,
            table=table,
            sequence=sequence,
            oldest=oldest,
        )
        self.worker = worker
        self.table = table
        self.sequence = sequence
        self.oldest = oldest


class UnknownWorkerError(ContractError):
    """A worker acted that never joined, or after leaving."""

    code = "contract.unknown_worker"

    def __init__(self, *, rank: int) -> None:
        super().__init__(f"worker {rank} is not a member of this job", rank=rank)
        self.rank = rank


class ParkedStepError(ContractError):
    """A worker committed a step it had been told to hold."""

    code = "contract.parked_step"

    def __init__(self, *, rank: int, step: int) -> None:
        super().__init__(
            f"worker {rank} committed step {step}, which is parked until the slowest "
            "worker moves on",
            rank=rank,
            step=step,
        )
        self.rank = rank
        self.step = step


class StepIncompleteError(UnavailableError):
    """A pull waited in vain for a step that some workers have not pushed."""

    code = "unavailable.step_incomplete"

    def __init__(self, *, version: int, step: int, missing: list[int], waited_s: float) -> None:
        ranks = ", ".join(map(str, missing))
        super().__init__(
            f"version {version} was not reached within {waited_s:.1f} s: "
            + (f"step {step} waits for worker(s) {ranks}" if missing else "no worker is left"),
            version=version,
            step=step,
            missing=missing,
            waited_s=waited_s,
        )
        self.version = version
        self.step = step
        self.missing = missing
        self.waited_s = waited_s


class TablesDamagedError(IntegrityError):
    """An update failed in the middle: some shards have it and some have not."""

    code = "integrity.tables_damaged"

    def __init__(self, *, step: int, reason: str) -> None:
        super().__init__(f"step {step} was applied in part: {reason}", step=step, reason=reason)
        self.step = step
        self.reason = reason


class TablesNotDeclaredError(ContractError):
    """A worker acts before any worker has declared the tables."""

    code = "contract.tables_not_declared"

    def __init__(self, *, operation: str) -> None:
        super().__init__(f"{operation!r} came before any 'declare'", operation=operation)
        self.operation = operation


class OperationModeError(ContractError):
    """An operation doesn't exist in the mode the job runs in."""

    code = "contract.operation_mode"

    def __init__(self, *, operation: str, mode: str) -> None:
        super().__init__(
            f"{operation!r} is no operation of mode {mode!r}", operation=operation, mode=mode
        )
        self.operation = operation
        self.mode = mode


class ElasticModeError(ContractError):
    """A job whose workers come and go was to train in a mode that waits for all of them."""

    code = "contract.elastic_mode"

    def __init__(self, *, mode: str) -> None:
        super().__init__(
            f"mode {mode!r} (strategy.a_sync = False) takes every worker into every step, and "
            "the coordinator's setting elastic = True lets workers come and go: set "
            "strategy.a_sync = True, or elastic = False",
            mode=mode,
        )
        self.mode = mode


class UnknownTableError(ContractError):
    """A request names a table that no worker has declared."""

    code = "contract.unknown_table"

    def __init__(self, *, table: str) -> None:
        super().__init__(f"table {table!r} was not declared", table=table)
        self.table = table


class GeoRuleError(ContractError):
    """A job declares a table whose optimizer would run on the servers, and not in workers."""

    code = "contract.geo_rule"

    def __init__(self, *, table: str, rule: str) -> None:
        super().__init__(
            f"table {table!r} is declared with rule {rule!r}: in this mode workers run its "
            "optimizer and servers add up, so the rule must be 'sum'",
            table=table,
            rule=rule,
        )
        self.table = table
        self.rule = rule
