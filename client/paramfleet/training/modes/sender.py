"""async's way out: a bounded queue of gradients, merged, pushed, and dense values back.

Merging sums, in every mode of Fleet and here; two steps with different learning
rates are never merged. The queue is the only back-pressure: a training thread
that runs ahead of the network by ``send_queue_size`` steps waits.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from paramfleet.config.strategy import TrainingMode
from paramfleet.tables.sparse import Pending, merge_pending
from paramfleet.transport.communicator import Communicator
from paramfleet.transport.requests import Rows

__all__ = ["Sender", "StepGradients", "TableGradient", "merge"]

_POLL_S = 0.01
"""Seconds of one of ``send_wait_times`` waits; Fleet's value."""

_LARGE_QUEUE = 2
"""Steps that wait at most where one may take gigabytes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TableGradient:
    """One table's part of a step: float32 [U, D] of ``rows``, or a dense [P]."""

    name: str
    rows: Rows | None
    grads: NDArray[np.float32]
    lr: float


@dataclass(frozen=True, kw_only=True, slots=True)
class StepGradients:
    """What one step, or several merged ones, pushes."""

    step: int
    """The last step that is in it, counted from 0."""
    examples: int
    parts: tuple[TableGradient, ...]

    def rates(self) -> tuple[float, ...]:
        """Return the learning rate of each part."""
        return tuple(part.lr for part in self.parts)


def merge(steps: Sequence[StepGradients], *, by_id: bool = False) -> StepGradients:
    """Sum the gradients of steps in order; duplicate ids become one row.

    Args:
        steps: At least one.
        by_id: Whether rows are sorted by id inside their shard.
    """
    if len(steps) == 1:
        return steps[0]
    together = zip(*(step.parts for step in steps), strict=True)
    parts = [_merge_parts(same, by_id=by_id) for same in together]
    examples = sum(step.examples for step in steps)
    return StepGradients(step=steps[-1].step, examples=examples, parts=tuple(parts))


def _merge_parts(same: Sequence[TableGradient], *, by_id: bool) -> TableGradient:
    first = same[0]
    if first.rows is None:
        total = np.zeros_like(first.grads)
        for part in same:
            total += part.grads
        return TableGradient(name=first.name, rows=None, grads=total, lr=first.lr)
    ids, grads, offsets = merge_pending(
        [Pending(p.rows.ids_U, p.grads, p.rows.offsets) for p in same if p.rows is not None],
        by_id=by_id,
    )
    return TableGradient(name=first.name, rows=Rows(ids, offsets), grads=grads, lr=first.lr)


class Sender:
    """Pushes queued gradients and refreshes dense values.

    ``put`` and ``drain`` run on the communicator's loop; ``take_fresh`` in the
    training thread.

    Args:
        mode: Queue size, merge width, waits, pushes in flight, refresh cadence.
        push: Sends one merged gradient and returns when it is applied.
        refresh: Pulls the dense values.
        large: Whether a step's gradients are so large that few of them may wait, and that they
            are merged on a thread of its own.
    """

    def __init__(
        self,
        *,
        mode: TrainingMode,
        push: Callable[[StepGradients], Awaitable[None]],
        refresh: Callable[[], Awaitable[list[NDArray[np.float32]]]],
        large: bool = False,
    ) -> None:
        self._mode = mode
        self._large = large
        self._push = push
        self._refresh = refresh
        self._queue: asyncio.Queue[StepGradients] = asyncio.Queue(
            min(mode.send_queue_size, _LARGE_QUEUE) if large else mode.send_queue_size
        )
        self._held: StepGradients | None = None
        self._pushed = 0
        self._pulled_at = 0
        self._pull_number = 0
        self._due = asyncio.Event()
        self._fresh: list[NDArray[np.float32]] | None = None
        self._taking = asyncio.Lock()

    async def start(self, communicator: Communicator) -> None:
        """Start the sending tasks; an error in one fails every later wait."""
        for _ in range(self._mode.thread_pool_size):
            communicator.spawn(self._send_forever())
        if self._mode.independent_recv_thread:
            communicator.spawn(self._refresh_forever())

    async def put(self, gradients: StepGradients) -> None:
        """Queue a step; waits while ``send_queue_size`` steps wait already."""
        await self._queue.put(gradients)

    async def drain(self) -> None:
        """Return when everything that was queued is applied."""
        await self._queue.join()

    def take_fresh(self) -> list[NDArray[np.float32]] | None:
        """Return dense values that arrived since the last call, or None."""
        fresh, self._fresh = self._fresh, None
        return fresh

    def forget_fresh(self) -> None:
        """Drop dense values that were asked for before now."""
        self._pull_number += 1
        self._fresh = None

    async def _send_forever(self) -> None:
        while True:
            steps = await self._take()
            combine = partial(merge, steps, by_id=self._mode.wire_dtype != "float32")
            await self._push(await asyncio.to_thread(combine) if self._large else combine())
            self._pushed += 1
            for _ in steps:
                self._queue.task_done()
            if self._pushed - self._pulled_at < self._mode.min_send_grad_num_before_recv:
                continue
            if self._mode.independent_recv_thread:
                self._due.set()
            else:
                await self._pull()

    async def _take(self) -> list[StepGradients]:
        """Return the next steps to merge: up to ``max_merge_var_num`` of one learning rate."""
        async with self._taking:
            first = self._held or await self._queue.get()
            self._held = None
            steps, waits = [first], 0
            while len(steps) < self._mode.max_merge_var_num:
                if self._queue.empty():
                    if waits == self._mode.send_wait_times:
                        break
                    waits += 1
                    await asyncio.sleep(_POLL_S)
                    continue
                following = self._queue.get_nowait()
                if following.rates() != first.rates():
                    self._held = following
                    break
                steps.append(following)
            return steps

    async def _pull(self) -> None:
        self._pulled_at = self._pushed
        self._pull_number += 1
        number = self._pull_number
        fresh = await self._refresh()
        if number == self._pull_number:  # else newer ones are on their way
            self._fresh = fresh

    async def _refresh_forever(self) -> None:
        while True:
            await self._due.wait()
            self._due.clear()
            await self._pull()
