"""The plan of a mode: where rows come from, and what an optimizer step does."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.parameter import is_lazy
from typing_extensions import override

from paramfleet.config.accessor import AccessorOptionError
from paramfleet.config.strategy import TrainingMode
from paramfleet.tables.dense import DenseBlock
from paramfleet.tables.sparse import SparseTable, table_of
from paramfleet.training.evicting.selecting import Selection
from paramfleet.training.modes.fresh import FreshSteps
from paramfleet.training.modes.prefetching.ahead import Expecting
from paramfleet.training.modes.prefetching.disk_rows import Prefetched
from paramfleet.training.passes.backing import PassBacking
from paramfleet_shared.errors import ContractError
from paramfleet_shared.tables.rows.evicting import AsOf
from paramfleet_shared.tables.spec import TableSpec
from paramfleet_shared.values.bounds import LARGEST_GRADIENT, MAX_LEARNING_RATE

if TYPE_CHECKING:
    from paramfleet.training.stepping.norms import MergedNorms
    from paramfleet.training.stepping.others import OthersSteps

__all__ = [
    "GradientError",
    "LearningRateError",
    "Mode",
    "ModelTables",
    "TableSharedLateError",
    "UninitializedParameterError",
    "check_gradients",
    "check_rates",
    "collect_tables",
    "learning_rate",
]


class GradientError(ContractError):
    """A gradient is NaN, infinite or too large; the step changed nothing."""

    code = "contract.gradient"
    table: str
    step: int
    """Its number, from 1."""
    count: int

    @override
    def describe(self) -> str:
        return (
            f"table {self.table!r}: {self.count} values of the gradient of step {self.step} "
            "are NaN, infinite "
            f"or not below {LARGEST_GRADIENT:.3g} in size: nothing was changed; look at the "
            "batch, the loss and the learning rate"
        )


class LearningRateError(ContractError):
    """A learning rate is NaN, negative or too large; the step changed nothing."""

    code = "contract.learning_rate"
    table: str
    step: int
    """Its number, from 1."""
    rate: float

    @override
    def describe(self) -> str:
        return (
            f"table {self.table!r}: the learning rate of step {self.step} is {self.rate}, and "
            "must be from 0 "
            f"to {MAX_LEARNING_RATE:g}: nothing was changed; look at the scheduler"
        )


class UninitializedParameterError(ContractError):
    """A parameter of a lazy module has no shape yet."""

    code = "contract.uninitialized_parameter"
    sentence = (
        "the optimizer has a parameter of a lazy module, such as torch.nn.LazyLinear, that has "
        "no shape yet: call the model once with a batch, under torch.no_grad(), before "
        "fleet.distributed_optimizer()"
    )


class TableSharedLateError(ContractError):
    """Modules of one name don't share their table yet, but an optimizer holds both."""

    code = "contract.table_shared_late"
    table: str
    sentence = (
        "two modules use table {table!r}, each with a parameter of its own: give the tables "
        "different names (name=...), or call fleet.distributed_model(model) with one module "
        "that holds both, before making the optimizer"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelTables:
    """The tables behind an optimizer's parameters, with the group of each."""

    sparse: tuple[tuple[SparseTable, dict[str, Any]], ...]
    dense: tuple[tuple[DenseBlock, dict[str, Any]], ...]


class Mode(ABC):
    """What optimizer, checkpoints and prefetching ask of a mode. The training thread calls it.

    A mode defines what is abstract. The rest says here what a mode has that doesn't define it.
    """

    in_step = False
    """Whether the workers end every step together."""
    tables: ModelTables | None = None
    """What the pservers hold, where that aren't the tables of the optimizer's parameters."""
    fresh = FreshSteps(0)
    """Which steps wait for the servers as later ones don't; none, but where a mode counts."""
    begins_with: int | None = None
    """The step that this worker begins with: in sync, whose values are of before it, and in
    LocalSGD in the place of a worker that died."""
    ledger: Any = None
    """What LocalSGD's exchanges cost so far; None without."""
    norms: "MergedNorms | None" = None
    """Norms of all workers' gradients; None where there are no others in a step."""
    others: "OthersSteps | None" = None
    """Waits for other workers that may be in a step; None where none needs this worker."""

    @abstractmethod
    def start(self) -> None:
        """Bring tables and parameters to their common start; called once."""

    @abstractmethod
    def step(self, *, examples: int) -> None:
        """Take one optimizer step with the gradients that are pending.

        Args:
            examples: Examples in this worker's batch; sync weighs by it.

        Raises:
            GradientError: if a gradient isn't finite, or is too large; nothing was changed.
            LearningRateError: if a learning rate can't be used; nothing was changed.
        """

    def skip(self) -> None:
        """Take a step whose batch is left out: its gradients were dropped.

        Raises:
            LearningRateError: as ``step``.
        """
        self.step(examples=0)

    def take_others_step(self) -> None:
        """Take part in a step of other workers, without a batch."""
        self.skip()

    @abstractmethod
    def flush(self) -> None:
        """Return when everything that waits is with the servers."""

    @abstractmethod
    def reload(self, *, workers: int) -> None:
        """Take the servers' values as they are now, forgetting this worker's own.

        Args:
            workers: How many do so together.
        """

    def remove(self, table: SparseTable, ids: NDArray[np.int64]) -> int:
        """Remove rows, between two steps; return how many there were.

        Args:
            table: One of the optimizer's.
            ids: int64 [n], each once.
        """
        del table, ids
        return 0  # a mode that defines nothing here trains no table of rows

    def write(
        self, table: SparseTable, ids: NDArray[np.int64], values: NDArray[np.float32]
    ) -> None:
        """Set the values of rows, between two steps; rows that don't exist are created.

        Optimizer states of rows that exist stay.

        Args:
            table: One of the optimizer's, without an accessor.
            ids: int64 [n], each once.
            values: float32 [n, D].
        """
        del table, ids, values  # a mode that defines nothing here trains no table of rows

    def prefetch_rows(
        self, table: SparseTable, ids: NDArray[np.int64]
    ) -> Future[Prefetched] | None:
        """Have rows that are on disk brought into the pservers' memory.

        None where no mode of its kind has rows on disk.

        Args:
            table: One of the optimizer's.
            ids: int64 [n], each once.
        """
        del table, ids
        return None  # a mode that defines nothing here has all rows in memory

    def discount(
        self, table: SparseTable, ids: NDArray[np.int64], amounts: NDArray[np.float32]
    ) -> None:
        """Subtract from rows what an export has of their ``delta_score``.

        Args:
            table: One of the optimizer's, with an accessor.
            ids: int64 [n], each once; those without a row, or with less, stay.
            amounts: float32 [n].
        """
        del table, ids, amounts  # a mode that defines nothing here trains no such table

    def takes_turn(self, number: int) -> bool:
        """Return whether this worker does what one of them is to do, or all at once in sync.

        Args:
            number: Of the occasion, the same in every worker.
        """
        del number
        return True

    def end_day(self) -> None:
        """Do what is to be done of a day before another one begins, between two steps."""
        return  # a mode that defines nothing here has sent the day with each step

    def evictable(
        self, table: SparseTable, as_of: AsOf, selection: Selection
    ) -> NDArray[np.int64]:
        """Return the ids of rows that are to go, between two steps: int64 [n].

        Args:
            table: One of the optimizer's, whose rows have a value.
            as_of: At what time.
            selection: Asks for what it has to know of the rows.
        """
        del table, as_of, selection
        return np.empty(0, np.int64)  # a mode that defines nothing here trains no such table

    def num_rows(self, table: SparseTable) -> int:
        """Return how many rows a table has in the job, between two steps.

        Args:
            table: As of ``evictable``.
        """
        del table
        return 0

    @abstractmethod
    def finish(self) -> None:
        """Bring everything that waits to the servers, and end like every other worker.

        Called once, by every worker; all hold the servers' values afterwards.
        """

    @abstractmethod
    def depart(self) -> None:
        """Bring everything that waits to the servers, and leave the others to go on."""

    @abstractmethod
    def adjust(self, mode: TrainingMode) -> None:
        """Go on in the same mode with other ``k_steps`` or another ``max_staleness``."""

    def wait_exchanged(self) -> None:
        """Wait for exchanges in flight, and take in what they brought.

        Raises:
            FleetError: why an exchange failed.
        """
        return  # a mode that defines nothing here exchanges nothing beside the training

    @property
    def pushes_in_flight(self) -> int:
        """Return how many pushes are on their way, where the training doesn't wait for them."""
        return 0

    @property
    def unapplied_steps(self) -> int:
        """Return how many steps wait to be pushed, or for the answer to their push."""
        return 0

    @property
    def serving(self) -> Expecting | None:
        """Return who pulls the rows of lookups; None where none travel."""
        return None

    @property
    def passes(self) -> PassBacking | None:
        """Return where rows of passes over data come from; None where there are no passes."""
        return None

    def begins_anew(self, *, kept: bool, saved: bool, served: bool) -> bool:
        """Return whether this process has states of a table that no checkpoint brings back.

        Args:
            kept: Whether its optimizer keeps states of the table.
            saved: Whether the checkpoint that was loaded has some.
            served: Whether pservers could run the optimizer.
        """
        del kept, saved, served
        return False  # where pservers step, all states are theirs

    def saved_at(self) -> dict[str, int]:
        """Return fields of a request to save: which version, where there is a common one."""
        return {}

    def own_states(self) -> Sequence[TableSpec]:
        """Return tables with states of each worker's own that a checkpoint can hold."""
        return ()


def collect_tables(optimizer: torch.optim.Optimizer) -> ModelTables:
    """Sort an optimizer's parameters into tables: one per embedding, one dense per group.

    Those of a group that are frozen have a dense table of their own, which sleeps until one of
    them is thawed: nothing of it travels with a step.

    Raises:
        TableSharedLateError: if two tables have one name.
        UninitializedParameterError: if a lazy module has no shape yet.
    """
    sparse: dict[str, tuple[SparseTable, dict[str, Any]]] = {}
    dense: list[tuple[DenseBlock, dict[str, Any]]] = []
    for number, group in enumerate(optimizer.param_groups):
        learning: list[torch.Tensor] = []
        frozen: list[torch.Tensor] = []
        for parameter in group["params"]:
            table = table_of(parameter)
            if table is not None:
                first, _ = sparse.setdefault(table.name, (table, group))
                if first is not table:
                    raise TableSharedLateError(table=table.name)
            else:
                if is_lazy(parameter):
                    raise UninitializedParameterError
                (learning if parameter.requires_grad else frozen).append(parameter)
        awake = DenseBlock(f"dense_{number}", learning)
        asleep = DenseBlock(f"dense_{number}_frozen", frozen, is_asleep=True)
        dense += [(block, group) for block in (awake, asleep) if block.size]
    return ModelTables(sparse=tuple(sparse.values()), dense=tuple(dense))


def learning_rate(group: dict[str, Any]) -> float:
    """Return a group's learning rate, of any kind of number; 0 if its optimizer has none."""
    return float(group.get("lr", 0.0))


def check_rates(tables: ModelTables, *, step: int) -> None:
    """Look at every learning rate.

    Raises:
        LearningRateError: naming the first table whose rate isn't in its range.
    """
    groups = [(table.name, group) for table, group in tables.sparse]
    groups += [(block.name, group) for block, group in tables.dense]
    for name, group in groups:
        rate = learning_rate(group)
        if not 0 <= rate <= MAX_LEARNING_RATE:
            raise LearningRateError(table=name, step=step + 1, rate=rate)


def check_gradients(tables: ModelTables, *, step: int) -> None:
    """Look at every learning rate and pending gradient before anything is changed.

    Raises:
        LearningRateError: naming the first table whose rate isn't in its range.
        GradientError: naming the first table with a NaN, an infinity or a number too large.
        AccessorOptionError: naming the first table with a row that has no show.
    """
    check_rates(tables, step=step)
    for table, _ in tables.sparse:
        gradient = table.gradient
        _check_finite([] if gradient is None else [gradient], table=table.name, step=step)
        if wrong := table.num_miscounted():
            raise AccessorOptionError(
                option="show",
                value=f"0 or less for {wrong} rows of table {table.name!r}",
                rule="let every lookup of it go through fleet.nn.continuous_value_model",
            )
    for block, _ in tables.dense:
        gradients = [p.grad for p in block.parameters if p.grad is not None]
        _check_finite(gradients, table=block.name, step=step)


def _check_finite(gradients: list[torch.Tensor], *, table: str, step: int) -> None:
    """Pass if every value is finite and not too large.

    Their norm comes first, which costs one read: no value is larger.

    Raises:
        GradientError: naming the table.
    """
    norm = torch.linalg.vector_norm
    if all(norm(gradient).item() < LARGEST_GRADIENT for gradient in gradients):
        return
    count = sum(int((~(g.abs() < LARGEST_GRADIENT)).sum()) for g in gradients)
    if count:
        raise GradientError(table=table, step=step + 1, count=count)
