"""What ``paramfleet chaos`` does to a process of a running job, as checked values.

Nothing here acts. ``hurting`` carries a hurt out in the process that it is for.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, NamedTuple

from paramfleet_shared.settings.points import FAILPOINTS
from paramfleet_shared.settings.ranges import SettingError

__all__ = ["ACTIONS", "Action", "Broken", "Hurt", "NetworkHurts", "read_hurt"]

ROLES = ("worker", "pserver", "coordinator", "redis")

MAX_S = 3600.0
"""Longest time that a process can be hurt for."""

_PLACE = re.compile(r"(worker|pserver|coordinator|redis|registry)(?::(\d{1,5}))?")


class Action(NamedTuple):
    """One way to hurt a process."""

    sentence: str
    roles: tuple[str, ...]
    lasts: bool = True
    """Whether it lasts for some time."""
    by: tuple[float, float, float] | None = None
    """Least, most and default of its number; None if it has none."""
    has_rate: bool = False
    """Whether it concerns a part of what is sent."""
    has_peer: bool = False
    """Whether it is between two processes."""


_MEMBERS = ("worker", "pserver", "coordinator")

ACTIONS: Final[Mapping[str, Action]] = {
    "kill": Action("It is killed (SIGKILL).", ROLES, lasts=False),
    "stop": Action("It is stopped (SIGSTOP).", ROLES),
    "slow": Action("It runs for 1/--by of the time.", ROLES, by=(1.5, 1000.0, 5.0)),
    "full": Action("Its disk is full.", ("pserver",)),
    "clock": Action(
        "Its time of day jumps by --by seconds.",
        _MEMBERS, lasts=False, by=(-4e9, 4e9, 3600.0),
    ),
    "drop": Action(
        "Requests and replies are lost.", _MEMBERS, has_rate=True, has_peer=True
    ),
    "duplicate": Action("Requests arrive twice.", _MEMBERS, has_rate=True, has_peer=True),
    "delay": Action(
        "Replies are delayed by up to --by ms.",
        _MEMBERS, by=(0.0, 60_000.0, 20.0), has_rate=True, has_peer=True,
    ),
    "reorder": Action(
        "Requests are delayed by up to --by ms, and later ones overtake them.",
        _MEMBERS, by=(0.0, 60_000.0, 20.0), has_rate=True, has_peer=True,
    ),
    "partition": Action("Nothing arrives, in both directions.", _MEMBERS, has_peer=True),
}  # fmt: skip
"""All ways, by the word for each."""

DEFAULT_S = 8.0
DEFAULT_RATE = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Hurt:
    """One thing that is done to one process."""

    action: str
    role: str
    index: int = 0
    incarnation: int = 0
    """Of the process; 0 where the role has none."""
    number: int = 0
    """Counts a job's hurts, from 1."""
    peer: str = ""
    """``pserver:0``, ``coordinator`` or ``registry``; empty for all."""
    point: str = ""
    """The failpoint at which it is done; empty for at once."""
    nth: int = 1
    """Which time the point is reached, counted from when the process receives the order."""
    for_s: float = 0.0
    rate: float = 1.0
    by: float = 0.0

    @property
    def target(self) -> str:
        """Return the process, as ``pserver:0``."""
        return f"{self.role}:{self.index}"

    def facts(self) -> dict[str, Any]:
        """Return it in plain values."""
        return asdict(self)

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> "Hurt":
        """Rebuild it; what a newer version may add is left out."""
        known = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in facts.items() if name in known})


def read_hurt(asked: Mapping[str, Any]) -> Hurt:
    """Return what an operator asks for.

    Args:
        asked: ``action``, ``target``, and of ``peer``, ``at``, ``for``, ``rate`` and ``by``
            what is given.

    Raises:
        SettingError: naming what is wrong, and the rule.
    """
    action = str(asked.get("action"))
    about = ACTIONS.get(action)
    if about is None:
        raise SettingError(name="action", value=action[:64], rule=f"of {', '.join(ACTIONS)}")
    role, index = _place("target", asked.get("target"), about.roles)
    peer = asked.get("peer") or ""
    if peer:
        if not about.has_peer:
            rule = f"left out: {action} is of one process"
            raise SettingError(name="peer", value=str(peer)[:64], rule=rule)
        role, index, peer = _pair(role, index, peer)
    point, nth = _point(asked.get("at"), role)
    if action == "full":
        point = point or "before_write"
        if not FAILPOINTS[point].writes:
            disks = ", ".join(name for name, each in FAILPOINTS.items() if each.writes)
            raise SettingError(name="at", value=point, rule=f"where a disk is written: {disks}")
    for name, is_used in (
        ("for", about.lasts), ("rate", about.has_rate), ("by", about.by is not None),
    ):  # fmt: skip
        if asked.get(name) is not None and not is_used:
            raise SettingError(name=name, value=asked[name], rule=f"left out with {action}")
    least, most, default_by = about.by or (0.0, 0.0, 0.0)
    return Hurt(
        action=action,
        role=role,
        index=index,
        peer=peer,
        point=point,
        nth=nth,
        for_s=_number(asked, "for", 0.01, MAX_S, DEFAULT_S) if about.lasts else 0.0,
        rate=_number(asked, "rate", 0.0, 1.0, DEFAULT_RATE) if about.has_rate else 1.0,
        by=_number(asked, "by", least, most, default_by) if about.by is not None else 0.0,
    )


def _place(name: str, value: Any, roles: tuple[str, ...]) -> tuple[str, int]:
    """Return a role and an index.

    Raises:
        SettingError: if it is none of these roles.
    """
    found = _PLACE.fullmatch(value) if isinstance(value, str) else None
    if found is None or found[1] not in roles:
        rule = f"a process, as pserver:0: of {', '.join(roles)}"
        raise SettingError(name=name, value=str(value)[:64], rule=rule)
    return found[1], int(found[2] or 0)


def _pair(role: str, index: int, peer: str) -> tuple[str, int, str]:
    """Return which of two processes calls, and the other one.

    Raises:
        SettingError: if neither calls the other.
    """
    other, number = _place("peer", peer, ("worker", "pserver", "coordinator", "registry"))
    ends = {(role, index), (other, number)}
    for caller, called in (
        ("worker", "pserver"), ("worker", "coordinator"), ("pserver", "coordinator"),
        ("worker", "registry"), ("pserver", "registry"), ("coordinator", "registry"),
    ):  # fmt: skip
        if {role, other} == {caller, called}:
            _, own = next(end for end in ends if end[0] == caller)
            _, theirs = next(end for end in ends if end[0] == called)
            return caller, own, f"pserver:{theirs}" if called == "pserver" else called
    rule = f"a process that {role} calls, or is called by: {role} and {other} don't"
    raise SettingError(name="peer", value=peer[:64], rule=rule)


def _point(at: Any, role: str) -> tuple[str, int]:
    """Return a point and which time it is reached.

    Raises:
        SettingError: if it is none of that role.
    """
    if not at:
        return "", 1
    name, _, text = str(at).partition(":")
    about = FAILPOINTS.get(name)
    if about is None or about.role != role:
        points = ", ".join(name for name, each in FAILPOINTS.items() if each.role == role)
        rule = f"a point of a {role}: {points or 'it has none'}"
        raise SettingError(name="at", value=str(at)[:64], rule=rule)
    if text and not (text.isascii() and text.isdigit() and 0 < int(text) < 1_000_000_000):
        raise SettingError(name="at", value=str(at)[:64], rule="POINT:N, N counted from 1")
    return name, int(text or 1)


def _number(
    asked: Mapping[str, Any], name: str, least: float, most: float, default: float
) -> float:
    """Return a number that was asked for.

    Raises:
        SettingError: if it is none, or outside.
    """
    value = asked.get(name)
    if value is None:
        return default
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not least <= value <= most:  # NaN isn't, either
        rule = f"a number from {least:g} to {most:g}"
        raise SettingError(name=name, value=str(value)[:64], rule=rule)
    return float(value)


@dataclass(slots=True)
class Broken:
    """What the network does to calls to one peer now."""

    drop: float = 0.0
    duplicate: float = 0.0
    delay: float = 0.0
    delay_s: float = 0.0
    reorder: float = 0.0
    reorder_s: float = 0.0
    apart_s: float = 0.0
    """Seconds until the end of a partition; 0 without one."""


class NetworkHurts:
    """Which calls of one process break, and until when. Time is an argument."""

    def __init__(self) -> None:
        self._hurts: tuple[tuple[float, Hurt], ...] = ()

    def add(self, hurt: Hurt, now: float) -> None:
        """Begin one."""
        kept = tuple(each for each in self._hurts if each[0] > now)
        self._hurts = (*kept, (now + hurt.for_s, hurt))

    def of(self, peer: str, now: float) -> Broken | None:
        """Return what happens to calls to a peer, or of all peers; None for nothing."""
        if not self._hurts:
            return None
        found: Broken | None = None
        for until, hurt in self._hurts:
            if now >= until or hurt.peer not in {"", peer}:
                continue
            found = found or Broken()
            match hurt.action:
                case "drop":
                    found.drop = max(found.drop, hurt.rate)
                case "duplicate":
                    found.duplicate = max(found.duplicate, hurt.rate)
                case "delay":
                    found.delay, found.delay_s = hurt.rate, hurt.by / 1000
                case "reorder":
                    found.reorder, found.reorder_s = hurt.rate, hurt.by / 1000
                case "partition":
                    found.apart_s = max(found.apart_s, until - now)
                case _:
                    pass  # is of no call
        return found
