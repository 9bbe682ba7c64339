"""Where changes come from: what a source must do.

A source knows the newest base of a stream, and gives the changes behind it in order. The
follower (``following.follower``) asks for its events, one at a time, and does the rest: what is
served, when it changes, memory. A source only has to be right about order: after ``BaseOpened``
of number n come ``Changed`` n+1, n+2 and so on, of the same stream. Another ``BaseOpened`` may
come at any time, as when a stream was replaced, or changes behind what is served aren't there
any more.

What a source raises is logged, counted and shown, and ``events`` is asked again a little later,
with the position that is served by then. What is served stays meanwhile.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from paramfleet_serving.store.model import Version
from paramfleet_shared.deltas.reader import Accept
from paramfleet_shared.deltas.records import NumberedChange, OpenedBase

__all__ = ["BaseOpened", "Changed", "Event", "Moment", "Source"]


@dataclass(frozen=True, slots=True)
class BaseOpened:
    """A whole state, to begin at."""

    base: OpenedBase

    until: int
    """The newest change of its stream that is known: what is served is replaced when the state
    is as new."""


@dataclass(frozen=True, slots=True)
class Changed:
    """The next change."""

    stream: str
    numbered: NumberedChange


@dataclass(frozen=True, slots=True)
class Moment:
    """What was given is as of this time, in seconds since 1970; nothing else has changed."""

    stream: str
    moment: float


Event = BaseOpened | Changed | Moment


class Source(Protocol):
    """A stream of changes, from wherever they come."""

    @property
    def name(self) -> str:
        """Return where it is, for logs and status."""
        ...

    def events(self, after: Version | None, *, accept: Accept) -> AsyncIterator[Event]:
        """Yield what comes, without an end.

        Args:
            accept: Asked before a base is read, maybe on another thread; raises if it isn't
                wanted.
            after: What is served; where changes behind that aren't there, it begins with
                ``BaseOpened``. None begins with the newest base.

        Raises:
            FleetError: if something is wrong with what comes.
            OSError: if it can't be read.
        """
        ...

    def replay(
        self, number: int, *, accept: Accept, stream: str | None = None
    ) -> AsyncIterator[Event]:
        """Yield a base of the current stream, and the changes from there to a number.

        Args:
            number: Which.
            stream: Which the current one must be; any if not given.
            accept: As ``events``.

        Raises:
            NumberNotKeptError: if they aren't there any more, or as yet.
            FleetError: if something is wrong with them.
            OSError: if they can't be read.
        """
        ...

    async def close(self) -> None:
        """Let go of what it holds; it isn't asked again."""
        ...

    async def newest_base(self) -> Version | None:
        """Return the newest base that ``replay`` could begin at; None if there is none.

        Raises:
            FleetError: if something is wrong.
            OSError: if it can't be read.
        """
        ...
