"""How it is said that a process is gone."""

from paramfleet_coordinator.core.place import Place

__all__ = ["LEFT", "death", "departure"]

LEFT = "left before the training was finished"


def departure(place: Place, now: float) -> str:
    """Return how a place has lost its process: it left, or died."""
    if not place.end:
        return death(place, now)
    member = place.member
    return f"process {member.pid} on {member.host} {LEFT}"


def death(place: Place, now: float) -> str:
    """Return who is silent, and since when."""
    member = place.member
    at = f", {member.endpoint}" if member.endpoint else ""
    state = "is silent, though its launcher sees it alive" if place.vouched else "is dead"
    return (
        f"process {member.pid} on {member.host}{at} {state}: "
        f"last heartbeat {now - place.renewed_at:.1f} s ago"
    )
