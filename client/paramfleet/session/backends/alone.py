"""One process that has joined no job: it trains alone, serves, or will join."""

import logging
from collections.abc import Callable

import torch
from typing_extensions import override

from paramfleet.nn.table_binding import TableNotTrainedError, check_covered
from paramfleet.session.backends.base import Backend
from paramfleet.training.optimizer import DistributedOptimizer

__all__ = ["AloneBackend"]

log = logging.getLogger(__name__)


class AloneBackend(Backend):
    """The role says who this process is; there is no other to wait for."""

    joined = False

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
    def start(
        self, optimizer: DistributedOptimizer | None, model: torch.nn.Module | None
    ) -> None:
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
