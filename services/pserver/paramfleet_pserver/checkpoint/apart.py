"""A save whose files are written beside the training: who asks for it learns twice how it went.

The first answer comes when the image of the tables is taken, the second one when all is
written. Each may be asked for again, as answers are lost. There is one such save at a time:
who begins another gives the former up, and begins when that writes nothing any more: both may
write files of the same names.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from paramfleet_shared.checkpoint.cuts import FormerSaveError, SaveGoneError
from paramfleet_shared.net.wire.message import Message

__all__ = ["Apart", "Taken"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Taken:
    """A save that has its image."""

    answer: Message
    """What is known then."""
    written: "asyncio.Task[Message]"
    """Ends when all files are written, with what is known of them."""


class Apart:
    """The newest save that is apart from its requests. Used from one event loop."""

    def __init__(self) -> None:
        self._name = ""
        self._taking: asyncio.Task[Taken] | None = None
        self._ending: asyncio.Task[None] | None = None
        """Ends when no save that was given up writes any more."""

    async def take(
        self, name: str, begin: Callable[[], Coroutine[Any, Any, Taken]], *, patience_s: float
    ) -> Message:
        """Begin a save, if it hasn't begun; answer when its image is taken.

        Args:
            name: The save's; who asks again has the same.
            begin: Takes the image, and begins to write.
            patience_s: Most seconds to wait for the end of a former save's writing.

        Raises:
            FormerSaveError: if that doesn't end.
            SaveGoneError: if another save begins meanwhile.
            Exception: why the image can't be taken.
        """
        if name != self._name or self._taking is None:
            self.give_up()
            self._name = name
            work = self._begin(name, begin, self._ending, patience_s)
            self._taking = asyncio.get_running_loop().create_task(work)
        taken = await self._taken(name, self._taking)
        return taken.answer

    async def _begin(
        self,
        name: str,
        begin: Callable[[], Coroutine[Any, Any, Taken]],
        ending: asyncio.Task[None] | None,
        patience_s: float,
    ) -> Taken:
        """Begin a save when all that were given up have ended.

        Raises:
            FormerSaveError: if one doesn't end.
            Exception: why the image can't be taken.
        """
        if ending is not None:
            _, late = await asyncio.wait((ending,), timeout=patience_s)
            if late:
                raise FormerSaveError(name=name, waited_s=patience_s)
        return await begin()

    async def written(self, name: str, *, wait_s: float) -> Message | None:
        """Return how writing has ended; None if it hasn't within some seconds.

        Raises:
            SaveGoneError: if this process has no such save: another one had begun it, or it
                was given up.
            Exception: why it failed.
        """
        if name != self._name or self._taking is None:
            raise SaveGoneError(name=name)
        taken = await self._taken(name, self._taking)
        done, _ = await asyncio.wait((taken.written,), timeout=wait_s)
        if not done:
            return None
        if taken.written.cancelled():
            raise SaveGoneError(name=name)
        return taken.written.result()

    async def _taken(self, name: str, taking: "asyncio.Task[Taken]") -> Taken:
        """Wait for an image.

        Raises:
            SaveGoneError: if it was given up.
            Exception: why it can't be taken.
        """
        await asyncio.wait((taking,))
        if taking.cancelled():
            raise SaveGoneError(name=name)
        return taking.result()

    def give_up(self) -> None:
        """End the save that there is, if it is still being written."""
        taking, self._taking, self._name = self._taking, None, ""
        if taking is None:
            return
        taking.cancel()
        work = _end(taking, self._ending)
        self._ending = asyncio.get_running_loop().create_task(work)


async def _end(taking: asyncio.Task[Taken], former: asyncio.Task[None] | None) -> None:
    """Return when a cancelled save writes nothing any more, nor does one before it."""
    await asyncio.wait((taking,) if former is None else (taking, former))
    if not taking.cancelled() and taking.exception() is None:
        written = taking.result().written
        written.cancel()
        await asyncio.wait((written,))
