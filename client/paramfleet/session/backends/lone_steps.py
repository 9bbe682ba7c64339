"""Steps of a torch optimizer in a job's worker that has no tables yet: they train it alone."""

import logging
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from paramfleet.training.optimizer import DistributedOptimizer

__all__ = ["LoneSteps"]

log = logging.getLogger(__name__)

_REASON = (
    "this step isn't part of the job: its servers and workers don't see it; take steps by the "
    "optimizer that fleet.distributed_optimizer() returns, after fleet.init_worker()"
)


class LoneSteps:
    """Warns of the first one, ``worker.trains_alone``, until it is ended."""

    def __init__(self) -> None:
        self._handle = register_optimizer_step_pre_hook(self._see)

    def end(self) -> None:
        """Look no more: the worker is a part of its job, or has left it."""
        self._handle.remove()

    def _see(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if not isinstance(optimizer, DistributedOptimizer):  # that raises NotStartedError
            self.end()
            facts = {"optimizer": type(optimizer).__name__, "reason": _REASON}
            log.warning("worker.trains_alone", extra=facts)
