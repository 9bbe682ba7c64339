"""Rows of one table on the devices of several workers: each has those of its ids.

A row is on the device of worker ``id mod workers``. Every worker trains batches of its own,
all in the same step. What each batch looks up is known before: with a batch, rows come from
their devices to the workers that look them up; with its step, gradients go the other way, are
summed in the order of ranks, and step the rows there.

All workers call everything here in the same order. Shape legend: W = workers, u = different
ids of this worker's batch, v = rows that are asked of this device in a step, m = different ones
of them, D = row width.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from paramfleet.tables.device.pass_ids import IdOutsidePassError
from paramfleet.tables.device.source import DeviceSource
from paramfleet.tables.device.table import DeviceTable
from paramfleet.tables.devices import to_device
from paramfleet_shared.errors import ContractError
from paramfleet_shared.tables.rules.record import Moment
from paramfleet_shared.values.sorting import each_once

if TYPE_CHECKING:
    from paramfleet.tables.sparse import RowSource

__all__ = [
    "BatchIdsByOwner",
    "LookupInBackwardError",
    "OtherBatchError",
    "RowExchange",
    "SharedRound",
    "SharedSource",
]


class OtherBatchError(ContractError):
    """Gradients of an earlier batch wait for their step, where each batch has its own."""

    code = "contract.other_batch"
    table: str
    batch: int
    sentence = (
        "table {table!r}: the step of batch {batch} has gradients of another batch: workers "
        "that train a pass together can't add up gradients of several batches; take a step, or "
        "call zero_grad(), in each"
    )


class LookupInBackwardError(ContractError):
    """Rows of a pass of several workers are looked up by a backward pass."""

    code = "contract.lookup_in_backward"
    table: str
    sentence = (
        "table {table!r}: backward() looks up rows again, which a pass of several workers "
        "doesn't support: keep the embedding out of torch.utils.checkpoint.checkpoint()"
    )


class RowExchange(Protocol):
    """What rows and gradients travel by."""

    def exchange(
        self, rows: torch.Tensor, outgoing: Sequence[int], incoming: Sequence[int]
    ) -> torch.Tensor:
        """Send rows [n, ...] to each worker, and return what each sent, by rank."""
        ...


class BatchIdsByOwner:
    """The different ids that a batch looks up in one table, by the worker that has them.

    Args:
        lookups: int64 [n] each, with each id once.
        num_workers: W.
    """

    def __init__(self, lookups: Sequence[NDArray[np.int64]], num_workers: int) -> None:
        self._lookups = lookups
        all_ids = np.concatenate(lookups) if lookups else np.empty(0, np.int64)
        self._sorted = each_once(all_ids)
        owners = self._sorted % num_workers
        order = np.argsort(owners, kind="stable")
        self._place = np.empty(len(order), np.int64)
        self._place[order] = np.arange(len(order))
        self.ids: NDArray[np.int64] = self._sorted[order]
        """int64 [u], sorted by owner."""
        self.counts: NDArray[np.int64] = np.bincount(owners, minlength=num_workers)
        """int64 [W]: how many each worker has."""

    def find(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return where ids are in ``self.ids``, int64 [n], -1 of one that isn't there."""
        near = np.searchsorted(self._sorted, ids)
        near[near == len(self._sorted)] = 0
        if not len(self._sorted):
            return np.full(len(ids), -1)
        found = self._place[near]
        found[self._sorted[near] != ids] = -1
        return found

    def lookups(self) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Return the ids of each lookup, with where they are."""
        return [(ids, self.find(ids)) for ids in self._lookups]


class SharedRound(NamedTuple):
    """One table's part of a step of all workers."""

    number: int
    """Of the batch, from 0."""
    batch: BatchIdsByOwner
    """Of this worker."""
    asked: list[int]
    """How many rows of this device each worker asks for; v in all."""
    places: NDArray[np.int64]
    """int64 [v]: of these rows, those for worker 0 first."""


class SharedSource(DeviceSource):
    """A table's rows during a pass of several workers, a ``RowSource``.

    Args:
        rows: Those of this worker's ids.
        beneath: Where rows are that no pass has.
        exchange: Reaches the other workers.
    """

    def __init__(self, rows: DeviceTable, beneath: "RowSource", exchange: RowExchange) -> None:
        super().__init__(rows, beneath)
        self._exchange = exchange
        self._round: SharedRound | None = None
        self._values = torch.empty(0, rows.spec.dim, device=rows.device)

    def begin_round(self, shared: SharedRound) -> None:
        """Get the rows of the batch that begins from their devices."""
        batch, device = shared.batch, self.rows.device
        values = self.rows.values(to_device(torch.from_numpy(shared.places), device))
        self._values = self._exchange.exchange(values, shared.asked, batch.counts.tolist())
        self._round = shared
        self.begin_batch(
            shared.number,
            [
                (ids, to_device(torch.from_numpy(where), device))
                for ids, where in batch.lookups()
            ],
        )

    @override
    def trained_values(self, ids: NDArray[np.int64]) -> torch.Tensor:
        """Return the values of rows of the batch, float32 [U, D], on the device.

        Raises:
            IdOutsidePassError: if one isn't of the batch.
            LookupInBackwardError: if a backward pass asks.
        """
        if torch._C._current_graph_task_id() >= 0:  # noqa: SLF001 - torch has no public name
            raise LookupInBackwardError(table=self.rows.spec.name)
        return self._values.index_select(0, self.places(ids))

    @override
    def _search(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return where ids are in the batch.

        Raises:
            IdOutsidePassError: if one isn't of the batch: its row isn't here.
        """
        shared = self._begun
        found = shared.batch.find(ids)
        if (found < 0).any():
            raise IdOutsidePassError(
                table=self.rows.spec.name,
                id=int(ids[found < 0][0]),
                count=int((found < 0).sum()),
                batch=shared.number,
            )
        return found

    @override
    def _find(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.bool_], torch.Tensor]:
        """Return which ids are of the batch, and their rows' values."""
        found = self._begun.batch.find(ids)
        is_here = found >= 0
        where = to_device(torch.from_numpy(found[is_here]), self.rows.device)
        return is_here, self._values.index_select(0, where)

    def step_together(
        self,
        held: tuple[NDArray[np.int64], torch.Tensor] | None,
        moment: Moment,
        *,
        share: float,
    ) -> None:
        """Let the rule step the rows of all workers' batches.

        Args:
            held: This worker's ids, int64 [n], each once, and gradients [n, D], if it has any.
            moment: Learning rate and number of the step.
            share: What its gradients are multiplied by.

        Raises:
            OtherBatchError: if an id isn't of the batch.
        """
        shared, dim = self._begun, self.rows.spec.dim
        device = self.rows.device
        grads = torch.zeros(len(shared.batch.ids), dim + 1, device=device)
        if held is not None:
            ids, own = held
            if (shared.batch.find(ids) < 0).any():
                raise OtherBatchError(table=self.rows.spec.name, batch=shared.number)
            where = self.places(ids)
            sent = own.to(device, torch.float32)
            sums = self.rows.spec.num_unscaled  # of all workers: no share scales them
            grads[where, :sums] = sent[:, :sums]
            grads[where, sums:dim] = sent[:, sums:] * share
            grads[where, dim] = 1.0  # these rows are stepped, whatever their gradient
        incoming = self._exchange.exchange(grads, shared.batch.counts.tolist(), shared.asked)
        places, inverse = np.unique(shared.places, return_inverse=True)
        index = to_device(torch.from_numpy(inverse.reshape(-1)), device)
        total = incoming.new_zeros(len(places), dim + 1).index_add_(0, index, incoming)
        is_stepped = total[:, dim] > 0
        stepped = to_device(torch.from_numpy(places), device)[is_stepped]
        self.rows.step(stepped, total[is_stepped, :dim].contiguous(), moment)

    @property
    def _begun(self) -> SharedRound:
        assert self._round is not None, "a batch has begun"
        return self._round
