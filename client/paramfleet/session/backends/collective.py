"""A worker among others without servers: torch.distributed brings the gradients together."""

from collections.abc import Callable
from typing import Any, NoReturn, cast

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from paramfleet.config.strategy import DistributedStrategy, TrainingMode
from paramfleet.session.backends.base import NO_SERVERS, Backend, M, Own
from paramfleet.training.collective.errors import WrongModeError
from paramfleet.training.collective.training import CollectiveTraining
from paramfleet.training.collective.world import World
from paramfleet.training.optimizer import DistributedOptimizer
from paramfleet.transport.communicator import Communicator
from paramfleet_shared.telemetry.logs_and_metrics import show_warnings

__all__ = ["CollectiveBackend"]


class CollectiveBackend(Backend):
    """No tables: what needs pservers raises ``WrongModeError``.

    Args:
        own: Of this process.
        world: The workers.
    """

    def __init__(self, own: Own, world: World) -> None:
        super().__init__(own)
        show_warnings("worker", world.rank)
        self.world = world
        show_warnings("worker", world.rank)
        self.training = CollectiveTraining(world, own.times)

    @property
    @override
    def collective(self) -> CollectiveTraining:
        return self.training

    @override
    def worker_index(self) -> int:
        return self.world.rank

    @override
    def worker_num(self) -> int:
        return self.world.size

    @override
    def worker_endpoints(self) -> list[str]:
        return list(self.world.endpoints)

    @override
    def check_served(self, function: str, *, remedy: str = NO_SERVERS) -> NoReturn:
        raise WrongModeError(function=function, remedy=remedy)

    @override
    def server_num(self) -> NoReturn:
        self.check_served("server_num")

    @override
    def server_index(self) -> NoReturn:
        self.check_served("server_index")

    @override
    def server_endpoints(self) -> NoReturn:
        self.check_served("server_endpoints")

    @override
    def barrier(self, name: str) -> None:
        self.world.gather(name, b"")

    @override
    def gather(self, name: str, payload: bytes) -> list[bytes]:
        return self.world.gather(name, payload)

    @override
    def link(self, function: str, *, remedy: str) -> Communicator | None:
        if not self.world.alone:
            self.check_served(function, remedy=remedy)
        return None

    @override
    def take_model(self, model: M, watch: Callable[[torch.nn.Module], None]) -> M:
        del watch
        return cast("M", self.training.take_model(model))  # it passes on what a model has

    @override
    def take_optimizer(
        self,
        inner: torch.optim.Optimizer,
        strategy: DistributedStrategy,
        make: Callable[[TrainingMode], DistributedOptimizer],
    ) -> DistributedOptimizer:
        del make
        return self.training.take_optimizer(inner, strategy.resolve_collective())

    @override
    def stop(self, finish: Callable[[], None]) -> None:
        if not self.stopped:
            finish()
            self.stopped = True
            self.world.close()

    @override
    def depart(self, optimizer: DistributedOptimizer | None) -> NoReturn:
        self.check_served("leave")

    @override
    def abandon(self, error: str | None, *, may_return: bool = False) -> None:
        del may_return  # the launcher starts all again
        if not self.stopped:
            self.world.abandon(error or "its script ended without stop_worker")

    @override
    def job_facts(self) -> dict[int, dict[str, Any]]:
        self.check_served(
            "job_progress", remedy="gather what you want with fleet.util.all_gather"
        )

    @override
    def remove_rows(
        self, optimizer: DistributedOptimizer | None, table: str, ids: NDArray[np.int64]
    ) -> NoReturn:
        self.check_served("remove_rows")

    @override
    def prefetch_rows(
        self, optimizer: DistributedOptimizer | None, table: str, ids: NDArray[np.int64]
    ) -> NoReturn:
        self.check_served("prefetch_rows")

    @override
    def ahead(self, optimizer: DistributedOptimizer | None) -> None:
        """Return nothing: there are no rows to ask for, and batches are loaded ahead alone."""
