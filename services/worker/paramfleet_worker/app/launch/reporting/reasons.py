"""Why a process failed: what it has written down, what the registry knows, or its output."""

import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from paramfleet_shared.errors import ENDED_EARLY
from paramfleet_worker.app.launch.reporting.page_link import HasPid
from paramfleet_worker.core.causes import (
    TRACEBACK_LINES,
    Cause,
    as_reason,
    find_cause,
    is_same_reason,
)
from paramfleet_worker.core.events import Report, describe_exit
from paramfleet_worker.process.children.ending import Ending
from paramfleet_worker.process.probes.libraries import library_test

__all__ = ["KILLED", "UNCAUGHT", "HasOutput", "found_of", "how_of", "reason_of"]

UNCAUGHT = describe_exit(1)
"""How a script ends that an exception ended."""

KILLED = describe_exit(-signal.SIGKILL)
"""How a process ends that can't say why."""

_WORDS_LAST = frozenset({UNCAUGHT, describe_exit(2)})
"""How a script ends whose last line says why: with 2 where its options are wrong."""


class HasOutput(HasPid, Protocol):
    """A process of the job, and what it wrote."""

    @property
    def log(self) -> Path:
        """The file of its output."""
        ...

    @property
    def last_words(self) -> str:
        """Its last line on standard error that isn't one of our log's; empty if unknown."""
        ...

    @property
    def ending(self) -> Ending | None:
        """What it has written down of its end; None if it writes nothing down."""
        ...

    def tail(self, num_lines: int) -> list[str]:
        """Return its last lines."""
        ...

    async def drained(self, timeout_s: float) -> None:
        """Wait until all of its output has come."""
        ...


def how_of(cause: Report) -> str:
    """Return ``exited with code 1``; empty where only the registry says something of it."""
    return "" if cause.how.startswith("(") else cause.how


def reason_of(cause: Report, child: HasOutput | None) -> tuple[str, Cause]:
    """Return why a process failed, empty if nobody knows, and what is known of the place.

    What the registry says goes first: it may have another cause than the script's end. A script
    may say why it ends in its last line, and then call ``sys.exit(1)``.

    Args:
        cause: Which process it was, how it ended, and what the registry says.
        child: The process, if it is here.
    """
    published = as_reason(cause.reason or (cause.how[1:-1] if not how_of(cause) else ""))
    is_unsaid = published in {"", ENDED_EARLY}
    if child is None:
        return published, Cause()
    found = found_of(cause.how, child.ending, child.tail)
    if found.error and (is_unsaid or is_same_reason(found.error, published)):
        return found.error, found
    if not is_unsaid:
        return published, Cause()
    words = as_reason(child.last_words) if cause.how in _WORDS_LAST else ""
    return words or published, found


def found_of(how: str, ending: Ending | None, tail: Callable[[int], Sequence[str]]) -> Cause:
    """Return what is known of the end of a process by itself.

    Its output is looked at only if it doesn't import paramfleet: anything may be in there.

    Args:
        how: It ended.
        ending: What it has written down of that.
        tail: Returns the last lines of its log.
    """
    if ending is None:
        if how != UNCAUGHT:
            return Cause()
        return find_cause(tail(TRACEBACK_LINES), library_test())
    is_error = ending.kind == "error" and not how.startswith("was killed")
    is_unseen = how.startswith("(")  # only the registry knows as yet that it ends
    is_exit = ending.kind == "exit" and (is_unseen or how == describe_exit(ending.code))
    return ending.cause(library_test()) if is_error or is_exit else Cause()
