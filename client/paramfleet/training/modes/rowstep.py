"""Step rows of a ``RowStore`` as the user's optimizer would.

An optimizer that pservers run steps rows by their kernels, in place, from one gradient
a row: the same arithmetic as torch's, to rounding. ``torch.optim.Adam`` means
``torch.optim.SparseAdam`` here, too.

Any other optimizer steps them itself. Before a step the placeholder gets the rows of
the batch and their optimizer state; after it both go back to the store. So every
elementwise optimizer works, and only rows of the batch move (the lazy variant).

Shape legend: U = unique ids, D = row width, C = width of a state: D, or 1.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from paramfleet.tables.combined import part_of
from paramfleet.tables.dense import DenseBlock
from paramfleet.tables.device.source import DeviceSource
from paramfleet.tables.devices import to_device, to_host
from paramfleet.tables.row_store import RowStore, spec_of
from paramfleet.tables.rules import (
    OptimizerNotServedError,
    needs_kernels,
    refused_here,
    rule_of_rows,
)
from paramfleet.tables.sparse import SparseTable
from paramfleet.training.modes.base import learning_rate
from paramfleet_shared.tables.kernels.basics.compiled import as_input
from paramfleet_shared.tables.kernels.firsts import firsts_of
from paramfleet_shared.tables.kernels.replica import step_slots
from paramfleet_shared.tables.kernels.stepping.ctr import (
    CtrTable,
    ctr_step_of,
    step_ctr_rows,
)
from paramfleet_shared.tables.kernels.stepping.rules import step_of
from paramfleet_shared.tables.rows.batch import RowBatch
from paramfleet_shared.tables.rows.ctr import ctr_layout_of
from paramfleet_shared.tables.rows.evicting import seen_after
from paramfleet_shared.tables.rows.layout import RowLayout
from paramfleet_shared.tables.rules.record import Moment
from paramfleet_shared.tables.spec import SEEN, OptimizerSpec, TableSpec

__all__ = ["RowStepper", "forget_states", "step_rows"]


class RowStepper:
    """Steps the rows of one table.

    Args:
        optimizer: The user's optimizer.
        group: Its parameter group that holds the table's placeholder.
        table: The table.
        store: Where its rows live.
        steps_at_once: Steps of the whole job that one of this worker counts for, N. Adam weighs
            a row's moments by the steps since the beginning, and most rows are stepped seldom:
            a worker that counted only its own would move them less than one process does.
        for_all: Whether Adam's moments of a row stand for the gradients of all workers, though
            one has an N-th part of them: they decay in one step as in N.

    Raises:
        OptimizerNotServedError: if it is one whose rows kernels alone step, as ``Adam``, with
            an option that rows don't have.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        group: dict[str, Any],
        table: SparseTable,
        store: RowStore,
        *,
        steps_at_once: int = 1,
        for_all: bool = False,
    ) -> None:
        self._steps_at_once = steps_at_once
        self._for_all = for_all
        self._decays_at_once = 1
        """Steps of the user's rule by which moments decay in one step here."""
        self.table = table
        self.store = store
        self._optimizer = optimizer = part_of(optimizer, group)
        self._group = group
        self._num_steps = 0
        """Steps of this table in the whole job, those before a checkpoint included."""
        self._options: dict[str, Any] | None = None
        self._rule: OptimizerSpec | None = None
        self._lent: NDArray[np.int64] | None = None
        self._hidden: torch.Tensor | None = None
        self._first: dict[str, NDArray[np.float32]] = {}
        self._counts_steps: Callable[[int], Any] | None = None
        self.device: DeviceSource | None = None
        """Has the rows of a pass over data while there is one; the store's aren't stepped."""
        if table.kept_as.tracks != "none":
            self._keep({SEEN.name: np.zeros(1, np.float32)})
        if table.accessor is None and not needs_kernels(optimizer):
            first, self._counts_steps = _first_states(optimizer, group, table.dim)
            self._keep(first)
        self._current_rule()

    def served_spec(self) -> TableSpec:
        """Return the table with the rule of pservers that steps its rows here.

        Raises:
            OptimizerNotServedError: if there is none.
        """
        rule = self._current_rule() or rule_of_rows(self._optimizer, self._group, self.table)
        return spec_of(self.table, rule=rule)

    @property
    def num_steps(self) -> int:
        """Return the steps of this table in the whole job, as its rows count them."""
        return self._num_steps

    def begin(self) -> NDArray[np.int64] | None:
        """Step the pending rows, or lend them to the optimizer, whose step comes next.

        Returns:
            The rows' slots; None if no gradient is pending.

        Raises:
            OptimizerNotServedError: if the optimizer's options became such as rows don't
                have.
        """
        if self.device is not None:
            self._step_on_device(self.device)
            return None
        table = self.table
        pending = table.pending()
        if pending is None:
            if table.has_gradient:  # of padding alone: a step without rows
                self._num_steps += self._steps_at_once
            self._hidden, table.gradient = table.gradient, None
            return None
        pending = self.store.admitted(pending)
        slots = self.store.slots(pending.ids)
        rule = self._current_rule()
        if rule is None:
            self._lend(slots, pending)
        else:
            self._step(rule, slots, pending)
            self._hidden, table.gradient = table.gradient, None
        if self.table.kept_as.tracks != "none":
            seen = self.store.column(SEEN.name)
            half_life = self.table.kept_as.half_life
            seen[slots] = seen_after(seen[slots], self.table.now, half_life)
        self._num_steps += self._steps_at_once
        return slots

    def end(self) -> None:
        """Take back what ``begin`` lent or hid, after the optimizer's step."""
        if self._lent is None:
            self.table.gradient, self._hidden = self._hidden, None
            return
        weight = self.table.weight
        slots, self._lent = self._lent, None
        rows, weight.is_lent = weight.memory, False
        weight.set_memory(rows.new_empty((0, rows.shape[1])))
        self.store.values[slots] = to_host(rows, dtype=torch.float32).numpy()
        state = self._optimizer.state[weight]
        for name in self._first.keys() - {SEEN.name}:
            self.store.column(name)[slots] = to_host(state[name], dtype=torch.float32).numpy()

    def forget_states(self) -> None:
        """Give every row the states of one that was never trained."""
        for name, first in self._first.items():
            self.store.column(name)[: self.store.num_slots] = first
        self._optimizer.state.pop(self.table.weight, None)
        self._num_steps = 0

    def restore(
        self,
        slots: NDArray[np.int64],
        columns: Mapping[str, NDArray[np.float32]],
        *,
        steps: int,
    ) -> None:
        """Set optimizer states of rows, as a checkpoint kept them.

        Args:
            slots: Where the rows are.
            columns: float32 [U, C] by the name of the state.
            steps: Steps that the optimizer had taken; 0 leaves the state new, but that of rows
                with an accessor, which don't count by them.
        """
        if not steps and self.table.accessor is None:
            return
        for name, values in columns.items():
            self.store.column(name)[slots] = values
        self._num_steps = steps

    def _keep(self, first: Mapping[str, NDArray[np.float32]]) -> None:
        """Give every row the states that it hasn't yet."""
        for name in [n for n in first if n not in self._first]:
            self.store.add_column(name, first[name])
            self._first[name] = first[name]

    def _current_rule(self) -> OptimizerSpec | None:
        """Return the rule that kernels step by; None if the optimizer must do it."""
        options = {k: v for k, v in self._group.items() if k not in {"params", "lr"}}
        if options != self._options:
            self._options = options
            rule = _rule_of(self._optimizer, options, self.table)
            if self._for_all and rule is not None and rule.rule == "adam":
                self._decays_at_once = self._steps_at_once
                rule = _decaying(rule, self._decays_at_once)
            self._rule = rule
            if rule is not None:
                states = RowLayout.of_states(rule, self.table.dim)
                self._keep({name: states.first[span] for name, span in states.spans.items()})
        return self._rule

    def _step(self, rule: OptimizerSpec, slots: NDArray[np.int64], pending: RowBatch) -> None:
        if rule.num_counts:
            self._step_counted(rule, slots, pending)
            return
        store, dim = self.store, self.table.dim
        grads = -pending.values if self._group.get("maximize") else pending.values
        rate = learning_rate(self._group)
        first = self._num_steps == 0
        step = self._num_steps // self._decays_at_once + 1
        numbers = step_of(rule, sparse=True, lr=rate, step=step, first=first)
        places = [store.place(column.name) for column in rule.columns]
        state, second = [*places, 0, 0][:2]
        layout = (dim, store.pitch, state, second)
        step_slots(numbers, store.flat, grads.reshape(-1), slots, layout)

    def _step_counted(
        self, rule: OptimizerSpec, slots: NDArray[np.int64], pending: RowBatch
    ) -> None:
        """Step rows that have an accessor, and count what they were used for."""
        store = self.store
        step_ctr_rows(
            ctr_step_of(rule, lr=learning_rate(self._group), day=self.table.now),
            CtrTable(firsts_of(store.spec), store.flat, ctr_layout_of(rule, store.layout)),
            slots,
            as_input(pending.ids, np.int64).view(np.uint64),
            as_input(pending.values, np.float32).reshape(-1),
        )

    def _step_on_device(self, device: DeviceSource) -> None:
        """Step the pending rows where they are, and hide their gradients.

        Raises:
            OptimizerNotServedError: if the optimizer's options became such as rows don't have.
        """
        table, held = self.table, self.table.held()
        if held is not None:
            ids, grads = held
            rule = self._current_rule()
            if rule is None:
                raise OptimizerNotServedError(
                    optimizer=type(self._optimizer).__name__,
                    option="",
                    remedy="rows on a device are stepped by rules of pservers alone",
                )
            device.rows.train_by(rule)
            number = self._num_steps // self._decays_at_once + 1
            rate, is_first = learning_rate(self._group), self._num_steps == 0
            moment = Moment(rate, number, is_first, self.table.now)
            device.step(ids, -grads if self._group.get("maximize") else grads, moment)
        if self.table.has_gradient:
            self._num_steps += self._steps_at_once
        self._hidden, table.gradient = table.gradient, None

    def _lend(self, slots: NDArray[np.int64], pending: RowBatch) -> None:
        """Put rows and states into the placeholder."""
        weight = self.table.weight
        grads, self.table.gradient = self.table.gradient, None
        if grads is None or len(grads) != len(slots):  # some ids weren't admitted
            grads = _like(self.table, pending.values)
        weight.set_memory(_like(self.table, self.store.values[slots]))
        self.table.gradient, weight.is_lent = grads, True
        state = self._optimizer.state[weight]
        if state or self._num_steps:
            for name in self._first.keys() - {SEEN.name}:
                state[name] = _like(self.table, self.store.column(name)[slots])
            if self._counts_steps is not None:
                state["step"] = self._counts_steps(self._num_steps)
        self._lent = slots


def forget_states(
    optimizer: torch.optim.Optimizer,
    steppers: Iterable[RowStepper],
    blocks: Iterable[DenseBlock],
) -> None:
    """Begin anew with the states of rows and dense parameters, as after a load."""
    for stepper in steppers:
        stepper.forget_states()
    for block in blocks:
        for parameter in block.parameters:
            optimizer.state.pop(parameter, None)


def _like(table: SparseTable, rows: NDArray[np.float32]) -> torch.Tensor:
    """Return rows as a tensor of the table's device and type."""
    return to_device(torch.from_numpy(rows), table.device, dtype=table.dtype)


def step_rows(
    steppers: list[RowStepper], optimizer: torch.optim.Optimizer
) -> list[NDArray[np.int64] | None]:
    """Take one step of dense parameters and pending rows together.

    Returns:
        The slots that each stepper's rows live in; None where nothing was pending.
    """
    stepped = [stepper.begin() for stepper in steppers]
    try:
        optimizer.step()
    except BaseException:
        for stepper in steppers:
            stepper.table.weight.is_lent = False
        raise
    for stepper in steppers:
        stepper.end()
    return stepped


def _decaying(rule: OptimizerSpec, num_steps: int) -> OptimizerSpec:
    """Return Adam's rule with moments that decay in one step as in so many."""
    constants = rule.constants
    decays = {name: float(constants[name]) ** num_steps for name in ("beta1", "beta2")}
    return OptimizerSpec(rule=rule.rule, **{**constants, **decays})


def _rule_of(
    optimizer: torch.optim.Optimizer, options: Mapping[str, Any], table: SparseTable
) -> OptimizerSpec | None:
    known = dict(options)
    if table.accessor is None:
        known["maximize"] = False  # done by the gradient's sign
    try:
        return rule_of_rows(optimizer, known, table)
    except OptimizerNotServedError as error:
        if table.accessor is not None:
            raise
        if needs_kernels(optimizer):
            raise refused_here(error) from error
        return None


def _first_states(
    optimizer: torch.optim.Optimizer, group: dict[str, Any], dim: int
) -> tuple[dict[str, NDArray[np.float32]], Callable[[int], Any] | None]:
    """Return what an optimizer keeps beside a row.

    Returns:
        What each per-row state starts as, float32 [D], by the optimizer's name for
        it: what a step with a zero gradient leaves beside a zero row. And how the
        optimizer writes down a number of steps; None if it doesn't count them.

    Raises:
        OptimizerNotServedError: if it keeps states that rows share.
    """
    known = inspect.signature(type(optimizer)).parameters
    options = {key: value for key, value in group.items() if key in known and key != "params"}
    row = torch.nn.Parameter(torch.zeros(2, dim))
    probe = type(optimizer)([row], **options)
    row.grad = torch.zeros(2, dim)
    probe.step()
    state = probe.state[row]
    for value in state.values():
        if isinstance(value, torch.Tensor) and value.dim() and value.shape != row.shape:
            raise OptimizerNotServedError(
                optimizer=type(optimizer).__name__,
                option="",
                remedy="it has states that rows share; train tables by another optimizer",
            )
    first = {
        name: value[0].numpy().astype(np.float32)
        for name, value in state.items()
        if isinstance(value, torch.Tensor) and value.shape == row.shape
    }
    if "step" not in state:
        return first, None
    is_tensor = isinstance(state["step"], torch.Tensor)
    return first, (lambda steps: torch.tensor(float(steps)) if is_tensor else steps)
