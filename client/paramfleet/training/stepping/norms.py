"""Norms of the gradient that a step of sync makes of all workers' gradients.

Each worker sends its gradients to the pservers, which merge them with the weights of the step,
and answer with the norms of what they hold.
"""

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from paramfleet.tables.dense import DenseBlock
from paramfleet.tables.sparse import SparseTable
from paramfleet.training.job import Job, with_places
from paramfleet.transport.requests import dense_slice
from paramfleet_shared.errors import ContractError
from paramfleet_shared.errors.served import TotalIncompleteError
from paramfleet_shared.net.wire.message import Message

__all__ = ["ClipWeightError", "MergedNorms", "NormTypeError"]


class NormTypeError(ContractError):
    """A norm was asked for that isn't one of all workers' gradients."""

    code = "contract.norm_type"
    norm_type: float
    sentence = (
        "clip_grad_norm_(norm_type={norm_type}): in a job of several workers it must be above "
        "0, as 2.0, or infinity"
    )


class ClipWeightError(ContractError):
    """A step counts for another number of examples than its clipping did."""

    code = "contract.clip_weight"
    step: int
    counted: int
    examples: int
    sentence = (
        "step {step} counts for {examples} examples, and clip_grad_norm_ counted {counted}: "
        "call it behind every forward of the step, and leave step's examples to what the model "
        "was called with, or say them in fleet.clip_grad_norm_(..., examples=...), too"
    )


class _Part(NamedTuple):
    """This worker's gradient of one table."""

    table: str
    values: NDArray[np.float32]
    """[n, D], or [n] of a dense table."""
    rows: tuple[NDArray[np.int64], NDArray[np.int64]] | None
    """Ids [n], and the shards' bounds in them; None for a dense table."""


class MergedNorms:
    """The norms that one worker asks for in its steps; the thread that trains owns it.

    Args:
        job: In sync.
        tables: Of rows.
        blocks: Of dense parameters.
        step: Returns the step in progress.
    """

    def __init__(
        self,
        job: Job,
        tables: Sequence[SparseTable],
        blocks: Sequence[DenseBlock],
        *,
        step: Callable[[], int],
    ) -> None:
        self._job = job
        self._tables = tables
        self._blocks = blocks
        self._step = step
        self._found: list[float] = []
        self._counted: set[int] = set()

    def norm(
        self, gradients: Collection[torch.Tensor], norm_type: float, *, examples: int
    ) -> float:
        """Return the norm of the merged gradient, the same in every worker.

        Args:
            gradients: This worker's, of which parameters it is; others count as if they were 0.
            norm_type: The order.
            examples: For how many this worker's gradient counts.

        Raises:
            NormTypeError: if there is no such norm.
            NormMismatchError: if another worker clips other gradients.
            NormNotSharedError: if another worker has taken the step without clipping.
            TotalIncompleteError: if another worker's part doesn't come in time.
            FleetError: if the job failed.
        """
        if not norm_type > 0:
            raise NormTypeError(norm_type=norm_type)
        order = 0.0 if math.isinf(norm_type) else norm_type
        number = len(self._found)
        fields = {
            **self._job.author.fields(),
            "step": self._step(),
            "number": number,
            "weight": float(examples),
            "order": order,
        }
        with self._job.times.during("barrier"):
            found = [
                self._job.communicator.wait_here(self._ask(messages))
                for messages in self._messages(self._parts(gradients), fields)
            ]
        self._counted.add(examples)
        total = _combined([answer for answers in found for answer in answers], order)
        self._found.append(total)
        return total

    def named(self) -> NDArray[np.float64] | None:
        """Return the norms of this step, as its push names them; None for none."""
        return np.array(self._found, np.float64) if self._found else None

    def check(self, examples: int) -> None:
        """Check that the gradients were weighed as the step is.

        Raises:
            ClipWeightError: if they weren't.
        """
        for counted in self._counted - {examples}:
            raise ClipWeightError(step=self._step() + 1, counted=counted, examples=examples)

    def end_step(self) -> None:
        """Begin the next step."""
        self._found, self._counted = [], set()

    async def _ask(self, messages: list[Message]) -> list[Message]:
        """Ask the pservers; wait for workers that an operator holds up.

        Raises:
            TotalIncompleteError: if nobody does.
        """
        job = self._job
        while True:
            try:
                return await job.pservers.norm(messages)
            except TotalIncompleteError as error:
                if not job.communicator.session.life.orders.paused:
                    raise await with_places(job, error) from error

    def _parts(self, gradients: Collection[torch.Tensor]) -> Iterator[_Part]:
        given = {id(each) for each in gradients}
        for table in self._tables:
            grads = table.weight.grad
            held = table.pending_gradients()
            if grads is not None and id(grads) in given and held is not None:
                yield _Part(table.name, held.values, (held.ids, held.offsets))
        for block in self._blocks:
            if any(id(each.grad) in given for each in block.parameters):
                yield _Part(block.name, block.gradients(given), None)

    def _messages(
        self, parts: Iterator[_Part], fields: dict[str, Any]
    ) -> Iterator[list[Message]]:
        """Yield requests of one norm, each a message for each pserver.

        All tables come in the first one, but for dense ones that are too large.
        """
        first: list[_Part] = []
        pieces: list[tuple[_Part, int]] = []
        most = self._job.pservers.dense.piece_values
        for part in parts:
            if part.rows is None and self._job.pservers.divides:
                longest = max(
                    self._range(part, server).stop - self._range(part, server).start
                    for server in range(self._job.placement.num_servers)
                )
                pieces += [(part, start) for start in range(0, longest, most)]
            else:
                first.append(part)
        yield self._request(first, {**fields, "piece": 0})
        for number, (part, start) in enumerate(pieces, 1):
            yield self._request([part], {**fields, "piece": number}, start=start, most=most)

    def _request(
        self,
        parts: Sequence[_Part],
        fields: dict[str, Any],
        *,
        start: int = 0,
        most: int | None = None,
    ) -> list[Message]:
        messages = []
        for server in range(self._job.placement.num_servers):
            tensors: dict[str, NDArray[Any]] = {}
            for index, part in enumerate(parts):
                where = self._range(part, server)
                begin = min(where.start + start, where.stop)
                end = where.stop if most is None else min(begin + most, where.stop)
                tensors[f"{index}.values"] = np.ascontiguousarray(part.values[begin:end])
                if part.rows is not None:
                    tensors[f"{index}.ids"] = part.rows[0][begin:end]
            names = [part.table for part in parts]
            messages.append(Message(fields={**fields, "tables": names}, tensors=tensors))
        return messages

    def _range(self, part: _Part, server: int) -> slice:
        """Return which values of a part a pserver holds."""
        placement = self._job.placement
        if part.rows is None:
            return dense_slice(len(part.values), placement, server)
        shards, offsets = placement.shards_of(server), part.rows[1]
        return slice(int(offsets[shards.start]), int(offsets[shards.stop]))


def _combined(answers: Sequence[Message], order: float) -> float:
    """Return the norm of the whole gradient; 0 as the order is infinity."""
    values = [float(answer.tensors["norm"][0]) for answer in answers]
    for value, answer in zip(values, answers, strict=True):
        if answer.fields["whole"]:
            return value
    if not order:
        return float(np.max(values))
    return float(np.sum(values) ** (1.0 / order))
