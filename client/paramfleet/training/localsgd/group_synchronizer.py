"""Workers of one ``torch.distributed`` group, which exchange deltas by collectives.

Every worker gets the same mean of the deltas, and steps its own copy of the outer optimizer
by it; nobody keeps the truth for the others. The group is a copy of the default one, with a
deadline of its own, so that other collectives of the program don't mix with these.

Shape legend: F = values of a fragment.
"""

import math
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from paramfleet.training.localsgd.buckets import NarrowMean, WholeMean
from paramfleet.training.localsgd.core.codecs import format_of
from paramfleet.training.localsgd.core.ledger import Ledger
from paramfleet.training.localsgd.core.outer import OuterOptimizer
from paramfleet.training.localsgd.core.settings import LocalSgdSettings
from paramfleet.training.localsgd.exchange_queue import Work, queue_for
from paramfleet.training.localsgd.lost_ranks import SynchronizationLostError, missing_ranks
from paramfleet.training.localsgd.synchronizer import Pending
from paramfleet_shared.system.clock import Clock, SystemClock

__all__ = ["GroupSynchronizer", "GroupSynchronizerSettings"]


class GroupSynchronizerSettings(NamedTuple):
    """How a group exchanges, beside what all synchronizations share."""

    timeout_s: float = 120.0
    """Seconds that a collective may wait for the other workers."""

    bucket_mb: float = 25.0
    """MiB of float32 values in one collective."""


class GroupSynchronizer:
    """A synchronizer by all-reduce; all workers make it at the same point of the program.

    Args:
        fragments: Values of each fragment.
        settings: Of all workers.
        ledger: Where bytes are counted.
        device: Of the model.
        group_settings: Deadline and buckets.
        clock: What waits are measured by.
    """

    def __init__(
        self,
        fragments: Sequence[int],
        settings: LocalSgdSettings,
        *,
        ledger: Ledger,
        device: torch.device,
        group_settings: GroupSynchronizerSettings | None = None,
        clock: Clock | None = None,
    ) -> None:
        chosen = group_settings or GroupSynchronizerSettings()
        self.fragments: Sequence[int] = list(fragments)
        self._ledger = ledger
        self._device = device
        self._clock = clock or SystemClock()
        self._group = dist.new_group(timeout=timedelta(seconds=chosen.timeout_s))
        self._queue = queue_for(device)
        self._outer = OuterOptimizer(settings, len(self.fragments))
        bucket_values = math.ceil(chosen.bucket_mb * 2**20 / 4)
        self._whole = WholeMean(self._group, bucket_values)
        form = format_of(settings.wire_dtype)
        self._narrow = (
            None
            if form is None
            else [NarrowMean(self._group, bucket_values, form) for _ in self.fragments]
        )
        self._num_exchanges = 0

    @property
    def num_workers(self) -> int:
        """Return how many take part."""
        return int(self._group.size())

    def align(self, tensors: Sequence[torch.Tensor]) -> None:
        """Give all workers rank 0's values of these tensors.

        Raises:
            SynchronizationLostError: if a worker didn't come in time.
        """

        def work() -> torch.Tensor:
            for tensor in tensors:
                values = tensor.detach().contiguous()
                dist.broadcast(values, src=0, group=self._group)
                tensor.detach().copy_(values)
            return torch.empty(0)

        self._begin("handing out the first values", work).wait()

    def exchange(
        self, fragment: int, snapshot_F: torch.Tensor, delta_F: torch.Tensor
    ) -> Pending:
        """Begin the exchange of a fragment."""
        means = self._whole if self._narrow is None else self._narrow[fragment]
        self._ledger.sent(means.num_bytes(len(delta_F)))

        def work() -> torch.Tensor:
            return self._outer.step(fragment, snapshot_F, means.run(delta_F))

        return self._begin(f"the exchange of fragment {fragment}", work, snapshot_F, delta_F)

    def average(self, values_F: torch.Tensor) -> Pending:
        """Begin to average values that no outer optimizer steps, in float32."""
        self._ledger.sent(self._whole.num_bytes(len(values_F)))

        def work() -> torch.Tensor:
            return self._whole.run(values_F)

        return self._begin("an exchange of buffers or optimizer state", work, values_F)

    def mean(self, value: float) -> float:
        """Return the mean of the workers' values."""
        values = torch.tensor([value], dtype=torch.float64, device=self._device)
        self._ledger.sent(2 * 8 * (self.num_workers - 1) // self.num_workers)
        pending = self._begin("a mean", lambda: self._whole.run(values), values)
        return float(pending.wait().item())

    def state_dict(self) -> dict[str, Any]:
        """Return the outer momenta and this worker's residuals; nothing may be under way."""
        narrow = self._narrow or []
        return {
            "outer": self._outer.state_dict(),
            "residuals": [means.residuals() for means in narrow],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where ``state_dict`` was asked."""
        self._outer.load_state_dict(state["outer"])
        for means, residuals in zip(self._narrow or [], state["residuals"], strict=True):
            means.restore(residuals)

    def _begin(
        self, operation: str, work: Callable[[], torch.Tensor], *inputs: torch.Tensor
    ) -> "_Exchange":
        self._num_exchanges += 1
        named = f"{operation}, the group's {self._num_exchanges}."
        return _Exchange(named, self._queue.run(work, *inputs), self._clock)


class _Exchange:
    """One exchange of a queue.

    Args:
        operation: What a person reads of it.
        result: Waits for it.
        clock: Tells how long.
    """

    def __init__(self, operation: str, result: Work, clock: Clock) -> None:
        self._operation = operation
        self._result = result
        self._clock = clock
        self._begun = clock.monotonic()

    def wait(self) -> torch.Tensor:
        try:
            return self._result()
        except RuntimeError as error:  # what gloo and NCCL raise, for whatever reason
            waited_s = self._clock.monotonic() - self._begun
            raise SynchronizationLostError(
                operation=self._operation,
                rank=dist.get_rank(),
                missing=missing_ranks(self._operation, self._clock),
                waited_s=waited_s,
                reason=str(error).partition("\n")[0],
            ) from error
