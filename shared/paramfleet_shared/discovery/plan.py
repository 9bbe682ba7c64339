"""Which process hosts which group, follows it, or is to get it.

A group is what workers address as a pserver: its number is fixed for a job. Processes come and
go; the coordinator alone plans what each has. Processes read the plan, and do what it says.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

__all__ = ["DISK", "GroupPlan", "Plan", "ProcessId"]

_NUMBER = "0|[1-9][0-9]{0,18}"
_PROCESS = re.compile(rf"(?P<index>{_NUMBER})\.(?P<incarnation>{_NUMBER})")

DISK = "disk"
"""Name of an owner's own disk among a group's copies."""


@dataclass(frozen=True, order=True, slots=True)
class ProcessId:
    """One process that hosts groups, in one of its lives."""

    index: int
    incarnation: int

    @property
    def text(self) -> str:
        """Return it as followers are named: ``INDEX.INCARNATION``."""
        return f"{self.index}.{self.incarnation}"

    @classmethod
    def from_text(cls, text: str) -> "ProcessId":
        """Rebuild one from ``text``.

        Raises:
            ValueError: if it isn't one.
        """
        match = _PROCESS.fullmatch(text)
        if match is None:
            msg = f"{text[:64]!r} isn't INDEX.INCARNATION"
            raise ValueError(msg)
        return cls(int(match["index"]), int(match["incarnation"]))


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupPlan:
    """Who has to do with one group."""

    owner: ProcessId | None = None
    """Who hosts it, or is to begin it; None while no process is chosen."""

    term: int = 0
    """Under which it is owned; 0 before it has begun."""

    since_term: int = 0
    """The first term of the owner, which may have gone on under later ones; 0 before it has
    one, also when it is to go on with what is on its disk."""

    follower: ProcessId | None = None
    """Who keeps a copy of it."""

    target: ProcessId | None = None
    """To whom it moves; None if it doesn't."""

    heir: ProcessId | None = None
    """Who takes it over, as its owner is dead; None if nobody has to."""

    eligible: tuple[str, ...] = ()
    """The followers that have all that was reported durable, as the owner has proposed."""

    number: int = 0
    """Of the proposal that ``eligible`` is from; older ones that are late are refused."""

    inherited: tuple[str, ...] = ()
    """Followers of the owner before, with copies of its term: they may take over until this
    owner has proposed others."""

    inherited_term: int = 0
    """The first term of the owner that ``inherited`` followed: a process may have copies of
    several."""

    disk_term: int = 0
    """The term whose owner has all of the group on its disk; 0 for none. Every disk of this
    term or a later one has all that was reported durable."""

    on_disk: bool = False
    """Whether its owner keeps it on a disk, or is about to."""

    is_new: bool = False
    """Whether no owner, each with a disk, has had a set of copies written yet. Nothing was
    reported durable then, and who begins the group anew loses nothing."""

    @property
    def heirs(self) -> tuple[str, ...]:
        """Return who may take the group over: never its owner, whatever was written."""
        named = self.eligible or self.inherited
        own = None if self.owner is None else self.owner.text
        return tuple(each for each in named if each != own)

    def as_written(
        self, owner: ProcessId, term: int, copies: Collection[str], *, number: int
    ) -> "GroupPlan":
        """Return this, or what an owner knows to be written since.

        Args:
            owner: Who.
            term: Under which it has the group.
            copies: The set that was written for it last.
            number: Of that proposal; 0 if none was.
        """
        if not number or (term, number) <= (self.term, self.number):
            return self
        since = self.since_term if owner == self.owner else term
        return replace(
            self,
            owner=owner,
            term=term,
            since_term=since,
            number=number,
            eligible=tuple(sorted({*copies} - {DISK})),
            inherited=(),
            disk_term=since if DISK in copies else 0,
            is_new=False,
        )

    def to_wire(self) -> dict[str, Any]:
        """Return plain values that ``from_wire`` takes."""
        names = ("owner", "follower", "target", "heir")
        roles = {name: getattr(self, name) for name in names}
        return {
            **{name: None if who is None else who.text for name, who in roles.items()},
            "term": self.term,
            "since_term": self.since_term,
            "eligible": list(self.eligible),
            "number": self.number,
            "inherited": list(self.inherited),
            "inherited_term": self.inherited_term,
            "disk_term": self.disk_term,
            "on_disk": self.on_disk,
            "is_new": self.is_new,
        }

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> "GroupPlan":
        """Rebuild it from ``to_wire``'s values."""
        names = ("owner", "follower", "target", "heir")
        roles = {name: ProcessId.from_text(wire[name]) for name in names if wire.get(name)}
        return cls(
            **roles,
            term=int(wire["term"]),
            since_term=int(wire.get("since_term", wire["term"])),
            eligible=tuple(str(each) for each in wire["eligible"]),
            number=int(wire.get("number", 0)),
            inherited=tuple(str(each) for each in wire.get("inherited", ())),
            inherited_term=int(wire.get("inherited_term", 0)),
            disk_term=int(wire.get("disk_term", 0)),
            on_disk=bool(wire.get("on_disk", False)),
            is_new=bool(wire.get("is_new", False)),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The groups of a job, and what processes are to do."""

    version: int = 0
    """Grows with each change."""

    groups: tuple[GroupPlan, ...] = ()

    draining: tuple[ProcessId, ...] = ()
    """Processes that give up what they have, and end then."""

    wanted: int = 0
    """How many processes an operator wants; 0 takes all that come."""

    processes: tuple[int, ...] = ()
    """Indexes of the processes that live, as the coordinator knows."""

    replica_grace_s: float = 0.0
    """How long a group waits for a follower before it goes on without."""

    def of(self, group: int) -> GroupPlan:
        """Return the plan of a group."""
        return self.groups[group]

    def with_group(self, group: int, **changes: Any) -> "Plan":
        """Return the plan with one group's changed."""
        groups = list(self.groups)
        groups[group] = replace(groups[group], **changes)
        return replace(self, groups=tuple(groups))

    def owned(self, process: ProcessId) -> list[int]:
        """Return the groups that a process owns."""
        return [g for g, each in enumerate(self.groups) if each.owner == process]

    def concerns(self, process: ProcessId) -> bool:
        """Return whether a process has a part in any group."""
        return any(
            process in {each.owner, each.follower, each.target, each.heir}
            for each in self.groups
        )

    def may_end(self, process: ProcessId) -> bool:
        """Return whether a process has given up all, as it was asked to.

        As long as the registry names its copy of a group, that may be the only one.
        """
        is_named = any(process.text in each.heirs for each in self.groups)
        return process in self.draining and not is_named and not self.concerns(process)

    def others_live(self) -> bool:
        """Return whether a process lives that doesn't give up what it has."""
        return bool(set(self.processes) - {each.index for each in self.draining})

    def to_wire(self) -> dict[str, Any]:
        """Return plain values that ``from_wire`` takes."""
        return {
            "version": self.version,
            "groups": [each.to_wire() for each in self.groups],
            "draining": [each.text for each in self.draining],
            "wanted": self.wanted,
            "processes": list(self.processes),
            "replica_grace_s": self.replica_grace_s,
        }

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> "Plan":
        """Rebuild a plan from ``to_wire``'s values."""
        return cls(
            version=int(wire["version"]),
            groups=tuple(GroupPlan.from_wire(each) for each in wire["groups"]),
            draining=tuple(ProcessId.from_text(each) for each in wire["draining"]),
            wanted=int(wire["wanted"]),
            processes=tuple(int(each) for each in wire["processes"]),
            replica_grace_s=float(wire.get("replica_grace_s", 0.0)),
        )
