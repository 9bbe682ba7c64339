"""Named points of the code at which a process may be made to fail, for tests of recovery.

``PARAMFLEET_FAILPOINTS`` says what happens where, with ``;`` between::

    after_apply_before_log=kill@17
    pserver-1:before_write=full@3-8;coordinator:before_placement_written=kill@2
    while_replaying=kill@5#2

An entry is ``[ROLE[-INDEX]:]POINT=ACTION[@N[-M]][#LIFE]``. It acts from the Nth to the Mth time
that this process reaches the point, counted from 1; ``@N`` alone means once, nothing means each
time. It acts in the first life of a process, or in the one that ``#LIFE`` names: ``paramfleet
launch`` counts them in ``PARAMFLEET_LIFE`` when it starts a process again.

Nothing but the environment of the process that begins can set them, and only in a job that was
started with ``--chaos``. A process that hasn't called ``arm`` has none.
"""

import errno
import logging
import math
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from paramfleet_shared.errors import ContractError
from paramfleet_shared.settings.points import (
    DEFECTS,
    FAILPOINTS,
    FAULTS_VARIABLE,
    Failpoint,
)
from paramfleet_shared.settings.ranges import SettingError
from paramfleet_shared.system.clock import Clock, SystemClock

__all__ = [
    "DEFECTS",
    "DEFECTS_VARIABLE",
    "FAILPOINTS",
    "LIFE",
    "MARK",
    "VARIABLE",
    "ChaosNotAllowedError",
    "Failpoint",
    "Planned",
    "arm",
    "await_failpoint",
    "be_full",
    "call_at",
    "disarm",
    "failpoint",
    "has_defect",
    "read_failpoints",
    "require_chaos",
]

log = logging.getLogger(__name__)

VARIABLE = "PARAMFLEET_FAILPOINTS"

LIFE = "PARAMFLEET_LIFE"
"""Which life of its process begins, from 1."""

DEFECTS_VARIABLE = "PARAMFLEET_DEFECTS"
"""Which of ``DEFECTS`` a pserver has, with commas between."""

MARK = "failpoint:"
"""What a line begins with that a process writes before it is killed or stopped by a point."""

_MOST = 1_000_000_000
_ACTIONS = "kill, stop, full or delay:MILLISECONDS"
_ENTRY = re.compile(
    r"(?:(?P<role>[a-z]+)(?:-(?P<index>\d{1,5}))?:)?(?P<point>\w+)=(?P<action>[a-z]+)"
    r"(?::(?P<ms>\d{1,9}))?(?:@(?P<first>\d{1,9})(?:-(?P<last>\d{1,9}))?)?(?:#(?P<life>\d{1,9}))?"
)


class ChaosNotAllowedError(ContractError):
    """The environment plans faults, and the job may not have any."""

    code = "contract.chaos_not_allowed"
    variable: str
    sentence = (
        "{variable} injects faults, and this job wasn't started for tests of recovery: unset "
        "it, or start the job with `paramfleet launch --chaos` (without the launcher, set "
        "PARAMFLEET_CHAOS=1 for each process)"
    )


@dataclass(slots=True)
class Planned:
    """What happens at a point of one process."""

    point: str
    action: str
    """``kill``, ``stop``, ``full``, ``delay`` or ``call``."""
    delay_s: float
    first: int
    """The first time that it happens, counted from 1."""
    last: int
    life: int
    role: str = ""
    """Empty for any."""
    index: int | None = None
    """None for any."""
    reached: int = 0
    """How often the point was reached."""
    until: float = math.inf
    """When it ends, by the system's clock."""
    call: Callable[[], None] | None = None
    """What is called there; for the action ``call``."""

    def concerns(self, role: str, index: int | None, life: int) -> bool:
        """Return whether it is for a process."""
        own = FAILPOINTS[self.point].role if not self.role else self.role
        return own == role and (self.index is None or self.index == index) and self.life == life


_armed: dict[str, list[Planned]] = {}
_defects: frozenset[str] = frozenset()
_who = ""


def failpoint(name: str) -> None:
    """Mark a point of the code; does nothing unless it was armed.

    Raises:
        OSError: that the disk is full, where that was asked for.
    """
    if _armed:
        _reach(name)


async def await_failpoint(name: str, clock: Clock) -> None:
    """As ``failpoint``, in a coroutine: a delay holds nothing else of the process up.

    Args:
        name: Of the point.
        clock: By which it is waited.

    Raises:
        OSError: that the disk is full, where that was asked for.
    """
    for each in _due(name) if _armed else ():
        if each.action == "delay":
            await clock.sleep(each.delay_s)
        else:
            _act(each)


def has_defect(name: str) -> bool:
    """Return whether a test has planted a bug in this process."""
    return name in _defects


def require_chaos(environment: Mapping[str, str], *, chaos: bool) -> None:
    """Check that a job may have the faults that the environment plans.

    Args:
        environment: Usually ``read_environment()``.
        chaos: Whether the job was started for tests of recovery.

    Raises:
        ChaosNotAllowedError: naming the variable, if it wasn't.
    """
    for variable in (VARIABLE, DEFECTS_VARIABLE, FAULTS_VARIABLE):
        if environment.get(variable, "").strip() and not chaos:
            raise ChaosNotAllowedError(variable=variable)


def arm(
    environment: Mapping[str, str], *, role: str, chaos: bool, index: int | None = None
) -> None:
    """Take what the environment says for this process; what was armed before is gone.

    Args:
        environment: Usually ``read_environment()``.
        role: Of this process.
        chaos: As of ``require_chaos``.
        index: Of this process; None if it isn't known.

    Raises:
        ChaosNotAllowedError: as ``require_chaos``.
        SettingError: naming what can't be read.
    """
    require_chaos(environment, chaos=chaos)
    global _defects, _who  # noqa: PLW0603 -- of this process, as its environment is
    planned = list(read_failpoints(environment.get(VARIABLE, "")))
    life = _life_of(environment)
    defects = frozenset(filter(None, environment.get(DEFECTS_VARIABLE, "").split(",")))
    for name in sorted(defects - DEFECTS.keys()):
        rule = f"of {', '.join(DEFECTS)}"
        raise SettingError(name=DEFECTS_VARIABLE, value=name, rule=rule)
    disarm()
    _who = f"{role}-{'?' if index is None else index} life {life}"
    _defects = defects
    for each in planned:
        if each.concerns(role, index, life):
            _armed.setdefault(each.point, []).append(each)
            facts = {"point": each.point, "action": each.action, "first": each.first}
            log.warning("failpoint.armed", extra=facts)
    for name in sorted(defects):
        log.warning("defect.planted", extra={"defect": name})


def call_at(point: str, nth: int, call: Callable[[], None]) -> None:
    """Have something called when a point is reached for the nth time from now, once."""
    _add(Planned(point, "call", delay_s=0.0, first=nth, last=nth, life=1, call=call))


def be_full(point: str, *, first: int, until: float) -> None:
    """Have the disk be full at a point, from the nth time from now, until a time."""
    _add(Planned(point, "full", delay_s=0.0, first=first, last=_MOST, life=1, until=until))


def _add(planned: Planned) -> None:
    """Add one; threads that are at a point go on with those that they have."""
    _armed[planned.point] = [*_armed.get(planned.point, ()), planned]


def disarm() -> None:
    """Have no failpoints and no planted bugs."""
    global _defects  # noqa: PLW0603 -- as in ``arm``
    _armed.clear()
    _defects = frozenset()


def read_failpoints(text: str) -> Iterator[Planned]:
    """Yield what a text plans.

    Raises:
        SettingError: naming the entry that can't be read, and why.
    """
    for entry in filter(None, (part.strip() for part in text.split(";"))):
        found = _ENTRY.fullmatch(entry)
        rule = "[ROLE[-INDEX]:]POINT=ACTION[@N[-M]][#LIFE]" if found is None else _rule(found)
        if found is None or rule:
            raise SettingError(name=VARIABLE, value=entry, rule=rule)
        first, last = _range(found)
        yield Planned(
            point=found["point"],
            action=found["action"],
            delay_s=int(found["ms"] or 0) / 1000,
            first=first,
            last=last,
            life=int(found["life"] or 1),
            role=found["role"] or "",
            index=None if found["index"] is None else int(found["index"]),
        )


def _rule(entry: re.Match[str]) -> str:
    """Return the rule that an entry breaks; empty for none."""
    point, action = entry["point"], entry["action"]
    about = FAILPOINTS.get(point)
    if about is None:
        return f"a point: {', '.join(FAILPOINTS)}"
    first, last = _range(entry)
    disks = ", ".join(name for name, each in FAILPOINTS.items() if each.writes)
    broken = {
        f"an action: {_ACTIONS}": action not in {"kill", "stop", "full", "delay"},
        f"one of {_ACTIONS}": (entry["ms"] is not None) != (action == "delay"),
        f"full where the disk is written: {disks}": action == "full" and not about.writes,
        f"of a {about.role}, which has {point}": entry["role"] not in {None, about.role},
        "counted from 1, the last not before the first": not 1 <= first <= last,
        "of a life from 1": entry["life"] is not None and not int(entry["life"]),
    }
    return next((rule for rule, is_broken in broken.items() if is_broken), "")


def _range(entry: re.Match[str]) -> tuple[int, int]:
    """Return the first time that an entry acts, and the last."""
    if entry["first"] is None:
        return 1, _MOST
    first = int(entry["first"])
    return first, first if entry["last"] is None else int(entry["last"])


def _life_of(environment: Mapping[str, str]) -> int:
    """Return which life of a process begins.

    Raises:
        SettingError: if the variable holds no such number.
    """
    text = environment.get(LIFE, "1")
    if not text.isdigit() or not 1 <= int(text) <= _MOST:
        raise SettingError(name=LIFE, value=text, rule="a whole number from 1")
    return int(text)


def _reach(name: str) -> None:
    for each in _due(name):
        _act(each)


def _due(name: str) -> list[Planned]:
    """Count that a point is reached; return what happens there now."""
    here = _armed.get(name, ())
    for each in here:
        each.reached += 1
    return [each for each in here if each.first <= each.reached <= each.last]


def _act(planned: Planned) -> None:
    """Do what is planned.

    Raises:
        OSError: that the disk is full.
    """
    if planned.call is not None:
        planned.call()
        return
    if planned.action == "full" and SystemClock().monotonic() >= planned.until:
        return
    if planned.action == "full":
        raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)} ({VARIABLE})")
    if planned.action == "delay":
        threading.Event().wait(planned.delay_s)
        return
    now = SystemClock().monotonic()
    line = f"\n{MARK} {_who} {planned.point} {planned.action} {now:.6f}\n"
    os.write(2, line.encode())  # at once: there is no later
    number = signal.SIGKILL if planned.action == "kill" else signal.SIGSTOP
    os.kill(os.getpid(), number)
