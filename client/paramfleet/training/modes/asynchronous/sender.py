"""async's way out: a bounded queue of gradients, merged, pushed, and dense values back.

Merging sums, in every mode of Fleet and here; two steps with different learning rates, or
other numbers of their rule, are never merged. The queue is the only back-pressure: a
training thread that runs ahead of the network by ``send_queue_size`` steps waits, or, where
nobody gave one, by more steps than a round trip needs.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paramfleet.config.strategy import TrainingMode
from paramfleet.tables.sparse import merge_pending
from paramfleet.training.modes.asynchronous.outstanding import OutstandingSteps
from paramfleet.training.modes.gradients import StepGradients, TableGradient
from paramfleet.transport.communicator import Communicator
from paramfleet.transport.in_flight import PUSHES_AT_ONCE, InFlight, Underway
from paramfleet_shared.system.clock import Clock
from paramfleet_shared.tables.rows.batch import RowBatch
from paramfleet_shared.values.spans import Span, union

__all__ = ["Sender", "merge"]

_POLL_S = 0.01
"""Seconds of one of ``send_wait_times`` waits; Fleet's value."""

_MOST_WAITING = 16
"""Steps that wait at most where nobody gave a number; Fleet's value."""

_LARGE_QUEUE = 2
"""Steps that wait at most where one may take gigabytes."""


def merge(steps: Sequence[StepGradients], *, by_id: bool = False) -> StepGradients:
    """Sum the gradients of steps in order; duplicate ids become one row.

    Args:
        steps: At least one.
        by_id: Whether rows are sorted by id inside their shard.
    """
    if len(steps) == 1:
        return steps[0]
    together: dict[str, list[TableGradient]] = {}
    for step in steps:
        for part in step.parts:
            together.setdefault(part.name, []).append(part)
    parts = [_merge_parts(same, by_id=by_id) for same in together.values()]
    examples = sum(step.examples for step in steps)
    last = steps[-1]
    return StepGradients(
        step=last.step, examples=examples, parts=tuple(parts), state=last.state
    )


def _num_bytes(gradients: StepGradients) -> int:
    """Return the bytes of a step's gradients in memory."""
    return sum(part.grads.nbytes for part in gradients.parts)


def _merge_parts(same: Sequence[TableGradient], *, by_id: bool) -> TableGradient:
    first = same[0]
    if first.rows is None:
        total = np.zeros_like(first.grads)
        for part in same:
            total += part.grads
        spans: tuple[Span, ...] | None = None
        if all(part.spans is not None for part in same):
            spans = union(span for part in same for span in part.spans or ())
        return replace(first, grads=total, spans=spans)
    merged = merge_pending(
        [RowBatch(p.rows.ids, p.grads, p.rows.offsets) for p in same if p.rows is not None],
        by_id=by_id,
    )
    now = max(part.now for part in same)
    return replace(first, rows=merged.rows, grads=merged.values, now=now)


class Sender:
    """Pushes queued gradients and refreshes dense values.

    Pushes go in the order of their steps, and don't wait for one another's answers. Steps on
    their way count as waiting ones, but for those of the oldest push: so gradients become no
    older than where pushes go one at a time. What is to be merged waits while a push is on its
    way, until it is as much as may be merged, or all pushes are answered.

    ``put`` and ``drain`` run on the communicator's loop; ``take_fresh`` in the
    training thread.

    Args:
        mode: Queue size, merge width, waits, pushes in flight, refresh cadence.
        clock: What steps and round trips are measured by.
        push: Sends one merged gradient and returns when it is applied. What its first step
            begins is in the order of the calls.
        refresh: Pulls the dense values.
        large: Whether a step's gradients are so large that few of them may wait, that one push
            goes at a time, and that they are merged on a thread of its own.
    """

    def __init__(
        self,
        *,
        mode: TrainingMode,
        clock: Clock,
        push: Callable[[StepGradients], Awaitable[None]],
        refresh: Callable[[], Awaitable[list[NDArray[np.float32]]]],
        large: bool = False,
    ) -> None:
        self._mode = mode
        self._clock = clock
        self._large = large
        self._push = push
        self._refresh = refresh
        self._waiting: deque[StepGradients] = deque()
        self._in_flight = InFlight()
        self._outstanding = OutstandingSteps(_MOST_WAITING)
        self._put_at: float | None = None
        self._is_broken = False
        self._changed: list[asyncio.Future[None]] = []
        self._pushed = 0
        self._pulled_at = 0
        self._num_pulls = 0
        self._pull_number = 0
        self._fresh_number = 0
        self._due = asyncio.Event()
        self._fresh: list[NDArray[np.float32]] | None = None

    @property
    def num_pushes(self) -> int:
        """Return how many pushes are on their way; any thread may ask."""
        return len(self._in_flight)

    @property
    def num_steps(self) -> int:
        """Return how many steps aren't applied yet, as far as is known; any thread may ask."""
        return len(self._waiting) + self._in_flight.num_steps

    async def start(self, communicator: Communicator) -> None:
        """Start the sending tasks; an error in one fails every later wait."""
        communicator.spawn(self._send_forever(communicator.spawn))
        if self._mode.independent_recv_thread:
            communicator.spawn(self._refresh_forever())

    def adjust(self, mode: TrainingMode) -> None:
        """Keep to another ``max_staleness`` with the pushes to come."""
        self._mode = mode

    async def put(self, gradients: StepGradients) -> None:
        """Queue a step; waits while ``send_queue_size`` steps wait already."""
        if self._put_at is not None:
            self._outstanding.note_step(self._clock.monotonic() - self._put_at)
        await self._until(lambda: self._num_queued < self._queue_size)
        self._put_at = self._clock.monotonic()
        self._waiting.append(gradients)
        self._note_change()

    async def push_last(self, gradients: StepGradients) -> None:
        """Push behind all that is queued; dense values of before aren't taken any more."""
        await self.drain()
        await self._timed(gradients)
        self.forget_fresh()

    async def drain(self) -> None:
        """Return when everything that was queued is applied."""
        await self._until(lambda: not self._waiting and not self._in_flight)

    def take_fresh(self) -> list[NDArray[np.float32]] | None:
        """Return dense values that arrived since the last call, or None."""
        fresh, self._fresh = self._fresh, None
        return fresh

    def forget_fresh(self) -> None:
        """Drop dense values that were asked for before now."""
        self._fresh_number = self._pull_number
        self._fresh = None

    @property
    def _num_queued(self) -> int:
        return len(self._waiting) + self._in_flight.num_steps_behind

    @property
    def _queue_size(self) -> int:
        """Return how many steps may wait; with no push on its way, as many as may be merged."""
        size = self._mode.send_queue_size
        if size is None:
            size = max(self._outstanding.limit, self._mode.max_merge_var_num)
        size = min(size, _LARGE_QUEUE) if self._large else size
        return size if self._in_flight else max(size, self._mode.max_merge_var_num)

    @property
    def _at_once(self) -> int:
        """Return how many pushes may be on their way."""
        if self._large:
            return 1
        most, lead = self._mode.thread_pool_size, self._mode.max_staleness
        most = PUSHES_AT_ONCE if most is None else most
        return most if lead is None else min(most, lead + 1)

    def _next_steps(self) -> list[StepGradients]:
        """Return the next steps to merge: up to ``max_merge_var_num`` of one learning rate."""
        steps: list[StepGradients] = []
        for step in self._waiting:
            if len(steps) == self._mode.max_merge_var_num:
                break
            if not all(former.goes_with(step) for former in steps):
                break
            steps.append(step)
        return steps

    def _are_all(self, steps: Sequence[StepGradients]) -> bool:
        """Return whether no more will be merged with these."""
        is_full = len(steps) == self._mode.max_merge_var_num
        return (
            is_full or len(steps) < len(self._waiting) or self._num_queued >= self._queue_size
        )

    def _may_send(self) -> bool:
        if self._is_broken or not self._waiting:
            return False
        if not self._in_flight:
            return True
        steps = self._next_steps()
        return self._are_all(steps) and self._in_flight.takes(
            sum(map(_num_bytes, steps)), at_once=self._at_once
        )

    async def _send_forever(self, spawn: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        while True:
            await self._until(self._may_send)
            steps, waits = self._next_steps(), 0
            while not self._are_all(steps) and waits < self._mode.send_wait_times:
                await asyncio.sleep(_POLL_S)
                steps, waits = self._next_steps(), waits + 1
            for _ in steps:
                self._waiting.popleft()
            combine = partial(merge, steps, by_id=self._mode.wire_dtype != "float32")
            push = self._in_flight.send(
                num_steps=len(steps), num_bytes=sum(map(_num_bytes, steps))
            )
            merged = await asyncio.to_thread(combine) if self._large else combine()
            if push.is_behind:
                merged = replace(merged, first=steps[0].step)
            spawn(self._deliver(merged, push))  # tasks begin in the order of their making

    async def _deliver(self, gradients: StepGradients, push: Underway) -> None:
        """Push, and refresh dense values if that is due."""
        try:
            await self._timed(gradients)
        except BaseException:
            self._is_broken = True
            raise
        self._pushed += 1
        self._in_flight.answered(push)
        self._note_change()
        if self._is_refresh_due:
            if self._mode.independent_recv_thread:
                self._due.set()
            elif self._num_pulls < self._at_once:
                await self._pull()

    async def _timed(self, gradients: StepGradients) -> None:
        """Push, and note how long the answers took."""
        began = self._clock.monotonic()
        await self._push(gradients)
        self._outstanding.note_answer(self._clock.monotonic() - began)

    @property
    def _is_refresh_due(self) -> bool:
        return self._pushed - self._pulled_at >= self._mode.min_send_grad_num_before_recv

    async def _pull(self) -> None:
        """Pull until no refresh is due; several may be on their way."""
        self._num_pulls += 1
        while self._is_refresh_due:
            self._pulled_at = self._pushed
            self._pull_number += 1
            number = self._pull_number
            fresh = await self._refresh()
            if number > self._fresh_number:  # else newer ones are here
                self._fresh_number, self._fresh = number, fresh
        self._num_pulls -= 1

    async def _refresh_forever(self) -> None:
        while True:
            await self._due.wait()
            self._due.clear()
            await self._pull()

    async def _until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds that ``_note_change`` may bring about."""
        while not holds():
            future = asyncio.get_running_loop().create_future()
            self._changed.append(future)
            await future

    def _note_change(self) -> None:
        for future in self._changed:
            if not future.done():
                future.set_result(None)
        self._changed.clear()
