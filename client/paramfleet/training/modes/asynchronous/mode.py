"""async: workers push gradients and go on; the pservers apply each when it comes.

Only a worker's first steps, ``fresh_steps`` of them, wait: their gradients are pushed at once,
and the next step begins with dense values and rows that have them. So a gradient of a young
model lacks only what other workers compute at the same time.
"""

import asyncio
from functools import partial

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from paramfleet.config.strategy import TrainingMode
from paramfleet.tables.dense import DenseBlock
from paramfleet.tables.sparse import SparseTable
from paramfleet.training.evicting.selecting import Selection
from paramfleet.training.in_place import Change, InPlace, moves_in_place
from paramfleet.training.job import fetch_dense
from paramfleet.training.modes.asynchronous.sender import Sender
from paramfleet.training.modes.base import learning_rate
from paramfleet.training.modes.fresh import FreshSteps
from paramfleet.training.modes.gradients import StepGradients
from paramfleet.training.modes.prefetching.ahead import When
from paramfleet.training.modes.served import ServedMode
from paramfleet.transport.requests import ReadPlan, Write
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.tables.encoding import WireDtype
from paramfleet_shared.tables.rows.evicting import AsOf

__all__ = ["AsyncMode"]


class AsyncMode(ServedMode):
    """Gradients are queued, merged and pushed beside the training; first steps wait.

    Where dense tables move in place, every step waits until its gradients are applied.
    """

    _in_place: InPlace | None = None
    """What moves dense tables that are too large to be copied."""

    def start(self) -> None:
        """Start as every served mode, and start the sender."""
        super().start()
        session = self._job.communicator.session
        if self._mode.max_staleness is not None and (session.elastic or session.returning):
            self._job.communicator.wait(self._begin())
        self.fresh = FreshSteps(self._mode.fresh_steps)
        """Which steps wait. Who comes late begins as far as the slowest is."""
        self.fresh.go_on_from(self._step)
        if moves_in_place(self._job, self._blocks, self._wire):
            self._in_place = InPlace(self._job, self._blocks)
            for block in self._blocks:
                block.watch_versions()
        self._writing = asyncio.Lock()
        self.sender = Sender(
            mode=self._mode,
            clock=self._job.communicator.clock,
            large=self._job.pservers.divides,
            push=self._send,
            refresh=partial(
                fetch_dense, self._job, self._blocks, wire=self._wire, ask=self._pull
            ),
        )
        """What is on its way to the pservers."""
        self._job.communicator.wait(self.sender.start(self._job.communicator))

    def step(self, *, examples: int) -> None:
        """Take a step that waits, or one that doesn't; keep to ``max_staleness``.

        One before which the program has changed dense values waits: it reads what it wrote.
        """
        gradients = self._gradients(examples=examples, dense=self._in_place is None)
        if self._is_fresh or gradients.sets_values:
            self._step_fresh(gradients)
        else:
            self._step_beside(gradients)
        self.fresh.note_step()
        if self._mode.max_staleness is not None:
            with self._job.times.during("barrier"):
                self._job.communicator.wait(self._wait_turn(self._step))

    @override
    def _wake(self) -> bool:
        is_other = super()._wake()
        if is_other:
            self.sender.forget_fresh()  # they lack what was woken
            if self._in_place is not None:
                for block in self._blocks:
                    block.watch_versions()
        return is_other

    @property
    def _is_fresh(self) -> bool:
        """Whether the next step waits; where dense tables move in place each does already."""
        return self._in_place is None and self.fresh.is_next

    def _step_fresh(self, gradients: StepGradients) -> None:
        """Wait until the gradients are applied, and install what the pservers hold then."""
        with self._job.times.during("push"):
            self._job.communicator.wait(self.sender.push_last(gradients))
        self._step += 1
        self.ahead.send_next(step=self._step)
        if self._blocks:
            with self._job.times.during("pull"):
                self.refresh(wire=self._wire)

    def _step_beside(self, gradients: StepGradients) -> None:
        """Queue the gradients; install dense values that arrived meanwhile."""
        with self._job.times.during("push"):
            if self._in_place is None:
                self._job.communicator.wait(self.sender.put(gradients))
            elif self._is_skipping:
                self._job.communicator.wait(self._send(gradients))
            else:
                self._push_in_place(self._in_place, gradients)
        self._step += 1
        fresh = self.sender.take_fresh()
        if fresh is not None:
            self._install(fresh)
        elif self._in_place and not self._step % self._mode.min_send_grad_num_before_recv:
            with self._job.times.during("pull"):
                self.refresh()

    def flush(self) -> None:
        """Return when every queued gradient is applied, and what the program has changed."""
        self._job.communicator.wait(self.sender.drain())
        self.send_changes()

    @override
    def remove(self, table: SparseTable, ids: NDArray[np.int64]) -> int:
        self.flush()  # gradients that came later would begin the rows anew
        return super().remove(table, ids)

    @override
    def write(
        self, table: SparseTable, ids: NDArray[np.int64], values: NDArray[np.float32]
    ) -> None:
        self.flush()  # gradients of the values before would change the new ones
        super().write(table, ids, values)

    @override
    def takes_turn(self, number: int) -> bool:
        return number % self._job.worker_num == self._job.author.rank % self._job.worker_num

    @override
    def evictable(
        self, table: SparseTable, as_of: AsOf, selection: Selection
    ) -> NDArray[np.int64]:
        self.flush()  # rows that were seen now are worth more
        return super().evictable(table, as_of, selection)

    def finish(self) -> None:
        """Push what waits and what is left of narrowed gradients, and end as every mode."""
        self._push_all()
        super().finish()

    def depart(self) -> None:
        """Push what waits and what is left of narrowed gradients, and leave."""
        self._push_all()
        super().depart()

    def reload(self, *, workers: int) -> None:
        """Take the dense parameters; those that were on their way are of before."""
        self.sender.forget_fresh()
        super().reload(workers=workers)

    @property
    @override
    def pushes_in_flight(self) -> int:
        return self.sender.num_pushes

    @property
    @override
    def unapplied_steps(self) -> int:
        return self.sender.num_steps

    @override
    def adjust(self, mode: TrainingMode) -> None:
        super().adjust(mode)
        self.sender.adjust(mode)

    @override
    def refresh(self, *, wire: WireDtype = "float32") -> None:
        """Install the pservers' dense parameters."""
        if self._in_place is None:
            super().refresh(wire=wire)
        else:
            self._in_place.pull()
            for block in self._blocks:
                block.watch_versions()

    def _push_in_place(self, in_place: InPlace, gradients: StepGradients) -> None:
        """Push the dense gradients, then the step's others, which end it."""
        rates = {block.name: learning_rate(group) for block, group in self._tables.dense}
        is_guarded = self._mode.async_rate == "guarded"
        in_place.change(
            Change(
                op="push",
                fields={"step": gradients.step, "weight": float(gradients.examples)},
                numbers=DenseBlock.piece_of_gradients,
                part_fields=lambda block: {
                    "lr": rates[block.name],
                    **({"numbers": numbers} if (numbers := self.numbers[block.name]) else {}),
                },
                spans=DenseBlock.with_gradients,
                guarded=DenseBlock.piece_of_gradients if is_guarded else None,
            ),
            blocks=[block for block in self._blocks if block.with_gradients() != ()],
        )
        self._job.communicator.wait(self._send(gradients))

    def _push_all(self) -> None:
        self.flush()
        self._job.communicator.wait(self._push_rest())

    async def _wait_turn(self, step: int) -> None:
        """Wait while this worker led the slowest by more than ``max_staleness`` (SSP).

        Each pserver is asked: one may have pushes that another lacks, for which calls are on
        their way, or which has come back and gets them again.
        """
        fields = {**self._job.author.fields(), "step": step}
        pservers = self._job.pservers
        await pservers.call_all("wait_turn", fields, timeout_s=pservers.step_timeout_s)

    async def _begin(self) -> None:
        """Have all pservers count this worker from the same step on.

        They may have counted it from different ones, since each lets who comes late begin with
        the slowest that it knows. Two who come late may wait for each other at two pservers
        else.
        """
        message = Message(fields={**self._job.author.change(), "step": self._step})
        await self._job.pservers.change("begin", [message] * self._job.placement.num_servers)

    @override
    def _when(self) -> When:
        if self._is_fresh:
            return "step"
        return "now" if self._mode.max_staleness is None else "next"

    async def _pull_ahead(self, plan: ReadPlan, step: int) -> list[Message]:
        if self._mode.max_staleness is not None:  # as stale as if they were pulled at ``step``
            await self._wait_turn(step)
        return await self._pull(plan, 0)

    async def _send(self, gradients: StepGradients) -> None:
        if self._job.pservers.divides:
            async with self._writing:
                writes = await asyncio.to_thread(self._writes, gradients)
        else:
            writes = self._writes(gradients)
        await self._push(self._new_push(gradients), writes, gradients.state)

    async def _push_rest(self) -> None:
        for gradient in self._outgoing.take_rest():
            rest = StepGradients(step=max(self._step - 1, 0), examples=0, parts=(gradient,))
            write = Write(
                table=gradient.name,
                values=gradient.grads,
                rows=gradient.rows,
                lr=gradient.lr,
            )
            await self._push(self._new_push(rest), [write], None)
