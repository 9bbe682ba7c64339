"""A running job's changes, published as a stream of a folder.

One task asks the pservers; the files are written on another thread. After an interruption that
may have lost changes (a pserver restarted or moved, a checkpoint was loaded, another run of the
job) the next stream begins, with a base of all rows.
"""

import asyncio
import logging
import queue
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

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

__all__ = ["ExportPlan", "Exporter", "Progress"]

RETRY_S = 0.2
"""Seconds between two looks for pservers that don't answer."""

SILENT_S = 30.0
"""Seconds without an answer, after which the log says so once more."""

PIECES_AHEAD = 4
"""Of rows that were read and aren't written as yet."""

_OVER = (FeedOverError, OtherTermError, FencedError, TablesNotDeclaredError, PeerUnprovenError)
"""Errors after which a feed can't be gone on with."""

_PASSING = (UnavailableError, OutcomeUnknownError)

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


class Progress(Protocol):
    """Takes note of what was published."""

    def begun(self, *, num_rows: int) -> None:
        """A stream has begun with so many rows."""

    def published(self, number: int, moment: float) -> None:
        """Everything until a moment (seconds since 1970) is in change ``number``."""


class Exporter:
    """Follows one job. Used from one event loop.

    Args:
        settings: Which job.
        writer: Of the folder's stream.
        plan: How often.
        clock: Time.
        progress: Takes note.
    """

    def __init__(
        self,
        settings: JobSettings,
        writer: StreamWriter,
        plan: ExportPlan,
        *,
        clock: Clock,
        progress: Progress | None = None,
    ) -> None:
        self._settings = settings
        self._writer = writer
        self._plan = plan
        self._clock = clock
        self._progress = progress
        self._locator = Locator(settings, clock)
        self._reader = f"stream {secrets.token_hex(8)}"
        self._silent_since: float | None = None
        self._compacting: asyncio.Task[int | None] | None = None
        self._since_base = 0
        self._has_begun = False

    async def run(self) -> None:
        """Follow until the job has ended, or, if the plan says so, until it is cancelled.

        Raises:
            FleetError: why it can't be followed, or the folder not be written to.
            OSError: if the folder refuses.
        """
        ended = 0
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
                        ended = state.epoch
                    if feed.has_ended and not self._plan.stays:
                        return  # its registry may have gone with it
                finally:
                    await feed.close()
        finally:
            await self._end_compacting()
            await self._locator.close()

    async def _await_run(self, *, after: int) -> JobState | None:
        """Return a run whose pservers serve; None if there is nothing to wait for.

        Raises:
            FleetError: if the registry refuses.
        """
        while True:
            state = await self._look_again()
            is_new = state.epoch > after and not state.has_ended
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
        is_begun = False
        while True:
            is_over = False
            try:
                if not is_begun:
                    await self._begin(feed)
                    is_begun = self._has_begun = True
                await self._publish_changes(feed)
            except _OVER as error:
                if isinstance(error, PeerUnprovenError) and not self._has_begun:
                    raise  # it has another secret
                log.info("serving.feed_over", extra={"reason": str(error)})
                is_over = True
            except _PASSING as error:
                self._note_silence(error)
                is_over = not is_begun
            else:
                return True
            now = await self._look_again()
            if now.has_ended or now.epoch != state.epoch:
                return True
            await self._clock.sleep(RETRY_S)
            if is_over or now.placement != state.placement:
                return False

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
        specs = await feed.begin()
        tables = [StreamTable.of(spec) for spec in specs if spec.kind == "sparse"]
        await self._end_compacting()
        first = await feed.changes(dense=True)
        pieces = _Pieces()
        writing = asyncio.get_running_loop().create_task(
            asyncio.to_thread(
                self._writer.begin, tables, pieces, dict(first.dense), moment=first.moment
            )
        )
        try:
            num_rows = await pieces.fill(feed.rows(), writing)
        finally:
            await pieces.end()
            await asyncio.wait((writing,))
        writing.result()
        self._since_base, self._silent_since = 0, None
        log.info("serving.stream_begun", extra={"rows": num_rows, "tables": len(tables)})
        if self._progress is not None:
            self._progress.begun(num_rows=num_rows)
        # What changed meanwhile may be older or newer in the base: it comes once more.
        await self._publish(await feed.changes(dense=True))

    async def _publish_changes(self, feed: JobFeed) -> None:
        """Publish again and again until the training has ended.

        Raises:
            FleetError: why a pserver doesn't answer, or the folder can't be written to.
            OSError: if the folder refuses.
        """
        dense_at = self._clock.monotonic()
        while not feed.has_ended:
            began = self._clock.monotonic()
            with_dense = began - dense_at >= self._plan.dense_s
            change = await feed.changes(dense=with_dense)
            self._silent_since = None
            if with_dense:
                dense_at = began
            await self._publish(change)
            left = self._plan.every_s - (self._clock.monotonic() - began)
            await self._clock.sleep(max(0.0, left))

    async def _publish(self, change: Change) -> None:
        """Write a change, if it has anything."""
        has_rows = any(len(each.ids) or len(each.removed) for each in change.tables.values())
        if not has_rows and not change.dense:
            await asyncio.to_thread(self._writer.touch, change.moment)
            return
        number = await asyncio.to_thread(self._writer.publish, change)
        self._since_base += 1
        if self._progress is not None:
            self._progress.published(number, change.moment)
        if self._plan.base_changes and self._since_base >= self._plan.base_changes:
            self._compact()

    def _compact(self) -> None:
        if self._compacting is not None and not self._compacting.done():
            return
        if self._compacting is not None:
            self._compacting.result()  # why the former one failed
        self._since_base = 0
        self._compacting = asyncio.get_running_loop().create_task(
            asyncio.to_thread(self._writer.compact)
        )

    async def _end_compacting(self) -> None:
        if self._compacting is not None:
            await asyncio.wait((self._compacting,))
            self._compacting = None

    def _note_silence(self, error: FleetError) -> None:
        """Log that the job doesn't answer, now and then."""
        now = self._clock.monotonic()
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

    async def end(self) -> None:
        """Say that there are no more."""
        while True:
            try:
                self._queue.put_nowait(None)
            except queue.Full:
                await asyncio.sleep(0.01)
            else:
                return
