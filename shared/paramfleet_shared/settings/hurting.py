"""Carries out in this process what ``paramfleet chaos`` asks for.

Only a process whose setting ``chaos`` is on can be hurt: it calls ``allow`` when it has joined.
One that hosts planned groups has several places, its own and one for each group, and is hurt by
what is for any of them. An order is for one incarnation and carried out once, so a process that
is started again isn't hurt by what was meant for its former one.
"""

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from paramfleet_shared.settings.failpoints import MARK, be_full, call_at
from paramfleet_shared.settings.hurts import Broken, Hurt, NetworkHurts
from paramfleet_shared.system.clock import Clock, SystemClock

__all__ = ["allow", "broken", "forbid", "hurt_other", "leave", "take"]

log = logging.getLogger(__name__)

_NETWORK = frozenset({"drop", "duplicate", "delay", "reorder", "partition"})

_PAUSING = Path(__file__).parents[1] / "system" / "processes" / "pausing.py"


class _Process:
    """What this process is, and how it is hurt."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.network = NetworkHurts()
        self.places: dict[tuple[str, int, int], int] = {}
        """The newest order that each of its places has received; 0 for none."""


_process: _Process | None = None
_pauses: "list[subprocess.Popen[bytes]]" = []


def allow(role: str, index: int, incarnation: int, clock: Clock) -> None:
    """Let operators hurt this process from now on, by a place that it has in the job.

    Args:
        role: Of the place.
        index: Of the place.
        incarnation: Of the place.
        clock: By whose time hurts last; the first place's is that of the process.
    """
    global _process  # noqa: PLW0603 -- of this process, as failpoints are
    if _process is None:
        _process = _Process(clock)
    _process.places.setdefault((role, index, incarnation), 0)
    log.warning("chaos.allowed")


def leave(role: str, index: int, incarnation: int) -> None:
    """Receive nothing more for a place, which this process needn't have; what lasts goes on."""
    if _process is not None:
        _process.places.pop((role, index, incarnation), None)


def forbid() -> None:
    """Let nobody hurt this process any more; return when nobody stands still by it."""
    global _process  # noqa: PLW0603 -- as in ``allow``
    _process = None
    while _pauses:
        _pauses.pop().wait()


def take(hurts: Iterable[Hurt]) -> None:
    """Carry out what is new, and for this process."""
    own = _process
    if own is None:
        return
    for hurt in hurts:
        place = (hurt.role, hurt.index, hurt.incarnation)
        newest = own.places.get(place)
        if newest is not None and hurt.number > newest:
            own.places[place] = hurt.number
            _begin(own, hurt)


def broken(peer: str, now: float) -> Broken | None:
    """Return what happens to calls to a peer; None for nothing.

    Args:
        peer: ``pserver:0``, ``coordinator``, ``registry``, or a name of no peer for calls of
            others to this process.
        now: The time of the clock that ``allow`` was given.
    """
    return None if _process is None else _process.network.of(peer, now)


def hurt_other(hurt: Hurt, pid: int) -> None:
    """Hurt a process of this machine that isn't ours to ask, as Redis.

    Raises:
        OSError: if there is no such process, or it is another user's.
        ValueError: if the number is that of no single process, or of the machine's first.
    """
    if pid <= 1:
        problem = f"process {pid} must not get a fault: it is not a process of a job"
        raise ValueError(problem)
    log.warning("chaos", extra={"pid": pid, **_said(hurt)})
    if hurt.action == "kill":
        os.kill(pid, signal.SIGKILL)
        return
    _start_pausing(pid, hurt)
    if hurt.action == "stop":
        os.kill(pid, signal.SIGSTOP)


def _begin(own: _Process, hurt: Hurt) -> None:
    log.warning("chaos.ordered", extra=_said(hurt))
    if hurt.action == "full":
        until = SystemClock().monotonic() + hurt.for_s
        be_full(hurt.point, first=hurt.nth, until=until)
    elif hurt.point:
        call_at(hurt.point, hurt.nth, lambda: _do(own, hurt))
    else:
        _do(own, hurt)


def _do(own: _Process, hurt: Hurt) -> None:
    """Hurt this process now; any thread may have reached the point."""
    pid = os.getpid()
    if hurt.action in _NETWORK:
        own.network.add(hurt, own.clock.monotonic())
    elif hurt.action == "clock":
        _shift_time(hurt.by)
    else:
        now = SystemClock().monotonic()
        where = hurt.point or "now"
        line = f"\n{MARK} {hurt.role}-{hurt.index} chaos {where} {hurt.action} {now:.6f}\n"
        if hurt.action in {"stop", "slow"}:
            _start_pausing(pid, hurt)
        os.write(2, line.encode())  # at once: there is no later
        if hurt.action != "slow":
            number = signal.SIGKILL if hurt.action == "kill" else signal.SIGSTOP
            os.kill(pid, number)


def _start_pausing(pid: int, hurt: Hurt) -> None:
    """Start what lets a process go on later, and wait until it is ready.

    Raises:
        OSError: if it can't be started.
    """
    _pauses[:] = [each for each in _pauses if each.poll() is None]
    words = [str(hurt.by), str(hurt.for_s)] if hurt.action == "slow" else [str(hurt.for_s)]
    pause = subprocess.Popen(  # noqa: S603 -- our own script
        [sys.executable, "-I", "-S", str(_PAUSING), str(pid), hurt.action, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert pause.stdout is not None, "it was asked for"
    with pause.stdout:
        is_ready = bool(pause.stdout.read(1))
    if not is_ready:
        pause.wait()
        msg = f"process {pid} can't be made to go on later"
        raise OSError(msg)
    _pauses.append(pause)


def _shift_time(seconds: float) -> None:
    """Have the time of day jump, for whatever in this process asks ``time`` for it."""
    now, now_ns = time.time, time.time_ns  # noqa: TID251 -- what is replaced
    time.time = lambda: now() + seconds  # noqa: TID251
    time.time_ns = lambda: now_ns() + int(seconds * 1e9)


def _said(hurt: Hurt) -> dict[str, object]:
    """Return a hurt's facts for the log; some names are the log's own."""
    return {f"chaos_{name}": value for name, value in hurt.facts().items()}
