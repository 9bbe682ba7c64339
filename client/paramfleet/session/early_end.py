"""Notice that a script ends, and why, before it said that it was done."""

import atexit
import logging
import sys
from collections.abc import Callable
from typing import Any, Protocol

from paramfleet_shared.errors import (
    ContractError,
    FleetError,
    IntegrityError,
    JobFailedError,
)
from paramfleet_shared.settings.config import read_environment
from paramfleet_shared.system.processes.ending import VARIABLE

__all__ = ["say_briefly", "say_jobs_failure_briefly", "watch_for_early_end"]

log = logging.getLogger(__name__)


class _Abandon(Protocol):
    def __call__(self, error: str | None, *, may_return: bool = False) -> None: ...


def watch_for_early_end(abandon: _Abandon, *, rank: Callable[[], int]) -> None:
    """Call ``abandon`` when the script ends, with the exception that ended it, if one did.

    It says, too, whether another process that runs the script may do better: not where a rule
    was broken, or the job's state can't be trusted. Another member's failure has no traceback
    here: it would show where this script happened to be.

    Args:
        abandon: What is called.
        rank: Returns this worker's.
    """
    raised: list[tuple[str, bool]] = []
    report = sys.excepthook

    def remember(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        may_return = not isinstance(error, (ContractError, IntegrityError))
        raised.append((f"{kind.__name__}: {error}", may_return))
        if isinstance(error, JobFailedError) and _is_others(error, rank()):
            log.error("worker.job_failed", extra={"reason": str(error)})
            return
        report(kind, error, trace)

    sys.excepthook = remember

    def end() -> None:
        error, may_return = raised[0] if raised else (None, False)
        abandon(error, may_return=may_return)

    atexit.register(end)


def _is_others(error: JobFailedError, rank: int) -> bool:
    """Return whether another member than the worker of this rank has failed."""
    return (error.role, error.index) != ("worker", rank)


def say_jobs_failure_briefly() -> None:
    """Let a server's script end with one line, and no traceback, where the job has failed."""
    report = sys.excepthook

    def end(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        if isinstance(error, JobFailedError):
            log.error("pserver.job_failed", extra={"reason": str(error)})
            return
        report(kind, error, trace)

    sys.excepthook = end


def say_briefly(own: FleetError) -> None:
    """Let a worker's script end with one line, and no traceback, where this error ends it.

    For what keeps it from joining, of which each frame but one is ours. A launcher tells itself
    what has ended a process, and where: below one all stays as it is.
    """
    if read_environment().get(VARIABLE):
        return
    report = sys.excepthook

    def end(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        if error is own:
            error.__cause__, error.__suppress_context__, trace = None, True, None
            error.with_traceback(None)
        report(kind, error, trace)

    sys.excepthook = end
