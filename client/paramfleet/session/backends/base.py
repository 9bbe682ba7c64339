"""What a session asks of a backend, whichever it is."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from paramfleet.config.errors import CallOrderError
from paramfleet.config.roles import RoleMaker
from paramfleet.config.strategy import DistributedStrategy, TrainingMode
from paramfleet.model_state.agreement import Agreement
from paramfleet.nn.table_binding import share_tables, untrained
from paramfleet.session.registered import Registered
from paramfleet.session.worker_metrics import Progress
from paramfleet.telemetry.examples_count import ExampleCounter
from paramfleet.telemetry.step_times import StepTimes
from paramfleet.training.collective.errors import WrongModeError
from paramfleet.training.job import Job
from paramfleet.training.modes.prefetching.ahead import Ahead
from paramfleet.training.modes.prefetching.disk_rows import PrefetchedRows
from paramfleet.training.optimizer import DistributedOptimizer
from paramfleet.transport.communicator import Communicator
from paramfleet.transport.leaving import Departure

if TYPE_CHECKING:
    from paramfleet.training.collective.training import CollectiveTraining
    from paramfleet.training.stepping.clipping import Clipping
    from paramfleet_shared.discovery.orders import Orders

__all__ = ["NO_SERVERS", "Backend", "Own"]

NO_SERVERS = "there are no servers in collective mode: leave the call out"

M = TypeVar("M", bound=torch.nn.Module)

log = logging.getLogger(__name__)

_NOT_GIVEN = (
    "they keep their values: give them to the optimizer, or set requires_grad=False if they "
    "are meant to stay"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Own:
    """What a process has, whatever it trains with."""

    role: Callable[[], RoleMaker]
    """Returns its role; an error before ``fleet.init``."""
    times: StepTimes
    examples: ExampleCounter
    departure: Departure
    registered: Registered
    progress: Progress


class Backend(ABC):
    """What ``Session`` and the functions of ``fleet`` ask. The training thread calls it.

    A backend defines what is abstract. The rest is that of training with tables in a process
    that hasn't joined a job; a backend that lacks a part of it raises ``WrongModeError``.

    Args:
        own: Of this process.
    """

    joined = True
    """Whether the process has joined a job."""
    stopped = False
    """Whether it has left that."""
    communicator: Communicator | None = None
    """What reaches Redis and the pservers; None where nothing does."""
    clipping: "Clipping | None" = None
    """What torch's functions that clip gradients do; None where they do what they do."""
    job: Job | None = None
    """The worker's connections after ``start``; None where there are none."""

    def __init__(self, own: Own) -> None:
        self.own = own
        self.agreement = Agreement(None)
        """On the buffers that all workers hold."""

    @property
    def collective(self) -> "CollectiveTraining | None":
        """What trains in collective mode, where all workers save together; None in another."""
        return None

    @abstractmethod
    def worker_index(self) -> int:
        """Return this worker's rank, from 0."""

    @abstractmethod
    def worker_num(self) -> int:
        """Return how many workers there are."""

    def worker_endpoints(self) -> list[str]:
        """Return the workers' addresses."""
        return list(self.own.role().worker_endpoints)

    def check_served(self, function: str, *, remedy: str = NO_SERVERS) -> None:
        """Demand that tables are trained.

        Args:
            function: Of ``fleet``.
            remedy: What to do instead.

        Raises:
            WrongModeError: naming the function.
        """
        del function, remedy

    def server_num(self) -> int:
        """Return how many pservers there are."""
        return len(self.server_endpoints())

    def server_index(self) -> int:
        """Return this server's index, from 0."""
        return self.own.role().index or 0

    def server_endpoints(self) -> list[str]:
        """Return the pservers' addresses."""
        return list(self.own.role().server_endpoints)

    @abstractmethod
    def barrier(self, name: str) -> None:
        """Wait until every worker is at the barrier of this name."""

    @abstractmethod
    def gather(self, name: str, payload: bytes) -> list[bytes]:
        """Return every worker's payload by rank."""

    def link(self, function: str, *, remedy: str) -> Communicator | None:
        """Return what reaches the other workers; None where there are none.

        Raises:
            WrongModeError: as ``check_served`` does, where there are some.
        """
        del function, remedy
        return self.communicator

    def take_model(self, model: M, watch: Callable[[torch.nn.Module], None]) -> M:
        """Name a model's tables, and return what computes forward.

        Args:
            model: The user's.
            watch: Is called with a model whose forwards are watched.

        Raises:
            FleetError: if it can't be trained.
        """
        share_tables(model)
        watch(model)
        return model

    def take_optimizer(
        self,
        inner: torch.optim.Optimizer,
        strategy: DistributedStrategy,
        make: Callable[[TrainingMode], DistributedOptimizer],
    ) -> DistributedOptimizer:
        """Return what steps as the strategy says.

        Args:
            inner: The user's optimizer.
            strategy: The user's.
            make: Makes what trains tables in a mode.

        Raises:
            FleetError: if the strategy contradicts itself, or doesn't go with the optimizer.
        """
        del inner
        mode = strategy.resolve()
        if not self.own.role().distributed:
            mode = TrainingMode(
                name="local",
                apart=mode.apart,
                checkpoints=mode.checkpoints,
                eviction=mode.eviction,
                guard=mode.guard,
                accessors=mode.accessors,
            )
        return make(mode)

    def start(
        self, optimizer: DistributedOptimizer | None, model: torch.nn.Module | None
    ) -> None:
        """Declare the tables, and start from common values."""
        del optimizer, model  # no other process has any

    def _note_untrained(self, optimizer: DistributedOptimizer, model: torch.nn.Module) -> None:
        """Warn of ordinary parameters that learn and that the optimizer lacks: it is legal."""
        names = untrained(model, optimizer.inner)
        if names and not self.worker_index():
            facts = {"parameters": names, "reason": _NOT_GIVEN}
            log.warning("worker.parameters_not_trained", extra=facts)

    @abstractmethod
    def stop(self, finish: Callable[[], None]) -> None:
        """Leave in good order, once; ``finish`` ends the training."""

    def depart(self, optimizer: DistributedOptimizer | None) -> None:
        """Leave while others go on; what waits is sent."""
        del optimizer  # there are no others

    def abandon(self, error: str | None, *, may_return: bool = False) -> None:
        """Say why this script ended before ``stop``.

        Args:
            error: What ended it; None for its own end.
            may_return: Whether another process in its place may do better.
        """
        del error, may_return  # there are no others

    def between_steps(self) -> None:
        """Do what others may need between two steps."""
        return  # there are no others

    def raise_failure(self) -> None:
        """Raise the failure of the job, if it has failed."""
        return  # there is no job

    def orders(self) -> "Orders | None":
        """Return what an operator wants; None where there is no operator."""
        return None

    def job_facts(self) -> dict[int, dict[str, Any]]:
        """Return what each worker says of its training, by rank."""
        return {0: self.own.progress.facts()}

    def remove_rows(
        self, optimizer: DistributedOptimizer | None, table: str, ids: NDArray[np.int64]
    ) -> int:
        """Remove rows, as ``fleet.remove_rows`` promises; return how many there were.

        Args:
            optimizer: What trains tables.
            table: Its name.
            ids: int64 [n], each once.

        Raises:
            CallOrderError: if there is no optimizer yet.
            WrongModeError: in LocalSGD.
        """
        return _with_rows("remove_rows", optimizer).remove_rows(table, ids)

    def prefetch_rows(
        self, optimizer: DistributedOptimizer | None, table: str, ids: NDArray[np.int64]
    ) -> PrefetchedRows:
        """Have rows brought into memory, as ``fleet.prefetch_rows`` promises.

        Args:
            optimizer: What trains tables.
            table: Its name.
            ids: int64 [n], each once.

        Raises:
            CallOrderError: if there is no optimizer yet.
            WrongModeError: in LocalSGD.
        """
        return _with_rows("prefetch_rows", optimizer).prefetch_rows(table, ids)

    def ahead(self, optimizer: DistributedOptimizer | None) -> Ahead | None:
        """Return where rows of batches to come are asked for; None where none travel.

        Raises:
            CallOrderError: if there is no optimizer yet.
        """
        if optimizer is None:
            remedy = "call fleet.distributed_optimizer() before iterating"
            raise CallOrderError(function="prefetch", remedy=remedy)
        return optimizer.ahead


def _with_rows(function: str, optimizer: DistributedOptimizer | None) -> DistributedOptimizer:
    """Return an optimizer that trains tables of rows.

    Raises:
        CallOrderError: if there is none yet.
        WrongModeError: in LocalSGD.
    """
    if optimizer is None:
        remedy = "call fleet.distributed_optimizer() first"
        raise CallOrderError(function=function, remedy=remedy)
    if optimizer.mode.apart is not None:
        raise WrongModeError(
            function=function,
            mode=f"strategy.{optimizer.mode.apart[0]}",
            remedy="its models have no tables of rows: leave the call out",
        )
    return optimizer
