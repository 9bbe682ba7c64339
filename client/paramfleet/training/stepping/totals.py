"""Sums over the workers that take part in a step, as a pserver adds them up.

The first pserver knows who takes part: a worker without batches has left, and isn't waited
for. See ``docs/adr/0028-batch-statistics-are-summed-at-a-pserver.md``.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from paramfleet.training.job import Job, with_places
from paramfleet_shared.errors import ContractError
from paramfleet_shared.errors.served import TotalIncompleteError
from paramfleet_shared.net.wire.message import Message

__all__ = ["BatchStatisticsError", "StepTotals", "StepWeightError", "ask_total"]


class BatchStatisticsError(ContractError):
    """A worker's part of a sum isn't finite; nothing was sent."""

    code = "contract.batch_statistics"
    name: str
    step: int
    sentence = (
        "{name} in step {step}: its batch statistics, or their gradient, are NaN or "
        "infinite: look at this worker's batch and at the learning rate"
    )


class StepWeightError(ContractError):
    """A step counts for another number of examples than its backward pass did."""

    code = "contract.step_weight"
    step: int
    counted: int
    examples: int
    sentence = (
        "step {step} counts for {examples} examples, and its backward pass through "
        "BatchNorm counted {counted}: with sync_batch_norm call backward once a step, "
        "after every forward, and leave step's examples to what the model was called with"
    )


async def ask_total(job: Job, part: NDArray[np.float64], *, name: str, step: int) -> Message:
    """Ask for a sum over the workers of a step; wait for those that an operator holds up.

    Args:
        job: In sync.
        part: Of this worker, float64 [n], finite.
        name: The same in every worker, and another one for each sum of a step.
        step: In progress.

    Returns:
        The tensor ``sum``, float64 [n]; and ``workers``: how many take part in the step.

    Raises:
        TotalIncompleteError: if nobody does.
        FleetError: if the job failed.
    """
    fields = {**job.author.fields(), "step": step, "name": name}
    message = Message(fields=fields, tensors={"part": part})
    while True:
        try:
            return await job.pservers.total(message)
        except TotalIncompleteError as error:
            if not job.communicator.session.life.orders.paused:
                raise await with_places(job, error) from error


class StepTotals:
    """One worker's part in the sums of its steps; the thread that trains owns it.

    A copy of it, as of a model that is copied, is None: copies compute alone.

    Args:
        job: The job, in sync mode.
        step: Returns the step in progress.
        weight: Returns for how many examples the step counts so far.
        sums: Whether a step's gradient is the sum of the workers', and not their mean.
    """

    def __init__(
        self,
        job: Job,
        *,
        step: Callable[[], int],
        weight: Callable[[], int],
        sums: bool = False,
    ) -> None:
        self._job = job
        self._sums = sums
        self._step = step
        self._weight = weight
        self._uses: Counter[str] = Counter()
        self._weighed: set[int] = set()
        self.is_over = False
        """Whether this worker takes no more steps."""

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """Return None."""

    def __reduce__(self) -> tuple[Callable[..., None], tuple[()]]:
        """Be None when it is loaded."""
        return type(None), ()

    def over_workers(self, values: torch.Tensor, name: str) -> torch.Tensor:
        """Return the sum of what all workers of the step have.

        Its gradient is that of the job's loss, the mean of the workers' by their examples.

        Args:
            values: float64 [n].
            name: What it is of; the same in every worker. Each use in a step is a sum.

        Returns:
            float64 [n], the same in every worker.

        Raises:
            BatchStatisticsError: if a number isn't finite.
            TotalIncompleteError: if another worker's part doesn't come in time.
            FleetError: if the job failed.
        """
        # One name is used in turn: the n-th use of all workers is one sum.
        self._uses[name] += 1
        use = f"{name} #{self._uses[name]}"
        total: torch.Tensor = _Total.apply(values, self, use)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return total

    def end_step(self, *, examples: int | None) -> None:
        """Begin to count the uses of the next step, before this one is pushed.

        Args:
            examples: Of the step; None if its batch is left out.

        Raises:
            StepWeightError: if its gradients were weighed by another number of examples.
        """
        if examples is not None:
            for counted in self._weighed - {examples}:
                raise StepWeightError(step=self._step(), counted=counted, examples=examples)
        self._uses.clear()
        self._weighed.clear()

    def weigh(self) -> int:
        """Return for how many examples a gradient counts that is needed now."""
        if self._sums:
            return 1
        weight = self._weight()
        self._weighed.add(weight)
        return weight

    def add_up(self, values: torch.Tensor, name: str) -> torch.Tensor:
        """Return the sum of all workers' values of this name.

        Raises:
            BatchStatisticsError: if a number isn't finite.
            FleetError: as ``over_workers``.
        """
        part = values.detach().to("cpu", torch.float64).numpy()
        step = self._step()
        if not np.isfinite(part).all():
            raise BatchStatisticsError(name=name, step=step)
        job = self._job
        with job.times.during("barrier"):
            answer = job.communicator.wait(ask_total(job, part, name=name, step=step))
        total = answer.tensors["sum"]
        return torch.from_numpy(total.copy()).to(values.device, values.dtype)


class _Total(torch.autograd.Function):
    """``StepTotals.over_workers``, as a node of the graph."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, totals: StepTotals, name: str) -> torch.Tensor:
        ctx.totals, ctx.name = totals, name
        return totals.add_up(values, name)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        """Return the gradient of the workers' mean loss, as a share of this worker's own.

        The step weighs each worker's gradient by its examples: what belongs to another's loss
        has that one's weight here, and this one's divided out.
        """
        weight = ctx.totals.weigh()
        total = ctx.totals.add_up(grads[0] * weight, f"{ctx.name} backward")
        return total / weight, None, None
