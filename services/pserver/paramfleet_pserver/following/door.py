"""Where requests wait while another process is about to become a group's owner."""

import asyncio

from paramfleet_shared.errors.following import MovedError

__all__ = ["Door"]


class Door:
    """The way in to one group, as its owner has it. Used from one event loop.

    Args:
        group: Number of the group.
        term: Of the owner.
    """

    def __init__(self, group: int, term: int) -> None:
        self.group = group
        self.term = term
        self.is_moved = False
        """Whether another owner has the group, for good."""
        self._open = asyncio.Event()
        self._open.set()

    @property
    def is_open(self) -> bool:
        """Return whether requests are served."""
        return self._open.is_set() and not self.is_moved

    def refusal(self) -> MovedError:
        """Return what is raised in place of an execution."""
        return MovedError(index=self.group, term=self.term, wanted=[self.group, self.term])

    async def passed(self) -> None:
        """Return when requests are served.

        Raises:
            MovedError: if another owner has the group.
        """
        while not self.is_open:
            if self.is_moved:
                raise self.refusal()
            await self._open.wait()

    def check(self) -> None:
        """Pass if commands may be executed.

        Raises:
            MovedError: if not.
        """
        if not self.is_open:
            raise self.refusal()

    def fence(self) -> None:
        """Let requests wait, and execute nothing."""
        self._open.clear()

    def reopen(self, term: int) -> None:
        """Serve again."""
        self.term = term
        self._open.set()

    def give_up(self) -> None:
        """Refuse what waits, and all that comes."""
        self.is_moved = True
        self._open.set()
