"""Who follows a group, as its owner knows them."""

from typing import TYPE_CHECKING, Any, NamedTuple

from paramfleet_pserver.following.messages import Purpose

if TYPE_CHECKING:
    import asyncio

    from paramfleet_pserver.following.transfer import Transfer

__all__ = ["Handover", "Session"]


class Handover(NamedTuple):
    """Who is about to have the group."""

    follower: str
    attempt: int
    """The follower's newest; one that is given up ends only itself and those before."""
    position: int
    """Of the last command."""
    since: float
    """In the clock's time."""


class Session:
    """One attempt of a follower.

    Args:
        follower: Its name.
        number: Of the attempt.
        purpose: What it follows for.
        now: The clock's time.
    """

    def __init__(self, follower: str, number: int, purpose: Purpose, now: float) -> None:
        self.follower = follower
        self.number = number
        self.purpose = purpose
        self.seen_at = now
        self.progressed_at = now
        """When it began, or asked for the next piece of its snapshot."""
        self.part = 0
        """The newest piece that it asked for."""
        self.have = 0
        """Up to which position it has all."""
        self.is_sent = False
        """Whether its snapshot was sent to the end."""
        self.is_whole = False
        """Whether it has its snapshot."""
        self.last_attempt = 0
        """To take over that has been given up."""
        self.beginning: asyncio.Task[Transfer] | None = None
        """Takes the image."""

    def facts(self) -> dict[str, Any]:
        """Return what an operator may ask."""
        return {
            "follower": self.follower,
            "purpose": self.purpose,
            "position": self.have,
            "whole": self.is_whole,
        }
