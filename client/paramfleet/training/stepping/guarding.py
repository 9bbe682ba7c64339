"""Guards of steps: what their loss and gradient are, and what is done with one outside.

A step is looked at after ``backward`` and before anything of it leaves the worker.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from typing_extensions import override

from paramfleet.config.plans.guards import GuardPlan
from paramfleet.tables.sparse import SparseTable
from paramfleet.training.stepping.guard import Guard
from paramfleet_shared.errors import ContractError

__all__ = ["GuardError", "GuardLossError", "Guarding"]

log = logging.getLogger(__name__)

MAX_NAMED = 8
"""Rows of each table that are named."""

MAX_SHOWN_ROWS = 180
"""Characters of the rows that are named: an error shows no longer text whole."""


class GuardError(ContractError):
    """A step was out of the ranges of ``guard_configs``, and is to end the training."""

    code = "contract.guard"
    step: int
    outside: str
    """What, and what it must be."""
    rows: str
    skipped: int
    """Steps before it that were skipped one after the other."""

    @override
    def describe(self) -> str:
        named = f"; its rows with the longest gradients: {self.rows}" if self.rows else ""
        before = f", as in {self.skipped} steps before" if self.skipped else ""
        return (
            f"step {self.step}: {self.outside}{before}: nothing of it was sent{named}; look at "
            "the batch, the learning rate, and strategy.guard_configs"
        )


class GuardLossError(ContractError):
    """A guard has a range for the loss, and the step wasn't told the loss."""

    code = "contract.guard_loss"
    key: str
    sentence = (
        "guard_configs[{key!r}] needs the loss: call optimizer.minimize(loss), "
        "optimizer.step(loss=loss) or optimizer.step(closure)"
    )


class Guarding:
    """Watches the steps of one worker.

    Args:
        plan: The ranges, and what to do.
        combine: Takes whether this worker is outside, and returns whether any of those is that
            step together. By default each worker decides for itself.
    """

    def __init__(
        self, plan: GuardPlan, combine: Callable[[bool], bool] = lambda outside: outside
    ) -> None:
        self._plan = plan
        self._guard = Guard(plan)
        self._combine = combine
        self.num_outside = 0
        """Steps of this worker that were outside."""
        self.num_skipped = 0
        """Steps that were left out, also as another worker's was outside."""
        self._last = ""
        """The newest of them, in words."""
        self.buffers: Callable[[], Iterable[torch.Tensor]] = lambda: ()
        """Returns the model's buffers, as BatchNorm's statistics, which a forward changes."""
        self._kept: list[torch.Tensor] = []
        """Copies of them, of before the step in progress."""

    @property
    def mean_loss(self) -> float | None:
        """Return the running mean of the losses' sizes; None before the first."""
        return self._guard.mean_loss

    def facts(self) -> dict[str, Any]:
        """Return what the job is told: counts, and the newest step outside in words."""
        return {
            "outside": self.num_outside,
            "skipped": self.num_skipped,
            "last": self._last,
        }

    def look(
        self,
        tables: Sequence[SparseTable],
        parameters: Iterable[torch.Tensor],
        loss: torch.Tensor | float | None,
        *,
        step: int,
    ) -> bool:
        """Return whether the step is to be left out; its gradients are dropped then.

        Args:
            tables: With this step's rows.
            parameters: All others, with their gradients.
            loss: Of the batch, a scalar; None if the script doesn't say it.
            step: Its number, from 1.

        Raises:
            GuardLossError: if the loss is needed.
            GuardError: if the training is to end.
        """
        if loss is None and self._plan.asks_loss:
            raise GuardLossError(key=self._plan.asks_loss)
        dense = list(parameters)
        weights = [table.weight for table in tables]
        norm = _norm([each.grad for each in (*weights, *dense) if each.grad is not None])
        outside = self._guard.judge(None if loss is None else float(loss), norm)
        if outside is not None:
            self._tell(outside.words(), _rows(tables), step=step)
        if self._plan.action == "warn" or not self._combine(outside is not None):
            self.keep_buffers()
            return False
        self.num_skipped += 1
        for each in (*weights, *dense):
            each.grad = None
        with torch.no_grad():
            for buffer, before in zip(self.buffers(), self._kept, strict=False):
                buffer.copy_(before)
        return True

    def keep_buffers(self) -> None:
        """Keep what the buffers are, for when the next step is left out."""
        if self._plan.action == "skip":
            self._kept = [each.detach().clone() for each in self.buffers()]

    def _tell(self, words: str, rows: str, *, step: int) -> None:
        """Log a step outside, and keep it for the job.

        Raises:
            GuardError: if it is to end the training.
        """
        action, before = self._plan.action, self._guard.in_a_row - 1
        if action == "end" or (action == "skip" and self._guard.is_beyond):
            raise GuardError(step=step, outside=words, rows=rows, skipped=before)
        self.num_outside += 1
        facts = {"step": step, "reason": words, "rows": rows, "outside": self.num_outside}
        log.warning(
            "worker.step_skipped" if action == "skip" else "worker.step_outside", extra=facts
        )
        said = "skipped" if action == "skip" else "out of range"
        self._last = f"step {step} {said}: {words}" + (f"; rows: {rows}" if rows else "")


def _norm(gradients: Sequence[torch.Tensor]) -> float:
    """Return the L2 norm of all of them together, read once a device."""
    by_device: dict[torch.device, list[torch.Tensor]] = {}
    for each in gradients:
        # Of a parameter that is cut up among the workers, this one's part.
        own = each.to_local() if hasattr(each, "to_local") else each
        length = torch.linalg.vector_norm(own.detach(), dtype=torch.float64)
        by_device.setdefault(length.device, []).append(length)
    parts = [torch.linalg.vector_norm(torch.stack(each)).item() for each in by_device.values()]
    return float(torch.tensor(parts, dtype=torch.float64).norm()) if parts else 0.0


def _rows(tables: Sequence[SparseTable]) -> str:
    """Return the ids of the rows with the longest gradients, NaN first, by table.

    Of each table so many that all are shown.
    """
    longest = []
    for table in tables:
        grads, ids = table.gradient, table.pending_ids
        if grads is None or not len(ids):
            continue
        lengths = torch.linalg.vector_norm(grads.detach(), dim=1)
        lengths = lengths.nan_to_num(nan=float("inf"), posinf=float("inf"))
        order = lengths.argsort(descending=True, stable=True)[:MAX_NAMED].cpu().numpy()
        longest.append((table.name, ids[order].tolist(), len(ids)))
    words = ""
    for num_named in range(MAX_NAMED, 0, -1):
        words = "; ".join(_named(*each, num_named) for each in longest)
        if len(words) <= MAX_SHOWN_ROWS:
            break
    return words


def _named(table: str, ids: Sequence[int], num_ids: int, num_named: int) -> str:
    named = ids[:num_named]
    more = f" and {num_ids - len(named):,} more" if num_ids > len(named) else ""
    return f"{table} {', '.join(map(str, named))}{more}"
