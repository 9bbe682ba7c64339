"""One process that has joined no job: it trains alone, serves, or will join."""

import logging
from collections.abc import Callable

import torch
from typing_extensions import override

from paramfleet.config.strategy import DistributedStrategy, TrainingMode
from paramfleet.nn.table_binding import TableNotTrainedError, check_covered
from paramfleet.session.backends.base import Backend, Own
from paramfleet.training.optimizer import DistributedOptimizer

__all__ = ["AloneBackend"]

log = logging.getLogger(__name__)


class AloneBackend(Backend):
    """The role says who this process is; there is no other to wait for."""

    joined = False

    def __init__(self, own: Own) -> None:
        super().__init__(own)
        self._has_begun = False
        """Whether the script called ``fleet.init_worker``, with an optimizer."""

    @override
    def worker_index(self) -> int:
        return self.own.role().index or 0

    @override
    def worker_num(self) -> int:
        return max(1, self.own.role().worker_num)

    @override
    def barrier(self, name: str) -> None:
        del name

    @override
    def gather(self, name: str, payload: bytes) -> list[bytes]:
        del name
        return [payload]

    @override
    def take_optimizer(
        self,
        inner: torch.optim.Optimizer,
        strategy: DistributedStrategy,
        make: Callable[[TrainingMode], DistributedOptimizer],
    ) -> DistributedOptimizer:
        made = super().take_optimizer(inner, strategy, make)
        if not self.own.role().distributed:
            from paramfleet.session.backends.first_steps import watch_first_steps  # noqa: PLC0415 - a job's worker compiles elsewhere

            watch_first_steps(made, lambda: self._has_begun)
        return made

    @override
    def start(
        self, optimizer: DistributedOptimizer | None, model: torch.nn.Module | None
    ) -> None:
        self._has_begun = optimizer is not None
        if optimizer is None or model is None:
            return
        self._note_untrained(optimizer, model)
        try:
            check_covered(model, [table for table, _ in optimizer.tables.sparse])
        except TableNotTrainedError as error:  # a script alone may train it by other means
            log.warning(
                "worker.table_not_trained",
                extra={"table": error.table, "reason": f"a job refuses it: {error}"},
            )

    @override
    def stop(self, finish: Callable[[], None]) -> None:
        del finish
