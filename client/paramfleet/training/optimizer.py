"""The optimizer that training code holds: torch's, stepping through a mode.

It is a ``torch.optim.Optimizer`` over the same parameter groups, so that
learning-rate schedulers, ``clip_grad_norm_`` and ``zero_grad`` work on it. What a
step does is the mode's business.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NoReturn, overload

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from paramfleet.config.errors import CallOrderError
from paramfleet.config.strategy import TrainingMode
from paramfleet.tables.combined import GroupAddedError
from paramfleet.tables.row_store import RowStore
from paramfleet.tables.rules import check_options, keeps_states
from paramfleet.tables.sparse import SparseTable
from paramfleet.telemetry.step_times import StepTimes
from paramfleet.training.evicting.looks import Looks
from paramfleet.training.evicting.retaining import give_accessors, retain
from paramfleet.training.job import Staleness
from paramfleet.training.localsgd.alone import localsgd_alone
from paramfleet.training.localsgd.core.ledger import Ledger
from paramfleet.training.modes.base import LearningRateError, Mode, collect_tables
from paramfleet.training.modes.local import LocalMode
from paramfleet.training.modes.prefetching.ahead import Ahead, Expecting
from paramfleet.training.modes.prefetching.disk_rows import PrefetchedRows
from paramfleet.training.passes.backing import PassOpenError
from paramfleet.training.stepping.groups import (
    check_added,
    check_closure,
    check_states,
    load_in_place,
    warn_of_states,
)
from paramfleet.training.stepping.guarding import Guarding
from paramfleet_shared.errors import ContractError
from paramfleet_shared.system.gc_tuning import freeze
from paramfleet_shared.tables.encoding import Encoded, is_finite, num_nonfinite
from paramfleet_shared.tables.spec import TableSpec
from paramfleet_shared.values.bounds import (
    GRADIENT_LOG2,
    LARGEST_GRADIENT,
    MAX_LEARNING_RATE,
    MAX_WEIGHT,
)

__all__ = [
    "DistributedOptimizer",
    "ExamplesError",
    "LoadIncompleteError",
    "NotAnOptimizerError",
    "NotStartedError",
    "RowWriteError",
    "TableUnknownError",
    "TrainingFinishedError",
]


class NotStartedError(ContractError):
    """A step was taken before the worker had joined the tables."""

    code = "contract.not_started"
    sentence = "this worker has no tables yet: call fleet.init_worker() before training"


class NotAnOptimizerError(ContractError):
    """``fleet.distributed_optimizer`` got something else."""

    code = "contract.not_an_optimizer"
    got: str
    sentence = (
        "fleet.distributed_optimizer takes a torch.optim.Optimizer with the parameters of the "
        "whole model, or a list of several, and not {got}"
    )


class ExamplesError(ContractError):
    """A step was to count for a number of examples that no mean can use."""

    code = "contract.examples"
    examples: float

    @override
    def describe(self) -> str:
        allowed = f"must be from 0 to {MAX_WEIGHT:g}"
        return f"step(examples={self.examples}): {allowed}; nothing was changed"


class LoadIncompleteError(ContractError):
    """A load failed when some of the job had loaded; until another one nothing may go on."""

    code = "contract.load_incomplete"
    folder: str
    reason: str
    sentence = (
        "the load of {folder} failed in part, so that servers and workers may hold values of "
        "different trainings: {reason}; call fleet.load_model() in every worker, or start the "
        "job again"
    )


class RowWriteError(ContractError):
    """Rows can't be given these values, or not now; nothing was changed."""

    code = "contract.row_write"
    table: str
    rule: str
    sentence = "rows of table {table!r} can't be written: {rule}; nothing was changed"


class TableUnknownError(ContractError):
    """A table was named that the optimizer doesn't train."""

    code = "contract.table_unknown"
    table: str
    known: str
    sentence = "the optimizer trains no table {table!r} of rows; it trains: {known}"


class TrainingFinishedError(ContractError):
    """A step was taken after this worker had finished its training."""

    code = "contract.training_finished"
    sentence = (
        "this worker has finished its training: take every step before "
        "fleet.finish_training() and fleet.stop_worker()"
    )


class DistributedOptimizer(torch.optim.Optimizer):
    """Made by ``fleet.distributed_optimizer``.

    Args:
        inner: The torch optimizer over the model's parameters.
        mode: The mode the strategy chose; ``local`` trains in this process.
        count_examples: Returns, and forgets, how many examples were forwarded since
            the last call.
        times: Where this worker's time goes.
        between_steps: Called after each step.

    Raises:
        OptimizerOptionError: if an option is a number that no training can use.
        ClosureOptimizerError: if it is one that needs a closure.
    """

    def __init__(
        self,
        inner: torch.optim.Optimizer,
        mode: TrainingMode,
        count_examples: Callable[[], int],
        times: StepTimes,
        between_steps: Callable[[], None] = lambda: None,
    ) -> None:
        check_options(inner)
        check_closure(inner)
        self._is_made = False
        super().__init__(inner.param_groups, inner.defaults)
        self.inner = inner
        self.param_groups = inner.param_groups
        self._num_groups = len(self.param_groups)
        self._is_made = True
        self._has_warned = False
        """Whether a warning has named the states that ``state_dict`` lacks."""
        self.mode = mode
        self.tables = collect_tables(inner)
        give_accessors(self.tables.sparse, mode.accessors)
        retain(inner, self.tables.sparse, mode.eviction)
        self.num_steps = 0
        """Steps taken by this worker."""
        self.num_begun = 0
        """As many, and the one that is being taken."""
        self.times = times
        self.last_loss: torch.Tensor | None = None
        """What ``minimize`` was given last, without its graph."""
        self.step_loss: torch.Tensor | float | None = None
        """Loss of the step in progress, if the script said it."""
        self._count_examples = count_examples
        self._mode: Mode | None = None
        self.is_finished = False
        """Whether this worker takes no more steps."""
        self._incomplete: dict[str, str] = {}
        """Of a load that failed in part: the folder, and why."""
        self._staleness = Staleness()
        self._between_steps = between_steps
        self.guard = None if mode.guard is None else Guarding(mode.guard)
        """Watches losses and gradients; None without ``guard_configs``."""
        self._looks = Looks(
            lambda: [table for table, _ in self.tables.sparse], lambda: self.running
        )
        if mode.name == "local":
            self._mode = self._local()
            self._let_passes_evict(self._mode)
            self._let_weights_write()
            times.begin()

    def bind(self, mode: Mode, staleness: Staleness) -> None:
        """Step through ``mode`` from now on."""
        self._mode = mode
        self._let_passes_evict(mode)
        self.tables = mode.tables or self.tables
        self._let_weights_write()
        self._staleness = staleness
        self.is_finished = False
        if self.guard is not None:
            self.guard.keep_buffers()
        freeze()
        self.times.begin()

    def _let_passes_evict(self, mode: Mode) -> None:
        if mode.passes is not None:
            mode.passes.eviction = self._looks

    def _let_weights_write(self) -> None:
        """Write through this optimizer; first rows are in the table or on the pservers now."""
        for table, _ in self.tables.sparse:
            table.write, table.first_rows = self.write_rows, []

    def finish(self) -> None:
        """End the training of this worker, as ``fleet.finish_training`` promises."""
        self.running.finish()
        self.times.end()
        self.is_finished = True

    def depart(self) -> None:
        """End the training of this worker; the other workers continue."""
        self.running.depart()
        self.times.end()
        self.is_finished = True

    def adjust(self, name: str, value: Any) -> None:
        """Change a setting between two steps.

        Args:
            name: ``lr``, of every parameter group, or ``k_steps`` or ``max_staleness``.
            value: What it is to be.

        Raises:
            LearningRateError: if it is none that can be used; nothing was changed.
        """
        if name == "lr":
            rate = float(value)
            if not 0 <= rate <= MAX_LEARNING_RATE:
                raise LearningRateError(table="every table", step=self.num_steps + 1, rate=rate)
            for group in self.param_groups:
                group["lr"] = rate
            return
        self.mode = replace(self.mode, **{name: value})
        self.running.adjust(self.mode)

    def go_on_from(self, steps: int, days: Mapping[str, int] | None = None) -> None:
        """Count from the steps that a checkpoint's model has taken.

        Args:
            steps: They.
            days: Which day it is, of tables that count days by saves.
        """
        self.num_steps = self.num_begun = steps
        for table, _ in self.tables.sparse:
            table.step = steps
            if days is not None and table.counts_days:
                table.day = days.get(table.name, table.day)
        self.running.fresh.go_on_from(steps)

    def counted_days(self) -> dict[str, int]:
        """Return which day it is, of tables that count days by saves, by their names."""
        return {table.name: table.day for table, _ in self.tables.sparse if table.counts_days}

    @contextmanager
    def loading(self, folder: str) -> Generator[None, None, None]:
        """Take no step any more if the block fails, until ``end_load``."""
        try:
            yield
        except BaseException as error:
            self._incomplete = {"folder": folder, "reason": str(error) or repr(error)}
            raise

    def end_load(self) -> None:
        """Note that a whole checkpoint was loaded."""
        self._incomplete = {}

    def check_loaded(self) -> None:
        """Pass if no load has failed in part.

        Raises:
            LoadIncompleteError: naming it.
        """
        if self._incomplete:
            raise LoadIncompleteError(**self._incomplete)

    @property
    def started(self) -> bool:
        """Whether it can step: always alone, else after ``fleet.init_worker``."""
        return self._mode is not None

    @property
    def running(self) -> Mode:
        """The mode that steps.

        Raises:
            NotStartedError: before ``fleet.init_worker``.
        """
        if self._mode is None:
            raise NotStartedError
        return self._mode

    @overload
    def step(
        self,
        closure: None = None,
        *,
        examples: int | None = None,
        loss: torch.Tensor | float | None = None,
    ) -> None: ...
    @overload
    def step(
        self,
        closure: Callable[[], float],
        *,
        examples: int | None = None,
        loss: torch.Tensor | float | None = None,
    ) -> float: ...
    @override
    def step(
        self,
        closure: Callable[[], float] | None = None,
        *,
        examples: int | None = None,
        loss: torch.Tensor | float | None = None,
    ) -> float | None:
        """Take one step with the gradients that ``backward`` left.

        Args:
            closure: Computes the loss and its gradients, as in torch.
            examples: Examples in this worker's batch: sync weighs the workers' gradients by
                it. If not given, the first dimension of the first tensor that the model was
                called with since the last step; say it where that isn't the batch.
            loss: Of the batch, which adaptive LocalSGD asks for. A closure returns it.

        Raises:
            NotStartedError: before ``fleet.init_worker``.
            ExamplesError: if ``examples`` is no weight that a mean can use.
            TrainingFinishedError: after ``fleet.finish_training``.
            LoadIncompleteError: after a load that succeeded in part.
            GradientError: if a gradient is NaN, infinite or too large; nothing was changed.
            LearningRateError: if a learning rate can't be used; nothing was changed.
            GuardError: if a guard of the strategy ends the training.
            GuardLossError: if a guard needs the loss.
            FleetError: if the job failed or a peer didn't answer in time.
        """
        if self.is_finished:
            raise TrainingFinishedError
        self.check_loaded()
        self._take_groups()
        if examples is not None and not 0 <= examples <= MAX_WEIGHT:
            raise ExamplesError(examples=examples)
        returned = None
        if closure is not None:
            with torch.enable_grad():
                returned = closure()
        self.step_loss = returned if loss is None else loss
        seen = self._count_examples()
        count = seen if examples is None else examples
        self.times.forward()
        self._begin_step()
        if examples == 0 or not self._is_outside():
            self.running.step(examples=count)
        else:
            self.running.skip()
        for table, _ in self.tables.sparse:
            table.end_step()
        self._end_step(count)
        return returned

    def take_others_step(self) -> None:
        """Take part in a step of other workers of sync, without a batch.

        Gradients and rows of this worker stay as they are.

        Raises:
            FleetError: as ``step``.
        """
        self.step_loss = None
        self._begin_step()
        self.running.take_others_step()
        self._end_step(0)

    def _begin_step(self) -> None:
        self.num_begun = self.num_steps + 1
        for table, _ in self.tables.sparse:
            table.step = self.num_begun

    def _end_step(self, examples: int) -> None:
        self.num_steps += 1
        self.times.end_step(examples=examples)
        if not self._is_on_device:
            self._looks.after_step(self.num_steps)
        self._between_steps()

    @property
    def has_gradients(self) -> bool:
        """Whether rows have gradients that wait for their step."""
        return any(
            table.gradient is not None and not table.is_stepped
            for table, _ in self.tables.sparse
        )

    def _is_outside(self) -> bool:
        """Return whether a guard leaves out the step in progress; its gradients are gone then.

        Raises:
            GuardError: if it ends the training.
            GuardLossError: if it needs the loss.
        """
        if self.guard is None:
            return False
        tables = [table for table, _ in self.tables.sparse]
        own = {id(table.weight) for table in tables}
        parameters = (
            each
            for group in self.param_groups
            for each in group["params"]
            if id(each) not in own
        )
        is_outside = self.guard.look(tables, parameters, self.step_loss, step=self.num_begun)
        if is_outside:
            self.step_loss = self.guard.mean_loss  # what an adaptive period is chosen by
        return is_outside

    def minimize(self, loss: torch.Tensor, *, examples: int | None = None) -> None:
        """Run ``loss.backward()``, ``step(examples=examples)`` and ``zero_grad()``."""
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.last_loss = loss.detach()
        self.step(examples=examples, loss=self.last_loss)
        self.zero_grad()

    @override
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients; the rows of the last batch are let go in any case.

        Args:
            set_to_none: Else they are zeros, as in torch: a parameter that the next batch
                doesn't use is stepped by them, and a table of rows counts the step.
        """
        for table, _ in self.tables.sparse:  # first: its numbers may still be on their way
            if set_to_none:
                table.gradient = None
            else:
                table.zero_gradient()
        super().zero_grad(set_to_none=set_to_none)

    def remove_rows(self, table: str, ids: NDArray[np.int64]) -> int:
        """Remove rows of a table, as ``fleet.remove_rows`` promises.

        Args:
            table: Its name.
            ids: int64 [n], each once.

        Raises:
            TrainingFinishedError: after ``fleet.finish_training``.
            TableUnknownError: if there is none of that name.
            LoadIncompleteError: after a load that succeeded in part.
            CallOrderError: if gradients wait for their step.
            FleetError: as ``fleet.remove_rows``.
        """
        mode = self.running
        named = self._named(table)
        self._check_removal("remove_rows")
        return mode.remove(named, ids)

    def write_rows(
        self, table: SparseTable, ids: NDArray[np.int64], values: NDArray[np.float32]
    ) -> None:
        """Set the values of rows, between two steps; rows that don't exist are created.

        Optimizer states of rows that exist stay, as torch keeps them.

        * sync: every worker calls it between the same two steps, for the same tables in the
          same order. The ids and values of the lowest rank count.
        * async and GEO: a worker calls it at any time; the last writer's values hold.
        * gpubox: between two passes.

        Args:
            table: One of ``tables``.
            ids: int64 [n], each once.
            values: float32 [n, D].

        Raises:
            NotStartedError: before ``fleet.init_worker``.
            TrainingFinishedError: after ``fleet.finish_training``.
            TableUnknownError: if the optimizer doesn't train the table.
            LoadIncompleteError: after a load that succeeded in part.
            RowWriteError: if gradients wait for their step, the rows have an accessor, or the
                values have another shape, or are NaN, infinite or too large.
            WriteNotSharedError: in sync, if another worker took its step instead, or writes
                rows of another table; nothing is written.
            PassOpenError: during a pass.
            CapacityError: if a pserver has no room for new rows.
            FleetError: if the job failed or a pserver didn't answer in time; some rows may be
                written, and the call may be repeated.
        """
        mode = self.running
        named = self._named(table.name)
        self.check_loaded()
        if (waiting := self._waiting()) is not None:
            self._refuse_write(
                named,
                f"gradients of table {waiting.name!r} wait for their step: take it, or forget "
                "them with zero_grad()",
            )
        if named.accessor is not None:
            self._refuse_write(named, "its rows count their use (accessor_class): load a model")
        if values.dtype != np.float32 or values.shape != (len(ids), named.dim):
            expected = f"float32 [{len(ids)}, {named.dim}]"
            got = f"{values.dtype} {list(values.shape)}"
            self._refuse_write(named, f"values must be {expected}, and are {got}")
        numbers = Encoded(values)
        if not is_finite(numbers, "float32", log2=GRADIENT_LOG2):
            num_wrong = num_nonfinite(numbers, "float32", log2=GRADIENT_LOG2)
            limit = f"{LARGEST_GRADIENT:.3g}"
            self._refuse_write(
                named, f"{num_wrong} values are NaN, infinite or not below {limit} in size"
            )
        mode.write(named, ids, values)

    def _refuse_write(self, table: SparseTable, rule: str) -> NoReturn:
        """Refuse to write rows.

        Raises:
            RowWriteError: always.
        """
        raise RowWriteError(table=table.name, rule=rule)

    def prefetch_rows(self, table: str, ids: NDArray[np.int64]) -> PrefetchedRows:
        """Have rows brought into memory, as ``fleet.prefetch_rows`` promises.

        Args:
            table: Its name.
            ids: int64 [n], each once.

        Raises:
            TrainingFinishedError: after ``fleet.finish_training``.
            TableUnknownError: if there is none of that name.
            NotStartedError: before ``fleet.init_worker``.
        """
        mode = self.running
        return PrefetchedRows(mode.prefetch_rows(self._named(table), ids))

    def _named(self, table: str) -> SparseTable:
        """Return a table of rows, while it is trained.

        Raises:
            TrainingFinishedError: after ``fleet.finish_training``.
            TableUnknownError: if there is none of that name.
        """
        if self.is_finished:
            raise TrainingFinishedError
        tables = {each.name: each for each, _ in self.tables.sparse}
        if table not in tables:
            raise TableUnknownError(table=table, known=", ".join(tables) or "none")
        return tables[table]

    def _check_removal(self, function: str) -> None:
        """Pass if rows may be removed now.

        Raises:
            LoadIncompleteError: after a load that succeeded in part.
            CallOrderError: if gradients wait for their step.
        """
        self.check_loaded()
        if (table := self._waiting()) is not None:
            remedy = (
                f"call it between two steps: gradients of table {table.name!r} wait for "
                "their step; take it, or forget them with zero_grad()"
            )
            raise CallOrderError(function=function, remedy=remedy)

    def _waiting(self) -> SparseTable | None:
        """Return a table whose gradients wait for their step; None if there is none."""
        for table, _ in self.tables.sparse:
            if table.gradient is not None and not table.is_stepped:
                return table
        return None

    def shrink(self, table: SparseTable, *, dry_run: bool) -> int:
        """Remove rows of a table that have expired or are too many, as ``fleet.shrink`` does.

        Args:
            table: One of ``tables``, whose rows have a value.
            dry_run: Only count them.

        Raises:
            TrainingFinishedError: after ``fleet.finish_training``.
            LoadIncompleteError: after a load that succeeded in part, unless they are counted.
            CallOrderError: if gradients wait for their step, unless they are counted.
            FleetError: as ``fleet.shrink``.
        """
        if self.is_finished:
            raise TrainingFinishedError
        if not dry_run:
            self._check_removal("shrink")
        return self._looks.shrink(table, dry_run=dry_run)

    def wait_exchanged(self) -> None:
        """GEO, LocalSGD: wait for exchanges in flight, and take in what they brought."""
        self.running.wait_exchanged()

    def staleness_p99(self) -> float:
        """Return the 99th percentile of this worker's lead over the slowest, in batches."""
        return self._staleness.percentile(99)

    @property
    def staleness(self) -> int:
        """This worker's newest lead over the slowest push it had seen, in batches."""
        return self._staleness.last

    @property
    def staleness_counts(self) -> dict[str, int]:
        """How many samples of ``staleness`` there are, by powers of two."""
        return self._staleness.counts()

    @property
    def ahead(self) -> Ahead | None:
        """Where the mode takes requests for rows to come; None where none travel."""
        return None if self.serving is None else self.serving.ahead

    @property
    def is_in_pass(self) -> bool:
        """Whether a pass is open that the pservers know nothing of: nothing can be saved."""
        passes = None if self._mode is None else self._mode.passes
        return passes is not None and passes.only_in_passes and self._is_on_device

    @property
    def _is_on_device(self) -> bool:
        """Whether the rows of a pass are on a device."""
        passes = None if self._mode is None else self._mode.passes
        if passes is None:
            return False
        try:
            passes.check_no_pass("save_persistables")
        except PassOpenError:
            return True
        return False

    @property
    def serving(self) -> Expecting | None:
        """The mode, if its lookups pull rows; None where none travel."""
        return None if self._mode is None else self._mode.serving

    @property
    def ledger(self) -> Ledger | None:
        """What LocalSGD's exchanges cost so far; None in other modes."""
        return None if self._mode is None else self._mode.ledger

    @property
    def own_states(self) -> Sequence[TableSpec]:
        """Tables whose states are each worker's own, and that a checkpoint can hold."""
        return self.running.own_states()

    @property
    def pushes_in_flight(self) -> int:
        """Pushes of async that are on their way to the pservers."""
        return 0 if self._mode is None else self._mode.pushes_in_flight

    @property
    def unapplied_steps(self) -> int:
        """Steps of async that wait to be pushed, or for the answer to their push."""
        return 0 if self._mode is None else self._mode.unapplied_steps

    @property
    def prefetch_misses(self) -> int:
        """Lookups under ``fleet.prefetch`` whose rows were not at hand."""
        return 0 if self.ahead is None else self.ahead.num_misses

    @override
    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Train more parameters, as in torch; in a job only before ``fleet.init_worker``.

        Raises:
            GroupAddedError: after ``fleet.init_worker``, or if the group has rows or is given
                to combined optimizers or to LocalSGD.
        """
        if not self._is_made:
            super().add_param_group(param_group)
            return
        self.inner.add_param_group(param_group)
        self._take_groups()

    def _take_groups(self) -> None:
        """Train groups that the optimizer got after this one was made.

        Raises:
            GroupAddedError: if that is too late; the groups are taken out again.
        """
        if len(self.param_groups) == self._num_groups:
            return
        mode = self._mode
        is_late = mode is not None and (
            self.mode.name != "local" or self.mode.apart is not None
        )
        try:
            check_added(self.param_groups[self._num_groups :], is_late=is_late)
        except GroupAddedError:
            del self.param_groups[self._num_groups :]
            raise
        self._num_groups = len(self.param_groups)
        self.tables = collect_tables(self.inner)
        if isinstance(mode, LocalMode):
            mode.take_tables(self.tables)

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return groups and states, except states that pservers or tables of rows keep.

        A warning, ``worker.optimizer_state_partial``, names their tables once;
        ``fleet.save_persistables`` saves all states.
        """
        lacking = [] if self._has_warned else self._states_elsewhere()
        if lacking:
            self._has_warned = True
            warn_of_states(self.inner, lacking)
        return self.inner.state_dict()

    def _states_elsewhere(self) -> list[str]:
        """Return the tables whose states ``state_dict`` lacks."""
        tables = [(table.name, group) for table, group in self.tables.sparse]
        if self._is_served:
            tables += [(block.name, group) for block, group in self.tables.dense]
        return [name for name, group in tables if keeps_states(self.inner, group)]

    @property
    def _is_served(self) -> bool:
        """Whether pservers step all tables and keep their states."""
        return self.mode.name in {"sync", "async", "gpubox"}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned.

        Raises:
            OptimizerStateError: if it holds states that pservers or tables of rows keep;
                nothing was changed.
        """
        check_states(self.inner, state_dict, all_elsewhere=self._is_served)
        load_in_place(self.inner, state_dict)

    @override
    def __repr__(self) -> str:
        return f"DistributedOptimizer({self.mode.name}, {self.inner!r})"

    def _local(self) -> LocalMode:
        stores = []
        for table, _ in self.tables.sparse:
            former, store = table.local, RowStore.of(table)
            if former is not None:  # rows of an optimizer that was made before
                ids = former.live_ids().copy()
                store.write(ids, table.read(ids))
            table.bind(store)
            stores.append(store)
        apart = None
        if self.mode.apart is not None:
            apart = localsgd_alone(self.inner, self.mode.apart, self.tables)
        return LocalMode(
            self.inner, self.tables, stores, apart=apart, loss=lambda: self.step_loss
        )
