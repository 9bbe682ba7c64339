"""The optimizer states of a GEO worker, as checkpoints take and give them.

Each worker has states of its own gradients. A checkpoint has one state of each row: the
pservers ask every worker for its own, and put them together. A worker that begins from a
checkpoint begins with

* its share of Adagrad's accumulators: what was added to the first value, divided by the number
  of workers, so that the workers' states together are what was saved;
* Adam's moments and momentum's buffer as they were saved.

The background thread answers; what the training thread changes under ``lock``.

Shape legend: n = rows or values, D = row width, S = states, W = floats of a row's states.
"""

import logging
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from paramfleet.tables.dense_state import piece_of_state, set_piece_of_state, set_steps
from paramfleet.tables.row_store import spec_of
from paramfleet.tables.rules import OptimizerNotServedError, rule_of_rows, server_rule
from paramfleet.training.modes.base import ModelTables
from paramfleet.training.modes.rowstep import RowStepper
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.tables.memory.reservation import RowColumn
from paramfleet_shared.tables.rows.layout import RowLayout
from paramfleet_shared.tables.rules.ctr.accessor import STATISTICS
from paramfleet_shared.tables.rules.record import Column
from paramfleet_shared.tables.spec import SEEN, OptimizerSpec, TableSpec

__all__ = ["GeoStates"]

UNKNOWN = -1
"""Count of a row that this worker doesn't have."""

_OF_SERVERS = frozenset({*STATISTICS, SEEN.name})
"""Columns that the pservers have: a worker receives them with its rows."""

log = logging.getLogger(__name__)


class GeoStates:
    """One worker's states.

    Args:
        optimizer: The user's.
        tables: Its parameters.
        steppers: What steps the sparse tables, in their order.
        workers: Of the job, who begin together.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        tables: ModelTables,
        steppers: Sequence[RowStepper],
        *,
        workers: int,
    ) -> None:
        self.lock = threading.Lock()
        """Held while states change or are read."""
        self._optimizer = optimizer
        self._tables = tables
        self._workers = workers
        self._steppers = {stepper.table.name: stepper for stepper in steppers}
        self._blocks = {block.name: block for block, _ in tables.dense}
        self._own = 0
        """Steps of this worker since all began alike."""
        self._before: dict[str, int] = {}
        """Steps that each table's optimizer had counted then."""
        self._counts = {
            name: RowColumn(1, np.int32, table=name)
            for name, rule in self._rules().items()
            if name in self._steppers and any(column.merge == "mean" for column in rule.columns)
        }
        """How often each row was stepped since then, by slot, where that is asked for."""

    def specs(self) -> list[TableSpec]:
        """Return the tables whose states a checkpoint can hold, with their rules."""
        rules = self._rules()
        specs = [
            spec_of(table, rule=rules[table.name])
            for table, _ in self._tables.sparse
            if table.name in rules
        ]
        blocks = (block for block in self._blocks.values() if block.name in rules)
        return specs + [block.spec(rules[block.name]) for block in blocks]

    def begin(self, *, workers: int) -> None:
        """Count from now on: all workers hold the same states.

        Args:
            workers: Who begin together: in an elastic job others than when this one came. What
                they take of Adagrad's sums is what was saved, whoever left or came before.
        """
        self._workers = workers
        self._own = 0
        self._before = {}
        for name, counts in self._counts.items():
            counts.array[: self._steppers[name].store.num_slots] = 0

    def note(self, stepper: RowStepper, slots: NDArray[np.int64]) -> None:
        """Count a step of rows."""
        counts = self._counts.get(stepper.table.name)
        if counts is not None:
            counts.ensure(stepper.store.num_slots)
            counts.array.reshape(-1)[slots] += 1

    def forget(self, table: str, slots: NDArray[np.int64]) -> None:
        """Count no step of rows that were dropped; ``lock`` is held."""
        if table in self._counts:
            counts = self._counts[table].array.reshape(-1)
            counts[slots[slots < len(counts)]] = 0

    def note_step(self) -> None:
        """Count a step of the optimizer."""
        self._own += 1

    def answer(self, question: Message) -> Message:
        """Return what this worker holds of the rows, or the values, that are asked for."""
        table = str(question.fields["table"])
        rule = self._rules().get(table)
        if rule is None or rule.rule != question.fields["rule"]:
            return Message(fields={"lack": "its optimizer is another"})
        own = {"own": self._own, "before": self._before.get(table, 0)}
        if table in self._blocks and self._blocks[table].is_asleep:
            own["own"] = 0
        with self.lock:
            if table in self._blocks:
                where = slice(int(question.fields["start"]), int(question.fields["stop"]))
                return Message(fields=own, tensors=self._values(table, rule, where))
            return Message(fields=own, tensors=self._rows(table, rule, question.tensors["ids"]))

    def rule_for(self, saved: TableSpec) -> OptimizerSpec | None:
        """Return under which rule this worker goes on with saved states; None if it can't."""
        rule = self._rules().get(saved.name)
        return rule if rule is not None and rule.rule == saved.optimizer.rule else None

    def kind_of(self, table: str) -> str | None:
        """Return the rule that trains a table, or the optimizer that has none."""
        if table not in self._steppers and table not in self._blocks:
            return None
        rule = self._rules().get(table)
        return type(self._optimizer).__name__ if rule is None else rule.rule

    def take_rows(
        self,
        saved: TableSpec,
        ids: NDArray[np.int64],
        states: NDArray[np.float32],
        *,
        steps: int,
    ) -> None:
        """Begin with saved states of rows: int64 [n], float32 [n, W]."""
        stepper, rule = self._steppers[saved.name], self.rule_for(saved)
        assert rule is not None, "it was asked before"
        slots = stepper.store.held(ids)
        here = slots >= 0
        former = RowLayout.of_states(saved.optimizer, saved.dim)
        own = RowLayout.of_states(rule, saved.dim)
        known = {each.name for each in set(former.columns) & set(own.columns)} - _OF_SERVERS
        columns = {
            column.name: self._share(
                column, states[here, former.spans[column.name]], saved.optimizer, rule
            )
            for column in rule.columns
            if column.name in known
        }
        stepper.restore(slots[here], columns, steps=steps)
        self._before[saved.name] = steps

    def take_values(
        self, saved: TableSpec, start: int, states: NDArray[np.float32], *, steps: int
    ) -> None:
        """Begin with saved states of dense values: float32 [S, n] from ``start`` on."""
        block, rule = self._blocks[saved.name], self.rule_for(saved)
        assert rule is not None, "it was asked before"
        for column, values in zip(rule.columns, states, strict=True):
            share = self._share(column, values, saved.optimizer, rule)
            set_piece_of_state(
                self._optimizer, block, column.name, rule=rule, start=start, values=share
            )
        if rule.record.counts_steps:
            set_steps(self._optimizer, block, steps)
        self._before[saved.name] = steps

    def _share(
        self,
        column: Column,
        states: NDArray[np.float32],
        saved: OptimizerSpec,
        rule: OptimizerSpec,
    ) -> NDArray[np.float32]:
        """Return what this worker begins with of a column's saved states."""
        if column.merge == "mean":
            return states
        added = np.maximum(states - np.float32(saved.initial_state), 0)
        share: NDArray[np.float32] = added / np.float32(self._workers)
        return share + np.float32(rule.initial_state)

    def _rows(
        self, table: str, rule: OptimizerSpec, ids: NDArray[np.int64]
    ) -> Mapping[str, NDArray[Any]]:
        stepper = self._steppers[table]
        slots = stepper.store.held(ids)
        here = slots >= 0
        found = slots[here]
        counts = np.where(here, 0, UNKNOWN)
        if table in self._counts:
            self._counts[table].ensure(stepper.store.num_slots)
            counts[here] = self._counts[table].array[found, 0]
        dim = stepper.table.dim
        layout = RowLayout.of_states(rule, dim)
        states = layout.new_rows(len(ids))
        for name, span in layout.spans.items():
            states[here, span] = stepper.store.column(name)[found]
        return {"counts": counts, "states": states}

    def _values(
        self, table: str, rule: OptimizerSpec, where: slice
    ) -> Mapping[str, NDArray[Any]]:
        pieces = [
            piece_of_state(
                self._optimizer, self._blocks[table], column.name, rule=rule, where=where
            )
            for column in rule.columns
        ]
        own = 0 if self._blocks[table].is_asleep else self._own
        counts = np.full(where.stop - where.start, own, np.int64)
        return {"counts": counts, "states": np.stack(pieces, axis=1)}

    def _rules(self) -> dict[str, OptimizerSpec]:
        """Return the rule of each table whose states a pserver would have, too."""
        optimizer = self._optimizer
        asked = [
            (table.name, partial(rule_of_rows, optimizer, group, table))
            for table, group in self._tables.sparse
        ] + [
            (block.name, partial(server_rule, optimizer, group, sparse=False))
            for block, group in self._tables.dense
        ]
        found = {}
        for name, rule_of in asked:
            try:
                rule = rule_of()
            except OptimizerNotServedError:
                continue
            if rule.num_state_columns:
                found[name] = rule
        return found
