"""A running job's changes, published as a stream of a folder.

One task asks the pservers; the files are written on another thread. After an interruption that
may have lost changes (a pserver restarted or moved, a checkpoint was loaded, another run of the
job) the next stream begins, with a base of all rows.
"""

import asyncio
import logging
import queue
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from paramfleet_serving.jobs.feed import JobFeed, Rows
from paramfleet_serving.jobs.locating import JobState, Locator
from paramfleet_shared.deltas.records import Change, StreamTable
from paramfleet_shared.deltas.writer import StreamWriter
from paramfleet_shared.discovery.errors import FencedError
from paramfleet_shared.errors import (
    FleetError,
    OutcomeUnknownError,
    UnavailableError,
)
from paramfleet_shared.errors.following import FeedOverError
from paramfleet_shared.errors.logs import OtherTermError
from paramfleet_shared.errors.served import TablesNotDeclaredError
from paramfleet_shared.net.rpc.client import PeerUnprovenError
from paramfleet_shared.settings.config import JobSettings
from paramfleet_shared.system.clock import Clock

__all__ = ["ExportPlan", "Exporter", "FolderRefusesError", "Progress"]

RETRY_S = 0.2
"""Seconds between two looks for pservers that don't answer."""

SILENT_S = 30.0
"""Seconds without an answer, after which the log says so once more."""

KEEP_S = 10.0
"""Seconds between two requests to keep what changes, while all rows are read and written."""

LOOK_S = 2.0
"""Seconds between two looks at the placement, where the pservers answer."""

TOUCH_S = 0.5
"""Seconds between two publications that nothing has changed."""

REFUSED_S = 45.0
"""Seconds for which a change is tried again that the folder doesn't take: after 60 s without a
question pservers keep nothing for a reader."""

PIECES_AHEAD = 4
"""Of rows that were read and aren't written as yet."""

_OVER = (FeedOverError, OtherTermError, FencedError, TablesNotDeclaredError, PeerUnprovenError)
"""Errors after which a feed can't be gone on with."""

_PASSING = (UnavailableError, OutcomeUnknownError)

T = TypeVar("T")

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportPlan:
    """How often a stream is written to."""

    every_s: float = 0.2
    """Seconds between two changes."""

    dense_s: float = 1.0
    """Seconds between two changes that have dense parameters."""

    base_changes: int = 5000
    """Changes after which a base is made of them; 0 for never."""

    stays: bool = False
    """Whether another run of the job is waited for after the end of one."""


class FolderRefusesError(OutcomeUnknownError):
    """What a job has changed couldn't be written for too long."""

    code = "outcome_unknown.folder_refuses"
    folder: str
    reason: str
    sentence = (
        "the stream in {folder} couldn't be written: {reason}; when this is repaired, start "
        "again: a new stream begins, with all rows"
    )


class Progress(Protocol):
    """Takes note of what was published."""

    def begun(self, *, num_rows: int) -> None:
        """A stream has begun with so many rows."""

    def published(self, number: int, moment: float) -> None:
        """Everything until a moment (seconds since 1970) is in change ``number``."""


class Exporter:
    """Follows one job. Used from one event loop.

    Args:
        find: Returns which job, where its registry is, and what proves that it may be read;
            asked again where the registry doesn't answer: each launch of a job may have
            others.
        writer: Of the folder's stream.
        plan: How often.
        clock: Time.
        progress: Takes note.
    """

    def __init__(
        self,
        find: Callable[[], JobSettings],
        writer: StreamWriter,
        plan: ExportPlan,
        *,
        clock: Clock,
        progress: Progress | None = None,
    ) -> None:
        self._find = find
        self._settings = find()
        self._writer = writer
        self._plan = plan
        self._clock = clock
        self._progress = progress
        self._locator = Locator(self._settings, clock)
        self._awaits_tables = False
        """Whether the log says that no worker has declared them as yet."""
        self._rests = False
        """Whether the job has ended, and another run of it is waited for."""
        self._reader = f"stream {secrets.token_hex(8)}"
        self._silent_since: float | None = None
        self._compacting: asyncio.Task[int | None] | None = None
        self._since_base = 0
        self._has_begun = False
        self._is_begun = False
        """Whether the feed that is followed has a stream."""
        self._touched_at = float("-inf")
        self.is_whole = False
        """Whether the run that was followed last was followed to its last change."""

    async def run(self) -> None:
        """Follow until the job has ended, or, if the plan says so, until it is cancelled.

        Raises:
            FleetError: why it can't be followed, or the folder not be written to.
            OSError: if the folder refuses.
        """
        ended = ""
        try:
            while True:
                state = await self._await_run(after=ended)
                if state is None:
                    return
                assert state.placement is not None, "it was waited for"
                feed = JobFeed(
                    state.placement,
                    reader=self._reader,
                    settings=self._settings,
                    clock=self._clock,
                )
                try:
                    if await self._follow(feed, state):
                        ended = state.run
                        self._note_end(feed)
                    if feed.has_ended and not self._plan.stays:
                        return  # its registry may have gone with it
                finally:
                    await feed.close()
        finally:
            await self._end_compacting()
            await self._locator.close()

    async def _await_run(self, *, after: str) -> JobState | None:
        """Return a run whose pservers serve; None if there is nothing to wait for.

        Args:
            after: Another one than this, which has ended; empty for none.

        Raises:
            FleetError: if the registry refuses.
        """
        while True:
            # Another launch may have the registry's address, and a secret of its own.
            await self._find_again()
            state = await self._look_again()
            is_new = bool(state.run) and state.run != after and not state.has_ended
            if is_new and state.placement is not None:
                return state
            if (state.has_ended or after) and not is_new and not self._plan.stays:
                return None
            await self._clock.sleep(RETRY_S)

    async def _follow(self, feed: JobFeed, state: JobState) -> bool:
        """Publish what one feed gives; return whether the run has ended.

        Raises:
            FleetError: if it can't be followed at all.
            OSError: if the folder refuses.
        """
        self._is_begun = False
        while True:
            if await self._attempt(feed, state):
                return True
            now = await self._look_again()
            if now.has_ended or now.run != state.run:
                return True
            await self._clock.sleep(RETRY_S)
            if not self._is_begun or now.placement != state.placement:
                return False

    async def _attempt(self, feed: JobFeed, state: JobState) -> bool:
        """Publish until the training has ended, or pservers don't answer; return which.

        Raises:
            FolderRefusesError: if the folder does: what wasn't written isn't kept by anybody.
            FleetError: if it can't be followed at all.
            OSError: if the folder refuses.
        """
        try:
            if not self._is_begun:
                await self._begin(feed)
                self._is_begun = self._has_begun = True
                self._awaits_tables = False
            await self._publish_changes(feed, state)
        except FolderRefusesError:
            raise
        except TablesNotDeclaredError:
            if not self._awaits_tables:
                log.info("serving.awaits_tables", extra={"job": self._settings.job})
            self._awaits_tables, self._is_begun = True, False
        except _OVER as error:
            if isinstance(error, PeerUnprovenError) and not self._has_begun:
                raise  # it has another secret
            log.info("serving.feed_over", extra={"reason": str(error)})
            self._is_begun = False
        except _PASSING as error:
            self._note_silence(error)
        else:
            return True
        return False

    def _note_end(self, feed: JobFeed) -> None:
        """Take note of how a run has ended, and log it."""
        self.is_whole, self._rests = feed.has_ended, True
        facts = {"job": self._settings.job, "whole": self.is_whole}
        level = logging.INFO if self.is_whole else logging.WARNING
        log.log(level, "serving.job_ended", extra=facts)

    async def _find_again(self) -> None:
        """Look where the job is by now, if that is known to be elsewhere."""
        found = self._find()
        if found != self._settings:
            self._settings = found
            await self._locator.close()
            self._locator = Locator(found, self._clock)

    async def _look_again(self) -> JobState:
        """Return how the job is, once the registry answers.

        Raises:
            NoRedisError: if it doesn't for ``outage_grace_s``, and no other run is waited for.
            FleetError: if the registry refuses.
        """
        began = self._clock.monotonic()
        while True:
            try:
                return await self._locator.look()
            except _PASSING as error:
                self._note_silence(error)
                await self._find_again()
                silent_s = self._clock.monotonic() - began
                if silent_s > self._settings.outage_grace_s and not self._plan.stays:
                    raise
                await self._clock.sleep(RETRY_S)

    async def _begin(self, feed: JobFeed) -> None:
        """Begin a stream with all rows.

        Raises:
            FleetError: why a pserver doesn't answer.
            OSError: if the folder refuses.
        """
        await self._end_compacting()
        specs = await feed.begin()
        tables = [StreamTable.of(spec) for spec in specs if spec.kind == "sparse"]
        first = await feed.changes(dense=True)
        pieces = _Pieces()
        writing = asyncio.get_running_loop().create_task(
            asyncio.to_thread(
                self._writer.begin, tables, pieces, dict(first.dense), moment=first.moment
            )
        )
        keeping = asyncio.get_running_loop().create_task(self._keep(feed))
        try:
            num_rows = await pieces.fill(feed.rows(), writing)
            await pieces.end(writing)
            await asyncio.wait((writing, keeping), return_when=asyncio.FIRST_COMPLETED)
            if keeping.done():
                keeping.result()  # why nothing is kept
        finally:
            keeping.cancel()
            await pieces.end(writing)
            await asyncio.wait((writing, keeping))
        writing.result()
        self._since_base, self._silent_since, self._rests = 0, None, False
        log.info("serving.stream_begun", extra={"rows": num_rows, "tables": len(tables)})
        if self._progress is not None:
            self._progress.begun(num_rows=num_rows)
        # What changed meanwhile may be older or newer in the base: it comes once more.
        await self._publish(await feed.changes(dense=True))

    async def _keep(self, feed: JobFeed) -> None:
        """Have what changes kept, while a stream begins.

        Raises:
            FleetError: why it isn't.
        """
        while True:
            await self._clock.sleep(KEEP_S)
            await feed.keep()

    async def _publish_changes(self, feed: JobFeed, state: JobState) -> None:
        """Publish again and again until the training has ended.

        Raises:
            FeedOverError: if other processes are the pservers now.
            FleetError: why a pserver doesn't answer, or the folder can't be written to.
            OSError: if the folder refuses.
        """
        dense_at = looked_at = self._clock.monotonic()
        while not feed.has_ended:
            began = self._clock.monotonic()
            if began - looked_at >= LOOK_S:
                looked_at = began
                await self._check_place(state)
            with_dense = began - dense_at >= self._plan.dense_s
            change = await feed.changes(dense=with_dense)
            self._silent_since = None
            if with_dense:
                dense_at = began
            await self._publish(change)
            left = self._plan.every_s - (self._clock.monotonic() - began)
            await self._clock.sleep(max(0.0, left))

    async def _check_place(self, state: JobState) -> None:
        """Pass if the pservers that are asked are those of the job, as far as is known.

        Raises:
            FeedOverError: if they aren't.
            FleetError: if the registry refuses.
        """
        try:
            now = await self._locator.look()
        except _PASSING:
            return
        if (now.run, now.placement) != (state.run, state.placement):
            reason = "other processes are its pservers now"
            raise FeedOverError(reader=self._reader, reason=reason)

    async def _publish(self, change: Change) -> None:
        """Write a change, if it has anything.

        Raises:
            FleetError: if the folder can't be written to.
            OSError: if it refuses.
        """
        has_rows = any(len(each.ids) or len(each.removed) for each in change.tables.values())
        if not has_rows and not change.dense:
            now = self._clock.monotonic()
            if now - self._touched_at >= TOUCH_S:
                self._touched_at = now
                await self._written(partial(self._writer.touch, change.moment))
            return
        number = await self._written(partial(self._writer.publish, change))
        self._since_base += 1
        if self._progress is not None:
            self._progress.published(number, change.moment)
        if self._plan.base_changes and self._since_base >= self._plan.base_changes:
            self._compact()

    async def _written(self, write: Callable[[], T]) -> T:
        """Write to the folder, again where it refuses for a while: nothing is passed over.

        Raises:
            FolderRefusesError: if it refuses for too long.
            FleetError: if it can't be written to at all.
        """
        began = self._clock.monotonic()
        while True:
            try:
                return await asyncio.to_thread(write)
            except (UnavailableError, OSError) as error:
                if self._clock.monotonic() - began > REFUSED_S:
                    folder = str(self._writer.folder)
                    raise FolderRefusesError(folder=folder, reason=str(error)) from error
                log.warning("serving.not_published", extra={"reason": str(error)})
                await self._clock.sleep(RETRY_S)

    def _compact(self) -> None:
        if self._compacting is not None and not self._compacting.done():
            return
        self._look_at_compaction()
        self._since_base = 0
        self._compacting = asyncio.get_running_loop().create_task(
            asyncio.to_thread(self._writer.compact)
        )

    async def _end_compacting(self) -> None:
        if self._compacting is not None:
            await asyncio.wait((self._compacting,))
            self._look_at_compaction()

    def _look_at_compaction(self) -> None:
        """Log why the last compaction failed, if it did: the stream goes on, and is longer."""
        done, self._compacting = self._compacting, None
        error = None if done is None else done.exception()
        if error is not None:
            log.warning("serving.base_not_made", extra={"reason": str(error)})

    def _note_silence(self, error: FleetError) -> None:
        """Log that the job doesn't answer, now and then.

        One that has ended needn't, and one that is waited for may begin first.
        """
        if self._rests:
            return
        now = self._clock.monotonic()
        if self._silent_since is None and self._plan.stays and not self._has_begun:
            self._silent_since = now
        if self._silent_since is None or now - self._silent_since > SILENT_S:
            self._silent_since = now
            log.warning("serving.job_silent", extra={"reason": str(error)})


class _Pieces:
    """Rows on their way from the event loop to the thread that writes them."""

    def __init__(self) -> None:
        self._queue: queue.Queue[Rows | None] = queue.Queue(PIECES_AHEAD)
        self._has_failed = False
        self._is_whole = False

    def __iter__(self) -> Iterator[Rows]:
        while (piece := self._queue.get()) is not None:
            yield piece
        if not self._is_whole:
            raise UnavailableError("the rows of the job couldn't all be read")

    async def fill(self, rows: AsyncIterator[Rows], writing: asyncio.Task[None]) -> int:
        """Hand all rows over, as long as somebody writes; return how many."""
        num_rows = 0
        async with aclosing(rows) as pieces:  # type: ignore[type-var]
            async for piece in pieces:
                while True:
                    if writing.done():
                        return num_rows
                    try:
                        await asyncio.to_thread(self._queue.put, piece, timeout=0.5)
                    except queue.Full:
                        continue
                    break
                num_rows += len(piece.ids)
        self._is_whole = True
        return num_rows

    async def end(self, writing: asyncio.Task[None]) -> None:
        """Say that there are no more, as long as somebody writes. May be repeated."""
        while not writing.done():
            try:
                self._queue.put_nowait(None)
            except queue.Full:
                await asyncio.sleep(0.01)
            else:
                return
