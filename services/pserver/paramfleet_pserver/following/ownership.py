"""Whether this process owns a group; requests wait while another one is about to own it."""

import asyncio

from paramfleet_shared.errors.following import MovedError

__all__ = ["Ownership"]


class Ownership:
    """A group's owner, its term, and whether it serves. Used from one event loop.

    Args:
        group: Number of the group.
        term: Of the owner.
    """

    def __init__(self, group: int, term: int) -> None:
        self.group = group
        self.term = term
        self.is_moved = False
        """Whether another owner has the group, for good."""
        self._active = asyncio.Event()
        self._active.set()

    @property
    def is_active(self) -> bool:
        """Return whether requests are served."""
        return self._active.is_set() and not self.is_moved

    def refusal(self) -> MovedError:
        """Return what is raised in place of an execution."""
        return MovedError(index=self.group, term=self.term, wanted=[self.group, self.term])

    async def until_active(self) -> None:
        """Return when requests are served.

        Raises:
            MovedError: if another owner has the group.
        """
        while not self.is_active:
            if self.is_moved:
                raise self.refusal()
            await self._active.wait()

    def check(self) -> None:
        """Pass if commands may be executed.

        Raises:
            MovedError: if not.
        """
        if not self.is_active:
            raise self.refusal()

    def fence(self) -> None:
        """Let requests wait, and execute nothing."""
        self._active.clear()

    def resume(self, term: int) -> None:
        """Serve again."""
        self.term = term
        self._active.set()

    def give_up(self) -> None:
        """Refuse what waits, and all that comes."""
        self.is_moved = True
        self._active.set()
