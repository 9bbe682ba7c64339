"""Threads that own shards, so that one at a time works on each.

Every shard belongs to one owner for its life. There may be more owners than threads, after
a training came from a server with more; each owner has one thread. Jobs of one owner run
one after the other in the order they were handed in, whoever asked; the event loop only hands
over and is notified of the end. A job short enough to cost less than the hand-over runs
on the loop itself, if its owner has nothing to do; so does a longer one while nobody
else waits for the loop.

Start and use from one event loop.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

from paramfleet_shared.tables.disk.errors import TIER_FAILURES

if TYPE_CHECKING:
    from paramfleet_shared.errors import FleetError

__all__ = ["Job", "Owners", "when_done"]

INLINE_ROWS = 512
"""Rows a kernel finishes within about 50 microseconds, each a cache miss or two."""

LONE_ROWS = 1 << 15
"""As many while nobody else waits for the loop: some 300 microseconds. A hand-over and back
costs a third of that, and would gain nobody anything."""


class Job(NamedTuple):
    """Work on something that an owner owns."""

    owner: int
    """Any number; those beyond the threads share them."""
    rows: int
    """About how many rows it touches, by which its duration is guessed."""
    act: Callable[[], None]
    read_ahead: Callable[[], bool] | None = None
    """Begins to read what ``act`` needs from a disk, waits for nothing, and returns whether
    there is anything to read; called once at most, by the same owner, before another job."""


class Owners:
    """A fixed number of owner threads.

    Args:
        num_threads: How many.
    """

    def __init__(self, num_threads: int) -> None:
        assert num_threads >= 1, "the settings validate this"
        self._threads = [
            ThreadPoolExecutor(1, thread_name_prefix=f"owner-{index}")
            for index in range(num_threads)
        ]
        self._num_pending = [0] * num_threads
        self._ahead = [_Ahead() for _ in range(num_threads)]
        self.lost: FleetError | None = None
        """How the disk failed on which rows are: nothing is read or changed any more."""

    def __len__(self) -> int:
        return len(self._threads)

    def start(self, jobs: Iterable[Job], *, alone: bool = False) -> asyncio.Future[None]:
        """Hand jobs to their owners; those of one owner run in the order given.

        The jobs run to their end even if nobody waits for the future, which must
        not be cancelled: wait through ``run`` or a shield.

        Args:
            jobs: What to do.
            alone: Whether nobody else waits for the event loop.

        Returns:
            A future that is done when all are, or fails as the first that failed. It
            may be done already; see ``when_done``.
        """
        num_threads = len(self._threads)
        by_thread: dict[int, list[Job]] = {}
        for job in jobs:
            by_thread.setdefault(job.owner % num_threads, []).append(job)
        most_rows = LONE_ROWS // max(1, len(by_thread)) if alone else INLINE_ROWS
        here = [
            thread
            for thread, own in by_thread.items()
            if not self._num_pending[thread] and sum(job.rows for job in own) <= most_rows
        ]
        ends = [
            self._submit(thread, own) for thread, own in by_thread.items() if thread not in here
        ]
        ends += [self._done_here(by_thread[thread]) for thread in here]
        return ends[0] if len(ends) == 1 else _all_of(ends)

    async def run(self, jobs: Iterable[Job], *, alone: bool = False) -> None:
        """Hand jobs to their owners, as ``start`` does, and wait for the end.

        Cancellation: the jobs run nevertheless.
        """
        await asyncio.shield(self.start(jobs, alone=alone))

    def read_next(self, owner: int) -> None:
        """Have the next job of an owner's thread read ahead, if it does; called by that thread.

        Args:
            owner: Who has read what its present job needs.
        """
        self._ahead[owner % len(self._threads)].read_next()

    async def settle(self) -> None:
        """Return when everything that was handed in before has ended."""
        await self.run(Job(owner, 0, _nothing) for owner in range(len(self)))

    def post(self, job: Job) -> None:
        """Hand over a job that nobody waits for, and that can't fail unless the disk does."""
        when_done(self.start([job]), _see)

    async def close(self) -> None:
        """Finish what was handed in, and end the threads."""
        for thread in self._threads:
            await asyncio.to_thread(thread.shutdown)

    def _submit(self, thread: int, jobs: list[Job]) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        self._num_pending[thread] += 1
        self._ahead[thread].note(jobs)
        end = loop.run_in_executor(self._threads[thread], self._act, jobs, self._ahead[thread])
        end.add_done_callback(lambda _: self._finish(thread))
        return end

    def _finish(self, thread: int) -> None:
        self._num_pending[thread] -= 1

    def _act(self, jobs: list[Job], ahead: "_Ahead | None" = None) -> None:
        """Act, and note if a disk fails."""
        try:
            for job in jobs:
                if ahead is not None:
                    ahead.begin(job)
                job.act()
        except Exception as error:
            if isinstance(error, TIER_FAILURES):
                self.lost = self.lost or error
            raise
        finally:
            if ahead is not None:
                ahead.forget(jobs)

    def _done_here(self, jobs: list[Job]) -> asyncio.Future[None]:
        end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            self._act(jobs)
        except Exception as error:  # noqa: BLE001 - as from a thread: whoever waits gets it
            end.set_exception(error)
        else:
            end.set_result(None)
        return end


class _Ahead:
    """Which of an owner's jobs read ahead. The owner uses it, but for ``note``."""

    def __init__(self) -> None:
        self._waiting = deque[Job]()
        """Those that haven't begun."""
        self._num_asked = 0
        """So many of the first of them were asked to read."""
        self._reading: Job | None = None
        """The one of these that had something to read."""

    def note(self, jobs: list[Job]) -> None:
        """Note jobs that are handed in. The event loop calls it."""
        self._waiting.extend(job for job in jobs if job.read_ahead is not None)

    def begin(self, job: Job) -> None:
        """Note that a job begins, and have the next one read, if that doesn't wait for a disk.

        One that reads ahead, and so may wait, has the disk for itself until it has read.
        """
        if job.read_ahead is None:
            self.read_next()
        else:
            self.forget([job])

    def read_next(self) -> None:
        """Have the next job read that has something to read, if none does."""
        while self._reading is None and self._num_asked < len(self._waiting):
            following = self._waiting[self._num_asked]
            self._num_asked += 1
            assert following.read_ahead is not None, "only such jobs are noted"
            if following.read_ahead():
                self._reading = following

    def forget(self, jobs: list[Job]) -> None:
        """Forget jobs that begin, or never will as one before them failed."""
        while self._waiting and any(job is self._waiting[0] for job in jobs):
            job = self._waiting.popleft()
            self._num_asked = max(0, self._num_asked - 1)
            if job is self._reading:
                self._reading = None


def when_done(
    end: asyncio.Future[None], react: Callable[[asyncio.Future[None]], object]
) -> None:
    """Call ``react`` before anybody who waits for ``end`` goes on; now, if it is done."""
    if end.done():
        react(end)
    else:
        end.add_done_callback(react)


def _nothing() -> None:
    """Take a turn in an owner's queue."""


def _see(end: asyncio.Future[None]) -> None:
    """Raise what a job failed with, but for what is noted."""
    if not isinstance(end.exception(), TIER_FAILURES):
        end.result()


def _all_of(ends: list[asyncio.Future[None]]) -> asyncio.Future[None]:
    """Return a future that is done when all are, whichever fails first."""
    end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waiting = set(ends)

    def note(one: asyncio.Future[None]) -> None:
        waiting.discard(one)
        if not waiting:
            failures = [error for each in ends if (error := each.exception()) is not None]
            if failures:
                end.set_exception(failures[0])
            else:
                end.set_result(None)

    for each in ends:
        each.add_done_callback(note)
    if not ends:
        end.set_result(None)
    return end
