"""What the registry holds, as plain values."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, cast, get_args

from paramfleet_shared.discovery.orders import Orders
from paramfleet_shared.values.texts import printable, shortened

__all__ = [
    "MAX_RUN_ID",
    "PROCESS",
    "ROLES",
    "End",
    "Failure",
    "JobRecord",
    "JobSizes",
    "Lost",
    "Member",
    "MemberKey",
    "Release",
    "Snapshot",
    "State",
    "Voucher",
    "end_from_text",
    "end_to_text",
]

ROLES = ("pserver", "worker")
"""Roles that every job has, and that join through the coordinator."""

PROCESS = "process"
"""Role of a process that hosts the groups that the coordinator plans for it."""

MAX_RUN_ID = 1 << 53
"""Of a run's random number, which JSON carries."""

MemberKey = tuple[str, int]
"""Role and index."""

State = Literal["waiting", "training", "finished", "failed"]

End = Literal["", "done", "left", "lost", "gone"]
"""How a member's part ended: ``done`` it finished training, ``left`` it deregistered, ``lost``
it died or gave up in a job that goes on without it, ``gone`` the same, and its launcher starts
no other in its place."""


_MAX_REASON = 2000
"""Characters of a reason."""


def _fit(reason: str) -> str:
    """Return a reason as it may be shown: an exception's text may be anything."""
    return printable(shortened(reason, _MAX_REASON))


def end_to_text(end: End, why: str = "") -> str:
    """Return an end as the registry keeps it."""
    return f"{end}:{_fit(why)}" if why else end


def end_from_text(text: str) -> tuple[End, str]:
    """Return the end, and why, that ``end_to_text`` wrote.

    Raises:
        ValueError: if it did not.
    """
    end, _, why = text.partition(":")
    if end not in get_args(End):
        raise ValueError(shortened(end, 100))
    return cast("End", end), _fit(why)


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """One process of a job."""

    role: str
    """``coordinator``, ``pserver`` or ``worker``."""

    index: int
    """From 0 in its role."""

    incarnation: int
    """Counts the processes that had this role and index, from 1."""

    endpoint: str
    """``host:port`` of its data plane; empty if it has none."""

    admin: str
    """``host:port`` of its admin address; empty if it has none."""

    host: str
    pid: int

    nonce: str = ""
    """Random name of this process: distinguishes a retried join from a restarted process."""

    launch: str = ""
    """Launch it belongs to; empty for a process that was started by hand."""

    durable: bool = False
    """Whether its part of the training outlives its process, because it is on a disk."""

    holds_run: int = 0
    """The run whose data folder of this index the process has locked when it joins; 0 for none.
    The lock proves that no other process has the folder."""

    process: str = ""
    """Of a pserver that is a planned group: its process, as ``ProcessId.text``."""

    @property
    def key(self) -> MemberKey:
        """Return role and index."""
        return self.role, self.index

    def to_json(self) -> str:
        """Return the record as the registry keeps it."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> "Member":
        """Rebuild a member from ``to_json``'s text.

        Raises:
            ValueError: if that isn't JSON.
            TypeError: if it is no member's.
        """
        member = cls(**json.loads(text))
        for each in fields(cls):
            if type(getattr(member, each.name)) is not each.type:
                raise TypeError(each.name)
        return member


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """Who ended the job, and why."""

    role: str
    index: int
    reason: str
    """Bounded and without control characters, whoever gave it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", _fit(self.reason))

    def to_json(self) -> str:
        """Return the record as the registry keeps it."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> "Failure":
        """Rebuild a failure from ``to_json``'s text."""
        return cls(**json.loads(text))


@dataclass(frozen=True, kw_only=True, slots=True)
class JobSizes:
    """What a job was started for."""

    worker_num: int
    """Workers that must have joined before the training starts."""

    server_num: int
    num_shards: int
    elastic: bool = False
    """Whether workers may come and go while it trains."""
    returning: bool = False
    """Whether a worker that died may be started again, under its rank."""

    server_processes: int = 0
    """Processes that must have come before they get the pservers' groups; 0 if each pserver is
    a process of its own."""

    replicas: int = 0
    """Followers of each group."""

    @property
    def is_planned(self) -> bool:
        """Return whether the coordinator plans which process hosts which group."""
        return self.server_processes > 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Lost:
    """A worker that an elastic job goes on without."""

    index: int
    incarnation: int
    """This one and all before are fenced."""

    reason: str
    """Bounded and without control characters, whoever gave it."""

    step: int | None = None
    """In sync, from which step on it takes no part; None while that isn't agreed on."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", _fit(self.reason))


@dataclass(frozen=True, kw_only=True, slots=True)
class JobRecord:
    """The decisions about one run of a job."""

    state: State
    sizes: JobSizes | None = None
    """None when Redis lost it and it hasn't been written again."""

    failure: Failure | None = None
    placement: Mapping[str, Any] | None = None
    """``Placement.to_wire()``; None until every pserver serves."""

    lost: tuple[Lost, ...] = ()
    """The latest lost of each rank, in their order."""
    orders: Orders = field(default_factory=Orders)
    """What an operator wants."""

    launch: str = ""
    """Launch that the run belongs to; empty for none."""

    shrinks: bool = False
    """Whether sync goes on without a worker that died and doesn't come back."""

    run_id: int = 0
    """A random number, by which a data folder is known to be of this run; 0 for none."""

    plan: Mapping[str, Any] | None = None
    """``Plan.to_wire()``; None where each pserver is a process of its own."""

    def to_fields(self) -> dict[str, str]:
        """Return the record as the registry's hash keeps it."""
        fields: dict[str, str] = {"state": self.state}
        if self.sizes is not None:
            fields["sizes"] = json.dumps(asdict(self.sizes))
        if self.failure is not None:
            fields["failure"] = self.failure.to_json()
        if self.placement is not None:
            fields["placement"] = json.dumps(dict(self.placement))
        if self.lost:
            fields["lost"] = json.dumps([asdict(each) for each in self.lost])
        if self.orders.version:
            fields["orders"] = self.orders.to_json()
        if self.launch:
            fields["launch"] = self.launch
        if self.shrinks:
            fields["shrinks"] = "1"
        if self.run_id:
            fields["run_id"] = str(self.run_id)
        if self.plan is not None:
            fields["plan"] = json.dumps(dict(self.plan))
        return fields

    @classmethod
    def from_fields(cls, fields: Mapping[str, bytes]) -> "JobRecord | None":
        """Rebuild a record; None when the registry holds none.

        Raises:
            ValueError: if it isn't one that this class has written.
        """
        state = fields.get("state", b"").decode()
        if not state:
            return None
        if state not in get_args(State):
            raise ValueError(shortened(state, 100))
        sizes, failure = fields.get("sizes"), fields.get("failure")
        placement, orders = fields.get("placement"), fields.get("orders")
        return cls(
            state=cast("State", state),
            sizes=JobSizes(**json.loads(sizes)) if sizes else None,
            failure=Failure.from_json(failure) if failure else None,
            placement=json.loads(placement) if placement else None,
            lost=tuple(Lost(**each) for each in json.loads(fields.get("lost", b"[]"))),
            orders=Orders.from_json(orders) if orders else Orders(),
            launch=fields.get("launch", b"").decode(),
            shrinks=fields.get("shrinks") == b"1",
            run_id=int(fields.get("run_id", b"0")),
            plan=json.loads(fields["plan"]) if fields.get("plan") else None,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Release:
    """One use of a barrier that let its workers go."""

    name: str
    generation: int
    ranks: tuple[int, ...]
    """Workers that took part; empty when that is forgotten."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Voucher:
    """What a launcher says of its processes, again and again."""

    launch: str
    part: str
    """Its first process, as ``coordinator:0``: each launcher of a launch has another."""

    nonce: str
    """Random name of the launcher's own life."""

    host: str
    pid: int
    """The launcher's."""

    alive: Mapping[str, int] = field(default_factory=dict)
    """Process ids by ``role:index`` of the processes that it sees alive."""

    gone: tuple[str, ...] = ()
    """``role:index`` of processes that have ended and that it starts no more, though the job
    goes on."""

    scales: bool = False
    """Whether it starts as many processes for pservers as the plan wants."""

    def to_json(self) -> str:
        """Return the record as the registry keeps it."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> "Voucher":
        """Rebuild a voucher from ``to_json``'s text."""
        return cls(**json.loads(text))


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """All the registry knows of one run, read at one moment."""

    job: JobRecord | None = None
    """None when the registry holds no record: it is new, or was restarted empty."""

    members: Mapping[MemberKey, Member] = field(default_factory=dict)
    beats: Mapping[MemberKey, int] = field(default_factory=dict)
    """Heartbeats counted; only whether it changes means something."""

    ends: Mapping[MemberKey, End] = field(default_factory=dict)
    last_words: Mapping[MemberKey, str] = field(default_factory=dict)
    """Why members are lost, by those whose end says it."""

    facts: Mapping[MemberKey, Mapping[str, Any]] = field(default_factory=dict)
    released: Mapping[str, Release] = field(default_factory=dict)
    """The latest release of each barrier, by name."""

    known: JobRecord | None = None
    """What a member has read last of the record, for a coordinator that finds none."""

    passed: Sequence[Mapping[str, int]] = ()
    """How often members have passed each barrier, as they said when Redis was empty."""

    vouchers: Mapping[str, tuple[int, Voucher]] = field(default_factory=dict)
    """By the launcher's part. The number changes with each renewal, and means no more."""
