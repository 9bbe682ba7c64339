"""One place of a job: a role and index, and the process that holds it."""

from dataclasses import dataclass

from paramfleet_shared.discovery.records import End, Member

__all__ = ["Place"]


@dataclass(kw_only=True, slots=True)
class Place:
    """One role and index, and the process that holds it."""

    member: Member
    """Its incarnation is 0 until the registry has counted it."""

    renewed_at: float
    """When its heartbeat count last changed under the coordinator's eyes."""

    beats: int = -1
    silence_s: float = 0.0
    """Seconds looked at without a heartbeat."""

    end: End = ""
    why: str = ""
    """What its end says of its reason."""

    may_return: bool = True
    """Whether its launcher may start another process in its place."""

    is_given_up: bool = False
    """Whether the job goes on without this worker although others may return."""

    former: "Place | None" = None
    """Who held it before, while it is reserved."""

    is_hearsay: bool = False
    """Whether only pservers have named it: the registry doesn't know it."""

    vouched: bool = False
    """Whether a launcher with a valid lease sees its process running."""

    is_starting: bool = False
    """Whether a launcher with a valid lease sees another process running that is to have it."""

    ended: bool = False
    """Whether a launcher with a valid lease saw its process end."""

    lost_s: float | None = None
    """Seconds looked at since a place that another process may take has had none: it was silent
    for too long, or left. None if it has one."""

    @property
    def may_die(self) -> bool:
        """Return whether the job needs this member's heartbeats."""
        return self.end == "" and self.member.incarnation > 0

    @property
    def incarnation(self) -> int:
        """Return the latest incarnation that held it."""
        held = self.member.incarnation
        return held if held or self.former is None else self.former.incarnation
