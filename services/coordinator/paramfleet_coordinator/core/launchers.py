"""Which processes the launchers of a job see alive.

Each launcher renews its voucher in the registry. One whose voucher doesn't change for a lease
is silent, and says nothing any more: it was killed or stopped, or its machine is gone.

Nothing here waits or knows the time.
"""

from dataclasses import dataclass

from paramfleet_shared.discovery.plan import ProcessId
from paramfleet_shared.discovery.records import PROCESS, Member, Snapshot, Voucher

__all__ = ["Launchers"]

MAX_ENDED = 256
"""Ended processes of each launcher that are remembered, beside those that are members still:
many more than end between two renewals."""


@dataclass(kw_only=True, slots=True)
class _Launcher:
    """One launcher, as its renewals show it."""

    renewal: int
    voucher: Voucher
    silence_s: float = 0.0


class Launchers:
    """The launchers that were seen.

    Args:
        lease_ttl_s: Seconds of silence after which what one said counts no more.
    """

    def __init__(self, *, lease_ttl_s: float) -> None:
        self._lease_ttl_s = lease_ttl_s
        self._launchers: dict[str, _Launcher] = {}
        self._alive: dict[tuple[str, str], int] = {}
        self._vouched: dict[str, dict[tuple[str, str, int], None]] = {}
        """By launcher's part: processes that it has seen alive, by their ids, oldest first."""
        self._ended: set[tuple[str, str, int]] = set()
        self._gone: set[str] = set()
        """Who is started no more."""

    def observe(self, snapshot: Snapshot, *, counted_s: float) -> None:
        """Take in what the registry holds, ``counted_s`` after the last time."""
        for launcher in self._launchers.values():
            launcher.silence_s += counted_s
        for part, (renewal, voucher) in snapshot.vouchers.items():
            known = self._launchers.get(part)
            if known is None or known.renewal != renewal:
                self._launchers[part] = _Launcher(renewal=renewal, voucher=voucher)
        valid = [each for each in self._launchers.values() if self._is_valid(each)]
        self._alive = {
            (each.voucher.launch, name): pid
            for each in valid
            for name, pid in each.voucher.alive.items()
        }
        self._gone = {name for each in valid for name in each.voucher.gone}
        members = {_process_of(member) for member in snapshot.members.values()}
        for part, each in self._launchers.items():
            launch = each.voucher.launch
            now = {(launch, name, pid) for name, pid in each.voucher.alive.items()}
            ever = self._vouched.setdefault(part, {})
            if self._is_valid(each):
                self._ended |= ever.keys() - now
            self._ended -= now
            ever |= dict.fromkeys(now)
            former = [one for one in ever if one not in now and one not in members]
            for one in former[:-MAX_ENDED]:
                del ever[one]
                self._ended.discard(one)

    def _is_valid(self, launcher: _Launcher) -> bool:
        """Return whether what a launcher said last still counts."""
        return launcher.silence_s < self._lease_ttl_s

    def forgive(self) -> None:
        """Count no silence until now: the coordinator did not watch."""
        for launcher in self._launchers.values():
            launcher.silence_s = 0.0

    def sees(self, member: Member) -> bool:
        """Return whether a launcher with a valid lease sees a member's process running."""
        known = self._alive.get((member.launch, _name_of(member)))
        return bool(member.launch) and known == member.pid

    def sees_another(self, member: Member) -> bool:
        """Return whether a launcher with a valid lease sees another process in its place."""
        known = self._alive.get((member.launch, _name_of(member)))
        return bool(member.launch) and known not in {None, member.pid}

    def gave_up(self, role: str, index: int) -> bool:
        """Return whether a launcher with a valid lease starts a process no more that ended."""
        return f"{role}:{index}" in self._gone

    def saw_end(self, member: Member) -> bool:
        """Return whether a launcher that saw a member's process running saw it end, too."""
        return bool(member.launch) and _process_of(member) in self._ended


def _process_of(member: Member) -> tuple[str, str, int]:
    """Return how a launcher's voucher names a member's process."""
    return member.launch, _name_of(member), member.pid


def _name_of(member: Member) -> str:
    """Return what a launcher calls a member's process."""
    if member.role == PROCESS:
        return f"pserver:{member.index}"
    if member.process:
        return f"pserver:{ProcessId.from_text(member.process).index}"
    return f"{member.role}:{member.index}"
