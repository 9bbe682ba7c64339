"""One snapshot on its way to a follower: pieces are made ahead, as many as it asks for."""

import asyncio
from contextlib import aclosing

from paramfleet_pserver.commands.snapshot.writing import MachineImage
from paramfleet_pserver.following.signals import Signal
from paramfleet_shared.errors import UnavailableError
from paramfleet_shared.net.wire.message import MalformedMessageError, Message

__all__ = ["Transfer"]

PIECES_AHEAD = 2


class Transfer:
    """The messages of an image, each kept until the next one is asked for.

    Args:
        image: Read and ended by this.
    """

    def __init__(self, image: MachineImage) -> None:
        self._image = image
        self._pieces: dict[int, Message] = {}
        self._first = 1
        """Number of the oldest piece that may be asked for."""
        self._end: int | None = None
        """Number of the last piece, once it is made."""
        self._changed = Signal()
        self._error: Exception | None = None
        self._making = asyncio.get_running_loop().create_task(self._make())

    @property
    def is_over(self) -> bool:
        """Return whether all pieces were made."""
        return self._making.done()

    async def piece(self, part: int) -> tuple[Message, bool]:
        """Return a piece, from 1 on, and whether it is the last one; those before are let go.

        Raises:
            MalformedMessageError: if it is neither the next one nor the one before.
            FleetError: why the image can't be read.
        """
        if not self._first <= part <= self._first + 1 or part > (self._end or part):
            rule = f"must be {self._first} or the next one"
            raise MalformedMessageError(where="follow_snapshot field 'part'", rule=rule)
        if part > self._first:
            self._pieces.pop(self._first, None)
            self._first = part
            self._changed.fire()
        while part not in self._pieces:
            if self._making.done():
                raise self._error or UnavailableError("the snapshot was given up")
            await self._changed.wait()
        return self._pieces[part], part == self._end

    async def close(self) -> None:
        """Read no more of the image."""
        self._making.cancel()
        await asyncio.wait((self._making,))
        self._image.end()
        self._pieces.clear()
        self._changed.fire()

    async def _make(self) -> None:
        """Make one piece after the other, a few ahead of what is asked for."""
        number = 0
        try:
            async with aclosing(self._image.messages()) as messages:
                async for message in messages:
                    number += 1
                    if message.fields.get("kind") == "end":
                        self._end = number
                    self._pieces[number] = message
                    self._changed.fire()
                    while number >= self._first + PIECES_AHEAD:
                        await self._changed.wait()
        except Exception as error:  # noqa: BLE001 -- for who asks for the next piece
            self._error = error
        finally:
            self._image.end()
            self._changed.fire()
