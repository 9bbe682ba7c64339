"""Readers of a group's values: serving processes, and writers of change streams.

A reader begins a feed, reads all rows, some places at a time, and then asks again and again
what changed since. Rows that change while it reads all are among the first changes, so together
they are the tables as they were at the last answer. A reader changes nothing here, and nobody
waits for one: who is silent for too long, or has more to read than there is memory for, begins
anew.

All requests may be repeated.
"""

import asyncio
import logging
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from paramfleet_pserver.following import feed as feeding
from paramfleet_pserver.following.feed import DenseValues, Feed, TableChanges
from paramfleet_pserver.following.messages import read_name
from paramfleet_pserver.requests.fields import Fields
from paramfleet_pserver.tables.owners import Owners
from paramfleet_pserver.tables.table import DenseTable, SparseTable, Table
from paramfleet_pserver.tables.table_store import TableStore
from paramfleet_shared.errors.following import FeedOverError, TooManyReadersError
from paramfleet_shared.net.rpc.server import Request
from paramfleet_shared.net.wire.message import MalformedMessageError, Message
from paramfleet_shared.system.clock import Clock

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["FEEDING", "Feeds"]

FEEDING = ("feed_begin", "feed_rows", "feed_keep", "feed_changes", "feed_end")
"""Operations of readers, by the names they have on the wire."""

MAX_READERS = 8
"""Of one group: each keeps the ids that change."""

SILENCE_S = 60.0
"""Seconds without a question, after which what changed isn't kept for a reader any more."""

ASKS_S = 2.0
"""Seconds since a question, within which a reader is waited for at the end of the training."""

SETTLE_S = 2.0
"""Seconds for which it is, at most."""

_SETTLE_POLL_S = 0.02

MAX_PLACES = 1 << 16
"""That one request reads: some milliseconds of an owner."""

_MOST_TABLES = 4096

log = logging.getLogger(__name__)


class Feeds:
    """The feeds of one group's readers. Used from one event loop.

    Args:
        store: The tables.
        owners: Who works on them.
        clock: Time.
    """

    def __init__(self, store: TableStore, owners: Owners, *, clock: Clock) -> None:
        self._store = store
        self._owners = owners
        self._clock = clock
        self._feeds: dict[str, Feed] = {}
        self._turns: dict[str, asyncio.Lock] = {}
        """Of each reader: its questions are answered one after the other."""
        self._alarm: asyncio.TimerHandle | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._is_settling = False
        """Whether nothing changes any more."""

    async def feed_begin(self, request: Request) -> Message:
        """Keep what changes from now on for a reader; answer which tables there are.

        Raises:
            TooManyReadersError: if as many read as may.
        """
        reader = read_name(Fields(request.message.fields, where="feed_begin"), "reader")
        if reader not in self._feeds and len(self._feeds) >= MAX_READERS:
            raise TooManyReadersError(limit=MAX_READERS)
        async with self._turns.setdefault(reader, asyncio.Lock()):
            await self._end(reader)
            now = self._clock.monotonic()
            feed = Feed(secrets.randbits(62), self._store, self._owners, now=now)
            self._feeds[reader] = feed
            self._watch()
            await feed.begin()
        log.info("pserver.feed_begun", extra={"reader": reader})
        tables = [_about(table) for table in feed.tables]
        return Message(fields={"feed": feed.number, "tables": tables})

    async def feed_rows(self, request: Request) -> Message:
        """Answer with the rows of some places of a block, as they are now.

        Raises:
            FeedOverError: if the feed has ended.
            MalformedMessageError: if a field is wrong, or names no block of a table.
            UnknownTableError: if there is no such table.
        """
        fields = Fields(request.message.fields, where="feed_rows")
        feed = self._feed_of(fields)
        table, block = self._store.find(fields.text("table")), fields.integer("block")
        start, count = fields.integer("start"), fields.integer("count", most=MAX_PLACES)
        if not isinstance(table, SparseTable) or block >= len(table.blocks):
            rule = "names none of a table"
            raise MalformedMessageError(where="feed_rows field 'block'", rule=rule)
        ids, rows, stop, num_places = await feed.rows(table, block, start, count)
        about = {"places": num_places, "next": stop}
        return Message(fields=about, tensors={"ids": ids, "rows": rows})

    async def feed_keep(self, request: Request) -> Message:
        """Go on keeping what changes for a reader that has other things to read first.

        Raises:
            FeedOverError: if the feed has ended.
        """
        self._feed_of(Fields(request.message.fields, where="feed_keep"))
        return Message()

    async def feed_changes(self, request: Request) -> Message:
        """Answer what changed since an answer that the reader has.

        Raises:
            FeedOverError: if the feed has ended.
            MalformedMessageError: if a field is wrong.
        """
        fields = Fields(request.message.fields, where="feed_changes")
        have, marks = fields.integer("have"), _marks_of(fields)
        wants = fields.flag("with_dense")
        begins = fields.flag("begins")
        async with self._turn_of(fields):
            feed = self._feed_of(fields)
            if have > feed.answers:
                rule = f"must be at most {feed.answers}"
                raise MalformedMessageError(where="feed_changes field 'have'", rule=rule)
            is_last = self._is_settling and begins
            changes, left = await feed.changes(have=have, begins=begins)
            self._refuse_over(fields, feed)  # it may have been lost meanwhile
            is_last = is_last and not left
            dense = list[DenseValues]()
            if wants or is_last:
                in_pieces = fields.has("dense_at")
                places = _places_of(fields, feed) if in_pieces else {}
                most = feeding.MOST_DENSE if in_pieces else None
                dense = await feed.dense(marks, places, most=most)
            is_last = is_last and not any(each.left for each in dense)
            feed.asked_at = self._clock.monotonic()
        about = {"number": feed.answers, "left": left, "last": is_last}
        return _changes_message(about, changes, dense)

    async def feed_end(self, request: Request) -> Message:
        """Keep nothing for a reader any more."""
        fields = Fields(request.message.fields, where="feed_end")
        reader, number = read_name(fields, "reader"), fields.integer("feed")
        async with self._turn_of(fields):
            if reader in self._feeds and self._feeds[reader].number == number:
                await self._end(reader)
                self._turns.pop(reader, None)
        return Message()

    async def settle(self) -> None:
        """Return when readers have ended their feeds; nothing changes any more.

        They do when the last answer has come. Who hasn't asked for a while isn't waited for,
        and nobody for long.
        """
        self._is_settling, began = True, self._clock.monotonic()
        while any(feed.asked_at > began - ASKS_S for feed in self._feeds.values()):
            if self._clock.monotonic() > began + SETTLE_S:
                return
            await self._clock.sleep(_SETTLE_POLL_S)

    def facts(self) -> list[dict[str, Any]]:
        """Return what an operator may ask of each reader."""
        now = self._clock.monotonic()
        return [
            {
                "reader": reader,
                "answers": feed.answers,
                "silent_s": round(now - feed.asked_at, 3),
                "bytes": feed.num_bytes,
            }
            for reader, feed in self._feeds.items()
        ]

    async def close(self) -> None:
        """Keep nothing for anybody any more."""
        if self._alarm is not None:
            self._alarm.cancel()
        for reader in list(self._feeds):
            await self._end(reader)

    def _turn_of(self, fields: Fields) -> asyncio.Lock:
        """Return the lock of a reader's questions; one that nobody else has if it is unknown.

        Raises:
            MalformedMessageError: if it has no name.
        """
        return self._turns.get(read_name(fields, "reader")) or asyncio.Lock()

    def _feed_of(self, fields: Fields) -> Feed:
        """Return the feed that a request names.

        Raises:
            FeedOverError: if it has ended.
        """
        reader, number = read_name(fields, "reader"), fields.integer("feed")
        feed = self._feeds.get(reader)
        if feed is None or feed.number != number:
            raise FeedOverError(reader=reader, reason="its feed isn't kept here")
        self._refuse_over(fields, feed)
        feed.asked_at = self._clock.monotonic()
        return feed

    def _refuse_over(self, fields: Fields, feed: Feed) -> None:
        """Pass if a feed can be gone on with.

        Raises:
            FeedOverError: if it can't.
        """
        if reason := feed.hindrance():
            raise FeedOverError(reader=read_name(fields, "reader"), reason=reason)

    async def _end(self, reader: str) -> None:
        feed = self._feeds.pop(reader, None)
        if feed is not None:
            await feed.end()

    async def _end_silent(self, reader: str, feed: Feed) -> None:
        """End a feed, unless its reader has asked again, or begun another one, meanwhile."""
        async with self._turns.setdefault(reader, asyncio.Lock()):
            is_silent = self._clock.monotonic() - feed.asked_at > SILENCE_S
            if self._feeds.get(reader) is feed and (is_silent or feed.is_lost):
                await self._end(reader)
                self._turns.pop(reader, None)

    def _watch(self) -> None:
        """Look for silent readers from time to time, as long as there are any."""
        if self._alarm is None and self._feeds:
            loop = asyncio.get_running_loop()
            self._alarm = loop.call_later(SILENCE_S / 4, self._look)

    def _look(self) -> None:
        self._alarm = None
        now = self._clock.monotonic()
        for reader, feed in list(self._feeds.items()):
            is_silent = now - feed.asked_at > SILENCE_S
            if is_silent or feed.is_lost:
                event = "pserver.feed_silent" if is_silent else "pserver.feed_lost"
                log.info(event, extra={"reader": reader})
                ending = asyncio.get_running_loop().create_task(self._end_silent(reader, feed))
                self._ending.add(ending)
                ending.add_done_callback(self._ending.discard)
        self._watch()


def _about(table: Table) -> dict[str, Any]:
    blocks = len(table.blocks) if isinstance(table, SparseTable) else 0
    return {"spec": table.spec.to_wire(), "blocks": blocks}


def _marks_of(fields: Fields) -> Mapping[str, int]:
    """Return which dense values a reader has.

    Raises:
        MalformedMessageError: if they aren't numbers by table.
    """
    marks = fields.map("dense")
    if len(marks) > _MOST_TABLES or any(
        type(name) is not str or type(mark) is not int for name, mark in marks.items()
    ):
        rule = "must be a map of numbers by table"
        raise MalformedMessageError(where="feed_changes field 'dense'", rule=rule)
    return marks


def _places_of(fields: Fields, feed: Feed) -> Mapping[str, tuple[int, int]]:
    """Return up to where a reader has dense tables that it hasn't read to their end.

    Raises:
        MalformedMessageError: if they aren't a mark and a place here, by table.
    """
    found = dict[str, tuple[int, int]]()
    known = {each.spec.name: each for each in feed.tables if isinstance(each, DenseTable)}
    for name, value in fields.map("dense_at").items():
        table, is_pair = known.get(name), type(value) is list and len(value) == 2
        if table is None or not is_pair or any(type(each) is not int for each in value):
            rule = "must be a mark and a place by dense table"
            raise MalformedMessageError(where="feed_changes field 'dense_at'", rule=rule)
        mark, place = value
        if not table.start <= place <= table.start + table.num_rows:
            rule = f"must be places of table {name!r} here"
            raise MalformedMessageError(where="feed_changes field 'dense_at'", rule=rule)
        found[name] = mark, place
    return found


def _changes_message(
    about: Mapping[str, Any], changes: list[TableChanges], dense: list[DenseValues]
) -> Message:
    tensors: dict[str, NDArray[Any]] = {}
    parts: list[dict[str, Any]] = []
    for each in changes:
        if len(each.ids) or len(each.removed):
            index = len(parts)
            parts.append({"table": each.table})
            tensors |= {
                f"{index}.ids": each.ids,
                f"{index}.rows": each.rows,
                f"{index}.removed": np.ascontiguousarray(each.removed),
            }
    values = []
    for index, of in enumerate(dense):
        about_it = {"table": of.table, "mark": of.mark, "start": of.start, "left": of.left}
        values.append(about_it)
        tensors[f"dense.{index}"] = of.values
    return Message(fields={**about, "parts": parts, "dense": values}, tensors=tensors)
