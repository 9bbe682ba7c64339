"""The events that a supervisor receives, and the actions that it returns.

Plain values: an event says what happened, an action says what to do.
"""

import signal
from dataclasses import dataclass

__all__ = [
    "Action",
    "Consult",
    "Event",
    "Excuse",
    "Exited",
    "FailureRecord",
    "Finish",
    "Interrupted",
    "Lose",
    "MembersLeft",
    "ProcessName",
    "RecordRead",
    "Report",
    "Restart",
    "Review",
    "Reviewed",
    "Signal",
    "Start",
    "Tick",
    "Wanted",
    "WatchMembers",
    "describe_exit",
]


@dataclass(frozen=True, order=True, slots=True)
class ProcessName:
    """A process of the job, as its lines and its log are labelled."""

    role: str
    index: int

    @property
    def label(self) -> str:
        """Return ``worker 1``."""
        return f"{self.role} {self.index}"


@dataclass(frozen=True, slots=True)
class FailureRecord:
    """What the registry says about the end of the job."""

    name: ProcessName
    reason: str


# -- what may happen


@dataclass(frozen=True, slots=True)
class Exited:
    """A process of this launcher ended; a negative code is a signal's number."""

    name: ProcessName
    code: int


@dataclass(frozen=True, slots=True)
class RecordRead:
    """The answer to ``Consult``; None when there is no record, or no registry."""

    record: FailureRecord | None
    silent_s: float = 0.0
    """For how long the registry hasn't answered, if that is for longer than a lease."""


@dataclass(frozen=True, slots=True)
class Reviewed:
    """The answer to ``Review``: how the job stands."""

    name: ProcessName
    record: FailureRecord | None = None
    """Why the job failed; None if it hasn't, or no registry answers."""
    finished: bool = False
    shrinks: bool = False
    """Whether it goes on without a worker that isn't started again."""


@dataclass(frozen=True, slots=True)
class MembersLeft:
    """The answer to ``WatchMembers``: the registry knows no member any more."""


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The launcher received a signal to stop."""

    signal: signal.Signals


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed; nothing else happened."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The job trains, and an operator wants so many processes for its pservers."""

    processes: int


Event = Exited | RecordRead | Reviewed | MembersLeft | Interrupted | Tick | Wanted


# -- what to do


@dataclass(frozen=True, slots=True)
class Consult:
    """Read the job's failure record, and write this one if there is none."""

    name: ProcessName
    reason: str


@dataclass(frozen=True, slots=True)
class Review:
    """Read how the job stands, and write nothing: a process died that may be started again."""

    name: ProcessName


@dataclass(frozen=True, slots=True)
class Restart:
    """Start a process again that died, and report it to the user."""

    name: ProcessName
    how: str
    number: int
    """Which restart in a row this is, from 1."""
    most: int


@dataclass(frozen=True, slots=True)
class WatchMembers:
    """Say ``MembersLeft`` once the registry knows no member."""


@dataclass(frozen=True, slots=True)
class Signal:
    """Send a signal to the process group of each name."""

    names: tuple[ProcessName, ...]
    signal: signal.Signals


@dataclass(frozen=True, slots=True)
class Report:
    """Report to the user, before all else, which process ended the job, and how."""

    name: ProcessName
    how: str
    """``exited with code 7``; what the registry says stands in brackets."""
    local: bool
    """Whether this launcher started it, and so has its log."""
    reason: str = ""
    """Why it exited, as it has reported itself to the registry."""


@dataclass(frozen=True, slots=True)
class Lose:
    """Report to the user, and to the job, that an elastic job continues without a worker."""

    name: ProcessName
    how: str


@dataclass(frozen=True, slots=True)
class Dismiss:
    """Report to the user that these are stopped though they didn't end by themselves.

    All workers have ended well, and the coordinator was started again: it may not know that.
    """

    names: tuple[ProcessName, ...]


@dataclass(frozen=True, slots=True)
class Start:
    """Start one more process of the job."""

    name: ProcessName


@dataclass(frozen=True, slots=True)
class Excuse:
    """Say that a worker failed, which was started again too late for its job."""

    name: ProcessName
    how: str


@dataclass(frozen=True, slots=True)
class Finish:
    """Everything ended: exit with this code."""

    code: int


Action = (
    Consult
    | Review
    | Restart
    | WatchMembers
    | Signal
    | Report
    | Lose
    | Dismiss
    | Excuse
    | Start
    | Finish
)


def describe_exit(code: int) -> str:
    """Return ``was killed by SIGKILL`` for -9, ``exited with code 7`` for 7."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
