"""Changes from a folder that a writer publishes a stream to.

The folder is looked at again and again. On a disk, also one of another machine, a look is one
``stat``; only what has changed is read. All of it is done on other threads: a disk may hang.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import final

from paramfleet_serving.following.source import BaseOpened, Changed, Event, Moment
from paramfleet_serving.store.model import Version
from paramfleet_shared.deltas.errors import (
    BaseDamagedError,
    ChangesUnavailableError,
    StreamReplacedError,
)
from paramfleet_shared.deltas.reader import Accept, StreamReader
from paramfleet_shared.deltas.records import NumberedChange, OpenedBase, StreamHead
from paramfleet_shared.errors import IntegrityError
from paramfleet_shared.errors.serving import NumberNotKeptError
from paramfleet_shared.files.addresses import Address
from paramfleet_shared.files.tensorfile import FileMemoryError
from paramfleet_shared.system.clock import Clock

__all__ = ["FolderSource"]

log = logging.getLogger(__name__)

_HEAD = "stream.json"

_Stamp = tuple[int, ...] | None
"""What changes with a file; None where only its content says so."""

_NEVER: _Stamp = (-1,)
_AGAIN: _Stamp = (-2,)
_NOTHING: _Stamp = ()
"""Of a file that was never looked at, that must be looked at once more, and of none."""


@final
class FolderSource:
    """Follows the stream of a folder.

    Args:
        folder: A folder of this machine, or an address.
        clock: Time.
        poll_s: Seconds between two looks.
    """

    def __init__(self, folder: Path, *, clock: Clock, poll_s: float) -> None:
        self._folder = folder
        self._clock = clock
        self._poll_s = poll_s

    @property
    def name(self) -> str:
        """Return the folder."""
        return str(self._folder)

    async def events(self, after: Version | None, *, accept: Accept) -> AsyncIterator[Event]:
        """Yield what comes, without an end; see ``Source``.

        Raises:
            IntegrityError: if something is wrong with what comes, and no base is behind it.
            FileMemoryError: if there is no memory for it, and no base is behind it.
            FleetError: if there is no stream that can be read.
            OSError: if it can't be read.
        """
        reader = StreamReader(self._folder)
        position, stamp, has_begun = after, _NEVER, False
        while True:
            stamp = await self._next_stamp(stamp)
            head = await asyncio.to_thread(reader.look)
            if position is None or not _leads_on(head, position):
                base = await _newest_good(reader, accept)
                until = head.last if head.stream == base.stream else base.number
                yield BaseOpened(base, max(until, base.number))
                has_begun = True
                position = Version(base.stream, base.number)
                head = await asyncio.to_thread(reader.look)  # replaced meanwhile: it is refused
            try:
                async for numbered in _changes(reader, position.number, head.last):
                    yield Changed(position.stream, numbered)
                    position = Version(position.stream, numbered.number)
                yield Moment(position.stream, head.moment)
            except (ChangesUnavailableError, StreamReplacedError):
                position, stamp = None, _AGAIN  # another base leads on
            except (IntegrityError, FileMemoryError):  # a base needs no such memory
                if has_begun or head.base <= position.number:
                    raise
                position, stamp = None, _AGAIN  # and one behind what is damaged

    async def replay(
        self, number: int, *, accept: Accept, stream: str | None = None
    ) -> AsyncIterator[Event]:
        """Yield a base, and the changes from there to a number; see ``Source``.

        Raises:
            NumberNotKeptError: if they aren't there any more, or as yet.
            FleetError: if something is wrong with them.
            OSError: if they can't be read.
        """
        reader = StreamReader(self._folder)
        head = await asyncio.to_thread(reader.look)
        _check_stream(number, stream or head.stream, head.stream)
        below = [base for base in head.bases if base <= number]
        if number > head.last or not below:
            kept = ", ".join(str(base) for base in sorted(head.bases))
            reason = f"the folder has bases {kept}, and changes to {head.last}"
            raise NumberNotKeptError(number=number, stream=head.stream, reason=reason)
        base = await asyncio.to_thread(reader.base, max(below), accept=accept)
        _check_stream(number, head.stream, base.stream)  # another one may be there now
        yield BaseOpened(base, number)
        async for numbered in _changes(reader, base.number, number):
            yield Changed(base.stream, numbered)

    async def close(self) -> None:
        """Hold nothing: the folder is its writer's."""

    async def newest_base(self) -> Version | None:
        """Return the newest base; see ``Source``.

        Raises:
            FleetError: if something is wrong.
            OSError: if it can't be read.
        """
        head = await asyncio.to_thread(StreamReader(self._folder).look)
        return Version(head.stream, head.base)

    async def _next_stamp(self, known: _Stamp) -> _Stamp:
        """Wait until ``stream.json`` may be another than the known one; return its stamp."""
        if known != _NEVER:
            await self._clock.sleep(self._poll_s)
        while True:
            found = await asyncio.to_thread(self._stamp)
            if found is None or found not in {known, _NOTHING}:
                return found
            await self._clock.sleep(self._poll_s)

    def _stamp(self) -> _Stamp:
        if isinstance(self._folder, Address):
            return None
        try:
            fact = (self._folder / _HEAD).stat()
        except FileNotFoundError:
            return _NOTHING
        return fact.st_mtime_ns, fact.st_size, fact.st_ino


async def _newest_good(reader: StreamReader, accept: Accept) -> OpenedBase:
    """Return the newest base that isn't damaged.

    Raises:
        BaseDamagedError: of the newest, if all are.
        FleetError: if there is no stream that can be read.
    """
    head = await asyncio.to_thread(reader.look)
    damage: BaseDamagedError | None = None
    for number in sorted(head.bases, reverse=True):
        try:
            return await asyncio.to_thread(reader.base, number, accept=accept)
        except BaseDamagedError as error:
            log.warning("serving.base_damaged", extra={"reason": str(error)})
            damage = damage or error
    assert damage is not None, "a stream has a base"
    raise damage


async def _changes(
    reader: StreamReader, after: int, until: int
) -> AsyncIterator[NumberedChange]:
    """Yield changes, each read when it is asked for.

    Raises:
        FleetError: if something is wrong with them.
        OSError: if they can't be read.
    """
    if until <= after:
        return
    changes = reader.changes(after, until)
    while (numbered := await asyncio.to_thread(next, changes, None)) is not None:
        yield numbered


def _check_stream(number: int, stream: str, found: str) -> None:
    """Pass if a folder has the stream whose number is meant.

    Raises:
        NumberNotKeptError: if it hasn't.
    """
    if stream != found:
        reason = f"the folder has stream {found}"
        raise NumberNotKeptError(number=number, stream=stream, reason=reason)


def _leads_on(head: StreamHead, position: Version) -> bool:
    """Return whether changes behind a position are those that come, and are kept."""
    is_kept = min(head.bases) <= position.number <= head.last
    return head.stream == position.stream and is_kept
