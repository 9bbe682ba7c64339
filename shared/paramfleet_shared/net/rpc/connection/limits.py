"""Which connections a server takes, and what their peers may hold: decided without sockets."""

import ipaddress
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from paramfleet_shared.net.http2.limits.budget import BodyBudget, BodyShare

__all__ = ["Admission", "ConnectionTable", "Peer", "Quota", "Repeats", "peer_of", "quota_of"]

_MAX_CONNECTIONS = 10_000
_MAX_KEPT_BACK = 256
"""Descriptors that connections leave for files, for Redis and for the admin address."""

_MAX_THINGS = 32
_FURTHER = ""

THIS_MACHINE = "this machine"
"""All loopback addresses together."""


Cut = Callable[[], object]
"""Closes a connection."""


def _nothing() -> None:
    """Cut no connection: none is made yet."""


class Peer(NamedTuple):
    """Who connects."""

    name: str
    """``host:port``, or ``process N``, as logs show it."""
    group: str
    """Whose connections count together."""
    is_local: bool
    """Whether it is a process of this machine."""


def peer_of(host: str, name: str) -> Peer:
    """Return who connects through TCP.

    Args:
        host: Its address.
        name: How logs show it.
    """
    group = _group_of(host)
    return Peer(name, group, group == THIS_MACHINE)


@lru_cache(_MAX_CONNECTIONS)
def _group_of(host: str) -> str:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        address = address.ipv4_mapped or address
    if address.is_loopback:
        return THIS_MACHINE
    if isinstance(address, ipaddress.IPv6Address):  # who has one has its network
        network = ipaddress.ip_network((address, 64), strict=False)
        return str(network)
    return str(address)


@dataclass(frozen=True, kw_only=True, slots=True)
class Quota:
    """How many connections a server takes."""

    in_all: int
    per_peer: int
    max_descriptor: int
    """Descriptors from this number on are kept back. A new one is the lowest that is free,
    so that one above this says that nearly all are taken."""
    num_open_files: int
    """The process's limit, for errors."""


def quota_of(
    *, num_open_files: int, max_connections: int, per_peer: int, is_admin: bool = False
) -> Quota:
    """Return how many connections a server takes.

    Args:
        num_open_files: What the process may have open.
        max_connections: The setting; 0 takes what there is.
        per_peer: The setting.
        is_admin: Whether it may have half of what others leave free.
    """
    kept_back = min(_MAX_KEPT_BACK, num_open_files // 4)
    max_descriptor = num_open_files - (kept_back // 2 if is_admin else kept_back)
    in_all = min(max_connections or _MAX_CONNECTIONS, max_descriptor)
    return Quota(
        in_all=in_all,
        per_peer=max(1, min(per_peer, in_all // 2)),
        max_descriptor=max_descriptor,
        num_open_files=num_open_files,
    )


class Admission:
    """One connection that was admitted; ``release`` it when it is closed."""

    __slots__ = ("_table", "cut", "evicted", "peer", "share")

    def __init__(self, peer: Peer, share: BodyShare | None, table: "ConnectionTable") -> None:
        self.peer = peer
        self.share = share
        self.cut: Cut = _nothing
        """What closes the connection; set by who has its socket."""
        self.evicted: Peer | None = None
        """Whose connection was closed for this one."""
        self._table: ConnectionTable | None = table

    def prove(self) -> None:
        """Take note that the caller is known: the connection isn't closed for others."""
        if self._table is not None:
            self._table.discard_unproven(self)

    def release(self) -> None:
        """Take note that the connection is gone; may be called again."""
        table, self._table = self._table, None
        if table is not None:
            table.release(self)


class ConnectionTable:
    """The connections of one server, in all and by peer.

    Args:
        quota: How many there may be.
        budget: What their bodies share; None where nothing is shared.
        evicts: Whether, of connections that are as many as may be, the oldest whose caller
            isn't known is closed for a new one.
    """

    def __init__(
        self, quota: Quota, budget: BodyBudget | None = None, *, evicts: bool = False
    ) -> None:
        self._quota = quota
        self._budget = budget
        self._num_open = 0
        self._by_group: Counter[str] = Counter()
        self._shares: dict[str, BodyShare] = {}
        self._evicts = evicts
        self._unproven: dict[Admission, None] = {}
        """Those that may be closed for others, the oldest first."""

    def __len__(self) -> int:
        """Return the number of connections."""
        return self._num_open

    def admit(self, peer: Peer, *, descriptor: int) -> Admission | str:
        """Let a connection in, or return why not.

        Args:
            peer: Who connects.
            descriptor: The number of its socket.
        """
        quota = self._quota
        in_all, of_peer = self._num_open, self._by_group[peer.group]
        if descriptor >= quota.max_descriptor:
            return (
                f"{descriptor} of {quota.num_open_files} open files are in use, and the rest "
                "is kept for checkpoints and the admin address: raise the limit of open files "
                "(ulimit -n, LimitNOFILE=)"
            )
        evicted: Peer | None = None
        if of_peer >= quota.per_peer:
            evicted = self._evict_oldest(peer.group)
            if evicted is None:
                return (
                    f"{of_peer} connections of {peer.group} are open, as many as one peer gets"
                )
        elif in_all >= quota.in_all:
            evicted = self._evict_oldest(None)
            if evicted is None:
                return f"{in_all} connections are open, as many as are taken (max_connections)"
        self._num_open += 1
        self._by_group[peer.group] += 1
        admission = Admission(peer, self._share_of(peer), self)
        admission.evicted = evicted
        if self._evicts:
            self._unproven[admission] = None
        return admission

    def discard_unproven(self, admission: Admission) -> None:
        """Take note that a connection isn't to be closed for others."""
        self._unproven.pop(admission, None)

    def release(self, admission: Admission) -> None:
        """Take note that a connection is gone; ``Admission.release`` calls it once."""
        self.discard_unproven(admission)
        peer = admission.peer
        self._num_open -= 1
        self._by_group[peer.group] -= 1
        if not self._by_group[peer.group]:
            del self._by_group[peer.group]
            if not peer.is_local:
                self._shares.pop(peer.group, None)

    def _evict_oldest(self, group: str | None) -> Peer | None:
        """Close the oldest connection, of a group if one is given, whose caller isn't known.

        Returns:
            Whose it was; None if all callers are known.
        """
        for admission in self._unproven:
            if group is None or admission.peer.group == group:
                admission.release()
                admission.cut()
                return admission.peer
        return None

    def _share_of(self, peer: Peer) -> BodyShare | None:
        if self._budget is None:
            return None
        group = THIS_MACHINE if peer.is_local else peer.group
        share = self._shares.get(group)
        if share is None:
            limit = None if peer.is_local else self._budget.limit_bytes // 2
            share = self._shares[group] = self._budget.share(limit)
        return share


class Repeats:
    """Says the same at most once in a while, and how often it was so.

    Args:
        period_s: Seconds between two times.
        max_things: What is known apart at a time. The further things of a period count as one,
            so that a crowd of peers takes neither the log nor memory.
    """

    def __init__(self, period_s: float, *, max_things: int = _MAX_THINGS) -> None:
        self._period_s = period_s
        self._max_things = max_things
        self._said_at: dict[str, float] = {}
        self._counts: Counter[str] = Counter()

    @property
    def num_things(self) -> int:
        """Return how many things it keeps: ``max_things`` and one at most."""
        return len(self._said_at)

    def count(self, what: str, now: float, *, num: int = 1) -> int:
        """Return how often it was so since it was said last; 0 if it isn't said now."""
        if what not in self._said_at and self._is_full():
            self._forget(now)
            if self._is_full():
                what = _FURTHER
        self._counts[what] += num
        said_at = self._said_at.get(what)
        if said_at is not None and now - said_at < self._period_s:
            return 0
        self._said_at[what] = now
        return self._counts.pop(what)

    def _is_full(self) -> bool:
        return len(self._said_at) - (_FURTHER in self._said_at) >= self._max_things

    def _forget(self, now: float) -> None:
        """Forget what wasn't said for a period, but for what is counted as one."""
        for what, said_at in list(self._said_at.items()):
            if what != _FURTHER and now - said_at >= self._period_s:
                del self._said_at[what]
                self._counts.pop(what, None)
