"""Which worker delays the others, and why, in words.

A worker's own time is what a step takes it without waiting for others. One whose own time
is well above that of its peers is the straggler, and the part that exceeds theirs the most
is the cause. Sending that happens beside the training makes no step longer; it is judged by
how long an answer of the pservers takes to come, against the peers and against the time
that the pservers themselves spend on it.

These are pure functions of what workers measured within the last seconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from paramfleet_coordinator.core.readings import Window

__all__ = ["Straggler", "Watch", "find_straggler", "lag_reason"]

SLOWER = 1.5
"""Ratio to the peers' own time per step from which on a worker delays them."""

LEAST_EXCESS_S = 0.002
"""Seconds a step by which it exceeds theirs at least."""

SLOWER_CALLS = 3.0
LEAST_CALL_EXCESS_S = 0.02
"""The same for answers for which no step waits."""

MIN_WALL_S = 1.5
_OWN = ("data", "pull", "compute", "push")
_CAUSES = {
    "data": "its data is slow: reading and preparing a batch",
    "compute": "its computing is slow: forward, backward and the optimizer",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Straggler:
    """The worker that is behind."""

    rank: int
    cause: str
    """``data``, ``compute``, ``network`` or ``volume``."""

    words: str
    """One sentence."""


def find_straggler(
    windows: Mapping[int, Window], *, server_s: float | None = None
) -> Straggler | None:
    """Return the worker that delays the others; None without one, or without others.

    Args:
        windows: What each training worker did, by rank.
        server_s: Mean seconds the pservers spent on a request that waits for no other; None
            if that isn't known.
    """
    judged = {
        rank: window
        for rank, window in windows.items()
        if window.wall_s >= MIN_WALL_S
        and window.phase != "idle"
        and window.seconds["pause"] + window.seconds["wait"] < 0.1 * window.wall_s
    }
    if len(judged) < 2:
        return None
    own = {rank: _own_s(window) for rank, window in judged.items()}
    slowest = max(own, key=lambda rank: own[rank])
    others = [own[rank] for rank in own if rank != slowest]
    excess = own[slowest] - median(others)
    if own[slowest] >= SLOWER * median(others) and excess >= LEAST_EXCESS_S:
        return _by_step(slowest, judged, server_s)
    return _by_answers(judged, server_s)


def lag_reason(
    window: Window | None, straggler: Straggler | None, rank: int, *, waits_for: str = ""
) -> str:
    """Return in words what a worker's time goes to; empty if nothing stands out.

    Args:
        window: What it did within the last seconds; None if that isn't known.
        straggler: Who delays the others.
        rank: The worker's.
        waits_for: The file that its data is complete with, if it says so.
    """
    if straggler is not None and straggler.rank == rank:
        return straggler.words
    if window is None or window.wall_s <= 0 or window.phase == "idle":
        return ""
    shares = {phase: window.seconds[phase] / window.wall_s for phase in window.seconds}
    if shares["pause"] > 0.5:
        return "paused by an operator"
    if shares["wait"] > 0.5:
        return f"waits for data: {waits_for}" if waits_for else "waits for data"
    if shares["barrier"] > 0.5:
        waits = f"{shares['barrier']:.0%} of its time"
        whom = f": worker {straggler.rank}" if straggler is not None else ""
        return f"waits for other workers {waits}{whom}"
    return ""


class Watch:
    """Names a straggler once it was found twice in a row: a single delay isn't enough."""

    def __init__(self) -> None:
        self._suspect: tuple[int, str] | None = None
        self.named: Straggler | None = None

    def look(self, found: Straggler | None) -> bool:
        """Take in what was found now; return whether another one is named than before."""
        suspect = None if found is None else (found.rank, found.cause)
        again, self._suspect = suspect == self._suspect, suspect
        if not again:
            return False
        before = self.named
        self.named = found
        known = None if before is None else (before.rank, before.cause)
        return known != suspect


def _own_s(window: Window) -> float:
    return sum(window.per_step(phase) for phase in _OWN)


def _by_step(rank: int, windows: Mapping[int, Window], server_s: float | None) -> Straggler:
    window = windows[rank]
    peers = [windows[other] for other in windows if other != rank]

    def usual(phase: str) -> float:
        return median(peer.per_step(phase) for peer in peers)

    parts = {
        "data": (window.per_step("data"), usual("data")),
        "compute": (window.per_step("compute"), usual("compute")),
        "network": (
            window.per_step("pull") + window.per_step("push"),
            usual("pull") + usual("push"),
        ),
    }
    cause = max(parts, key=lambda part: parts[part][0] - parts[part][1])
    took, theirs = parts[cause]
    compared = f"takes {_ms(took)} a step where the others' takes {_ms(theirs)}"
    if cause != "network":
        what = _CAUSES[cause]
        words = f"worker {rank} is behind, {what} {compared}"
        return Straggler(rank=rank, cause=cause, words=words)
    volume, usual_volume = _bytes_a_step(window), median(map(_bytes_a_step, peers))
    if usual_volume and volume / usual_volume >= 0.75 * took / max(theirs, 1e-9):
        words = (
            f"worker {rank} is behind, it moves more: {volume / usual_volume:.1f} times the "
            f"bytes a step of the others, and that {compared}"
        )
        return Straggler(rank=rank, cause="volume", words=words)
    words = f"worker {rank} is behind, its network is slow: pulling and pushing {compared}"
    return Straggler(rank=rank, cause="network", words=words + _servers_part(server_s))


def _by_answers(windows: Mapping[int, Window], server_s: float | None) -> Straggler | None:
    """Find the worker that waits long for answers although its steps aren't slower."""
    means = {}
    for rank, window in windows.items():
        count = sum(calls.count for calls in window.calls.values())
        if count:
            means[rank] = sum(calls.seconds for calls in window.calls.values()) / count
    if len(means) < 2:
        return None
    slowest = max(means, key=lambda rank: means[rank])
    theirs = median(means[rank] for rank in means if rank != slowest)
    excess = means[slowest] - theirs
    if means[slowest] < SLOWER_CALLS * theirs or excess < LEAST_CALL_EXCESS_S:
        return None
    words = (
        f"worker {slowest} gets late answers, its network is slow: an answer takes "
        f"{_ms(means[slowest])} where it takes the others {_ms(theirs)}"
    )
    return Straggler(rank=slowest, cause="network", words=words + _servers_part(server_s))


def _servers_part(server_s: float | None) -> str:
    return "" if server_s is None else f"; the servers themselves need {_ms(server_s)}"


def _bytes_a_step(window: Window) -> float:
    return sum(calls.num_bytes for calls in window.calls.values()) / max(window.steps, 1)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"
