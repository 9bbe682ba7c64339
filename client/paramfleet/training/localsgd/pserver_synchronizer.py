"""Where workers synchronize that wait for nobody: dense tables of the pservers.

Each fragment is a table. A worker sends what it learned, the difference of the values that
it began from and its own. The table's optimizer takes the N-th part of it, N being the
workers that take this step, and the answer is what the table holds. So in lockstep workers
end at the mean, as by an all-reduce; and one that is slow, late or dead holds nobody up.

The exchange runs on the communicator's loop: one at a time, in the order of the calls. Only
``wait`` of the training thread blocks, for its own exchange.

Legend: F = values of a fragment.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from paramfleet.tables.dense import DenseBlock
from paramfleet.tables.devices import to_device, to_host
from paramfleet.tables.error_feedback import Residual, WireFormat
from paramfleet.training.in_place import Change, InPlace
from paramfleet.training.job import Job, fetch_exchanged, slowest_of
from paramfleet.training.localsgd.core.ledger import Ledger
from paramfleet.training.localsgd.core.settings import LocalSgdSettings
from paramfleet.transport.keeping import State, with_state
from paramfleet.transport.requests import Write, dense_slice, write_messages
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.tables.dense import pieces_of
from paramfleet_shared.tables.encoding import Encoded, WireDtype, answer_dtype
from paramfleet_shared.tables.spec import OptimizerSpec

if TYPE_CHECKING:
    from concurrent.futures import Future

__all__ = ["PserverSynchronizer", "outer_rule"]


class _Received(NamedTuple):
    """What one exchange brought."""

    values_F: NDArray[np.float32] | None
    """None where they were installed already."""
    slowest: int | None
    workers: int
    losses: Sequence[float]


def outer_rule(settings: LocalSgdSettings) -> OptimizerSpec:
    """Return the rule of the tables: what makes new values of a difference."""
    if settings.outer_optimizer == "none":
        return OptimizerSpec(rule="sum")
    if settings.outer_optimizer == "sgd" and not settings.outer_momentum:
        return OptimizerSpec(rule="sgd")
    return OptimizerSpec(
        rule="momentum",
        momentum=settings.outer_momentum,
        nesterov=settings.outer_optimizer == "nesterov",
    )


@dataclass(slots=True)
class _Exchanging:
    """An exchange that has begun."""

    synchronizer: "PserverSynchronizer"
    future: "Future[_Received]"
    device: torch.device

    def done(self) -> bool:
        """Return whether ``wait`` would block."""
        return self.future.done()

    def wait(self) -> torch.Tensor:
        """Return the table's values after this worker's difference, float32 [F].

        Raises:
            FleetError: why there are none; it names who didn't answer, and for how long.
        """
        with self.synchronizer.job.times.during("push"):
            received = self.future.result()
        self.synchronizer.note(received)
        assert received.values_F is not None, "they weren't exchanged in place"
        return to_device(torch.from_numpy(received.values_F), self.device)


class PserverSynchronizer:
    """Implements ``Synchronizer``; the training thread owns it.

    Args:
        job: The worker's connections.
        blocks: The fragments, whose tables are declared with ``outer_rule``.
        settings: Of all workers.
        ledger: Where bytes are counted.
    """

    def __init__(
        self,
        job: Job,
        blocks: Sequence[DenseBlock],
        settings: LocalSgdSettings,
        *,
        ledger: Ledger,
    ) -> None:
        self.job = job
        self.fragments: Sequence[int] = [block.size for block in blocks]
        self.step = 0
        """Steps that this worker has taken, as the job counts them."""
        self.num_workers = job.worker_num
        """How many there were at the last exchange."""
        self.is_last = False
        """Whether what is sent now is the last: then it is float32, and all that is left."""
        self._blocks = blocks
        self._settings = settings
        self._ledger = ledger
        self._slices = [
            [
                dense_slice(block.size, job.placement, server)
                for server in range(job.placement.num_servers)
            ]
            for block in blocks
        ]
        form = WireFormat(settings.wire_dtype)
        self._residuals: list[Residual[NDArray[np.float32], Encoded]] = [
            Residual(form) for _ in blocks
        ]
        self._loss: float | None = None
        self._others: Sequence[float] = ()
        self._turn = asyncio.Lock()
        self._in_place: InPlace | None = None

    def exchange(
        self, fragment: int, snapshot_F: torch.Tensor, delta_F: torch.Tensor
    ) -> _Exchanging:
        """Begin to send what was learned, and to hear what all know; blocks on nobody.

        Args:
            fragment: Its number.
            snapshot_F: Not needed: the pservers know the values.
            delta_F: Where this worker began, less where it is: float32 [F].
        """
        del snapshot_F
        learned = to_host(delta_F, dtype=torch.float32).numpy()
        if self._settings.outer_optimizer == "none":  # whose table adds up
            learned = np.negative(learned)
        write = self._write(fragment, learned)
        state = self.job.keeper.state()
        work = self._exchange(fragment, write, max(self.step - 1, 0), self._loss, state)
        future = self.job.communicator.submit(work)
        return _Exchanging(self, future, delta_F.device)

    @property
    def is_in_place(self) -> bool:
        """Whether fragments are exchanged where they are."""
        return self._in_place is not None

    def move_in_place(self) -> None:
        """Exchange fragments where they are from now on, while the training thread waits."""
        self._in_place = InPlace(self.job, self._blocks)

    def take_served(self) -> None:
        """Install what the pservers hold; fragments are exchanged where they are."""
        assert self._in_place is not None, "move_in_place was called"
        self._in_place.pull()

    def num_nonfinite(self, fragment: int, snapshot_F: torch.Tensor) -> int:
        """Return how many values of snapshot - local are NaN or infinite."""
        block, count = self._blocks[fragment], 0
        for piece in pieces_of(block.size):
            count += int((~np.isfinite(_learned(block, piece, snapshot_F))).sum())
        return count

    def exchange_in_place(self, fragment: int, snapshot_F: torch.Tensor) -> None:
        """Send what was learned, and install what all know; returns when that is done.

        Args:
            fragment: Its number.
            snapshot_F: Where this worker began, float32 [F]: what all know afterwards.

        Raises:
            FleetError: if a pserver didn't answer, or the job failed.
        """
        adds_up = self._settings.outer_optimizer == "none"

        def learned(block: DenseBlock, where: slice) -> NDArray[np.float32]:
            difference = _learned(block, where, snapshot_F)
            return np.negative(difference, out=difference) if adds_up else difference

        def receive(block: DenseBlock, where: slice, served: NDArray[np.float32]) -> None:
            block.install_piece(where.start, served)
            snapshot_F[where].copy_(torch.from_numpy(served))

        step = max(self.step - 1, 0)
        change = Change(
            op="exchange",
            fields={"step": step},
            numbers=learned,
            part_fields=lambda _: {"ack": 0, "max_rows": 1, "lr": self._settings.outer_lr},
            received=receive,
        )
        assert self._in_place is not None, "move_in_place was called"
        with self.job.times.during("push"):
            self._in_place.change(change, blocks=[self._blocks[fragment]])
            received = self.job.communicator.wait(self._end_exchange(step, self._loss))
        self._ledger.sent(4 * self._blocks[fragment].size)
        self.note(received)

    def mean(self, value: float) -> float:
        """Return the mean of this worker's loss and what the others said last.

        They said it with the exchange before their last one began; this worker's goes with
        its next. Nobody is asked.
        """
        self._loss = value
        return (value + sum(self._others)) / (1 + len(self._others))

    def note(self, received: _Received) -> None:
        """Keep what came with the values."""
        self.num_workers, self._others = received.workers, received.losses
        self.job.staleness.note(step=self.step, slowest=received.slowest)

    def forget(self) -> None:
        """Drop what narrow numbers lost of differences: the tables were set anew."""
        for residual in self._residuals:
            residual.forget()

    def _write(self, fragment: int, learned_F: NDArray[np.float32]) -> Write:
        """Describe a difference as it travels; what that loses of it goes with the next."""
        wire: WireDtype = "float32" if self.is_last else self._settings.wire_dtype
        residual, slices = self._residuals[fragment], self._slices[fragment]
        if wire == "float32":
            left = residual.take()
            learned_F = learned_F if left is None else learned_F + left
            parts = [Encoded(learned_F[part]) for part in slices]
        else:
            parts = residual.send(learned_F, slices)
        for part in parts:
            scales = 0 if part.scales is None else part.scales.nbytes
            self._ledger.sent(part.rows.nbytes + scales)
        return Write(
            table=self._blocks[fragment].name,
            values=learned_F,
            lr=self._settings.outer_lr,
            wire=wire,
            encoded=None if wire == "float32" else parts,
        )

    async def _exchange(
        self, fragment: int, write: Write, step: int, loss: float | None, state: State | None
    ) -> _Received:
        answer_wire = answer_dtype(write.wire)
        about = {"ack": 0, "max_rows": 1, "answer_wire": answer_wire}
        async with self._turn:
            messages = write_messages(
                [write],
                self.job.placement,
                {**self.job.author.change(), "step": step, "loss": loss},
                values_name="deltas",
                part_fields=lambda _server, _write: about,
            )
            changes = with_state(messages, state)
            answers = await self.job.pservers.change("exchange", changes)
            values_F = await fetch_exchanged(
                self.job, self._blocks[fragment], answers, 0, wire=answer_wire
            )
        return _received(values_F, answers)

    async def _end_exchange(self, step: int, loss: float | None) -> _Received:
        """End an exchange whose pieces have been sent."""
        fields = {**self.job.author.change(), "step": step, "loss": loss, "parts": []}
        ends = [Message(fields=fields)] * self.job.placement.num_servers
        return _received(None, await self.job.pservers.change("exchange", ends))


def _received(values_F: NDArray[np.float32] | None, answers: Sequence[Message]) -> _Received:
    fields = answers[0].fields
    return _Received(
        values_F,
        slowest_of(answers),
        int(fields["workers"]),
        [float(loss) for loss in fields["losses"]],
    )


def _learned(block: DenseBlock, where: slice, snapshot_F: torch.Tensor) -> NDArray[np.float32]:
    """Return snapshot - local of some values of a fragment, float32 [n]."""
    began = to_host(snapshot_F[where], dtype=torch.float32).numpy()
    learned: NDArray[np.float32] = began - block.piece(where)
    return learned
