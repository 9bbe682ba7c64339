"""Whether a loss is a mean or a sum over its batch, as far as its graph shows it.

In sync a step has the mean of the workers' gradients, or their sum
(``strategy.loss_reduction``). Only the script knows which of them is that of the whole batch,
so a loss that shows the other one is warned of once.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch

from paramfleet.config.strategy import LossReduction
from paramfleet.config.strategy_keys import StrategyError
from paramfleet.tables.sparse import SparseTable
from paramfleet.training.job import Job

__all__ = ["ReductionWatch", "check_sums", "reduction_of", "watch_losses"]

log = logging.getLogger(__name__)

_SAVED: dict[int, LossReduction] = {1: "mean", 2: "sum"}
"""The numbers that torch's losses have for their reductions."""

_REASONS: dict[LossReduction, str] = {
    "sum": "the loss is a sum over the batch, and a step takes the mean of the workers' "
    "gradients: that isn't the gradient of one process with the whole batch; set "
    "strategy.loss_reduction = 'sum', or let the loss be a mean",
    "mean": "the loss is a mean over the batch, and a step takes the sum of the workers' "
    "gradients: that isn't the gradient of one process with the whole batch; leave "
    "strategy.loss_reduction at 'mean', or let the loss be a sum",
}


def reduction_of(loss: torch.Tensor, *, examples: int) -> LossReduction | None:
    """Return how a loss is reduced over its batch; None where its last operation doesn't say.

    Args:
        loss: With its graph.
        examples: Of the batch: a sum over as many first entries is one over the batch.
    """
    node: Any = loss.grad_fn
    if node is None or loss.numel() != 1:
        return None
    saved = getattr(node, "_saved_reduction", None)
    if saved is not None:
        return _SAVED.get(saved)
    name = str(node.name())
    if name.startswith("MeanBackward"):
        return "mean"
    sizes: Sequence[int] = getattr(node, "_saved_self_sym_sizes", ())
    is_sum = name.startswith("SumBackward") and len(sizes) > 0 and sizes[0] == examples
    return "sum" if is_sum else None


class ReductionWatch:
    """Looks at the losses of the first step, and warns of one that is reduced otherwise.

    Args:
        expected: ``strategy.loss_reduction``.
        examples: Returns how many examples the model was called with in this step.
    """

    def __init__(self, expected: LossReduction, examples: Callable[[], int]) -> None:
        self._expected = expected
        self._examples = examples
        self._plain = plain = torch.autograd.backward

        def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
            self._look(tensors)
            plain(tensors, *args, **kwargs)

        self._own = torch.autograd.backward = backward

    def end(self) -> None:
        """Look no more."""
        if torch.autograd.backward is self._own:
            torch.autograd.backward = self._plain

    def _look(self, tensors: Any) -> None:
        losses = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        for loss in losses:
            found = reduction_of(loss, examples=self._examples())
            if found is not None and found != self._expected:
                self.end()
                log.warning(
                    "worker.loss_reduction", extra={"loss": found, "reason": _REASONS[found]}
                )
                return


def watch_losses(job: Job, expected: LossReduction) -> ReductionWatch | None:
    """Look at worker 0's losses until it takes a step; return None elsewhere, and alone."""
    if job.worker_num == 1 or job.author.rank:
        return None
    return ReductionWatch(expected, lambda: job.examples.seen)


def check_sums(tables: Sequence[SparseTable]) -> None:
    """Check that no accessor multiplies the gradients of a sum by the batch's instances.

    Raises:
        StrategyError: naming the first table whose accessor does.
    """
    for table in tables:
        if table.accessor is not None and table.accessor.sums_gradients:
            rule = (
                f"doesn't go with the accessor of table {table.name!r}, which makes a sum of "
                "the gradient of a mean (grad_scale='show'): leave one of them out"
            )
            raise StrategyError(key="loss_reduction", value="sum", rule=rule)
