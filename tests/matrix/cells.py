"""The cells of the matrix: what is hurt, how, in which mode, and what may come of it."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from paramfleet_worker.app.verify.plan import ELASTIC, MODES, Mode, Order, Plan

__all__ = ["CELLS", "FAULTS", "GRACE_S", "ROLES", "Cell", "Fault", "Outcome", "judge"]

ROLES: Final = ("worker", "pserver", "coordinator", "redis")

GRACE_S = 20.0
"""For how long a process may be silent that its launcher sees alive."""

NAMED_WITHIN_S = 10.0
"""Within which an error names the cause, beyond what has to be waited out."""

AT_STEP = 20
PACE_MS = 40

PERIOD = 6
"""Of GEO and LocalSGD: all is exchanged behind the last step."""


class Fault(NamedTuple):
    """One way to hurt a process."""

    lasts_s: float
    words: tuple[str, ...]
    """Behind ``paramfleet chaos``; the target is the second."""


FAULTS: Final[Mapping[str, Fault]] = {
    "kill": Fault(0.0, ("kill",)),
    "stop 8 s": Fault(8.0, ("stop", "--for=8")),
    "stop 30 s": Fault(30.0, ("stop", "--for=30")),
    "partition 8 s": Fault(8.0, ("partition", "--for=8")),
    "slow x5 8 s": Fault(8.0, ("slow", "--by=5", "--for=8")),
    "disk full 8 s": Fault(8.0, ("full", "--for=8")),
    "port reuse": Fault(0.0, ()),
    "clock +1 h": Fault(0.0, ("clock", "--by=3600")),
}

_NONE = {
    ("worker", "disk full 8 s"): "writes nothing",
    ("coordinator", "disk full 8 s"): "writes nothing",
    ("redis", "disk full 8 s"): "writes nothing",
    ("worker", "port reuse"): "no process calls it",
    ("redis", "port reuse"): "has a Unix socket",
}
"""Cells that can't be, and why."""


@dataclass(frozen=True, order=True, slots=True)
class Cell:
    """One cell."""

    role: str
    fault: str
    mode: Mode

    @property
    def name(self) -> str:
        """Return its name, as ``worker/kill/sync``."""
        return f"{self.role}/{self.fault}/{self.mode}"

    @property
    def why_not(self) -> str:
        """Return why there is no such case; empty if there is."""
        return _NONE.get((self.role, self.fault), "")

    @property
    def target(self) -> str:
        """Return the process that is hurt."""
        return {"worker": "worker:1", "pserver": "pserver:0"}.get(self.role, self.role)

    @property
    def plan(self) -> Plan:
        """Return the run: its training goes on behind the fault's end."""
        lasts_s = FAULTS[self.fault].lasts_s
        steps = AT_STEP + 60 + int(lasts_s * 1000 / PACE_MS)
        steps += -steps % PERIOD
        return Plan(
            seed=1,
            mode=self.mode,
            steps=steps,
            pace_ms=PACE_MS,
            elastic=self.role == "worker" and self.mode in ELASTIC,
            orders=tuple(Order(AT_STEP, words) for words in self._orders()),
        )

    def _orders(self) -> Iterator[tuple[str, ...]]:
        action, *options = FAULTS[self.fault].words or ("",)
        if not action or (self.role, action) == ("redis", "clock"):
            return
        if (self.role, action) == ("redis", "partition"):
            for member in ("worker:0", "worker:1", "pserver:0", "pserver:1", "coordinator"):
                yield (action, member, "registry", *options)
        else:
            yield (action, self.target, *options)


CELLS: Final = tuple(
    Cell(role, fault, mode) for role in ROLES for fault in FAULTS for mode in MODES
)


class Outcome(NamedTuple):
    """What became of a cell."""

    text: str
    """As it is in the table."""
    is_right: bool


def judge(cell: Cell, problems: list[str], words: list[str], after_s: float | None) -> Outcome:
    """Return what a run showed.

    Args:
        cell: It.
        problems: What was wrong with the run; its numbers, or that the job ended badly.
        words: The launcher's last lines.
        after_s: Seconds from the fault's end to the first step of all, or from its begin to
            the job's end if that ended badly; None if there was no fault.
    """
    if after_s is None:
        return Outcome(f"WRONG: nothing was hurt: {_short(problems)}", is_right=False)
    if not problems:
        verb = "goes on without it" if cell.plan.elastic and _is_lost(words) else "recovers"
        return Outcome(f"{verb}, {after_s:.1f} s", is_right=True)
    bound_s = NAMED_WITHIN_S + (GRACE_S if FAULTS[cell.fault].lasts_s else 0.0)
    named = next((line for line in reversed(words) if _names(cell, line)), "")
    ended = any("the job ended with" in problem for problem in problems)
    if ended and named and after_s <= bound_s:
        return Outcome(f"ends, named, {after_s:.1f} s", is_right=True)
    return Outcome(
        f"WRONG after {after_s:.1f} s: {_short([*problems, *words[-2:]])}", is_right=False
    )


def _is_lost(words: list[str]) -> bool:
    return any("the job goes on without it" in line for line in words)


def _names(cell: Cell, line: str) -> bool:
    role, _, index = cell.target.partition(":")
    return re.search(rf"\b{role} {index or 0}\b|\bRedis\b", line) is not None


def _short(texts: list[str]) -> str:
    return " / ".join(texts).replace("|", "/").replace("\n", " ")[:160] or "no reason"
