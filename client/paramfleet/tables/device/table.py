"""Rows of one table on a device, those of a pass over data.

Training reads and steps rows by their places (``pass_ids``): nothing is searched for. Rows have
all their columns; which there are, the layout says, and only the rule knows what they mean.

On a processor a compiled kernel steps rows, elsewhere torch's operations do (``formulas``): the
same formula, to the same bits but for the device's own rounding. Rows with an accessor are
stepped by their kernel everywhere, on the host.

Shape legend: n = ids of the pass, U = different ids of a batch, D = row width, P = floats of a
row with all its columns.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from paramfleet.tables.device.admitting import BYTES_WAITING, CameIds, PassAdmission
from paramfleet.tables.device.formulas import step_rows_at
from paramfleet.tables.device.pass_ids import PassIds
from paramfleet.tables.devices import to_device, to_host
from paramfleet_shared.tables.kernels.firsts import firsts_of
from paramfleet_shared.tables.kernels.replica import step_slots
from paramfleet_shared.tables.kernels.rows import gather
from paramfleet_shared.tables.kernels.stepping.ctr import (
    CtrLayout,
    CtrTable,
    ctr_step_of,
    step_ctr_rows,
)
from paramfleet_shared.tables.kernels.stepping.rules import step_of
from paramfleet_shared.tables.rows.ctr import ctr_layout_of
from paramfleet_shared.tables.rows.evicting import seen_after
from paramfleet_shared.tables.rows.layout import VALUE, ColumnSpec, RowLayout
from paramfleet_shared.tables.rules.record import Moment
from paramfleet_shared.tables.spec import SEEN, OptimizerSpec, TableSpec

__all__ = ["DeviceRows", "DeviceTable", "bytes_of", "layout_of"]


class DeviceRows(NamedTuple):
    """Rows with all their columns, as they travel to a device and back."""

    ids: NDArray[np.int64]
    """int64 [n], each once."""
    rows: NDArray[np.float32]
    """float32 [n, P]"""
    waits: NDArray[np.int32] | None = None
    """int32 [n], of a table that doesn't give every id a row: in how many steps each must come
    to get one; 0 of one that has it."""


class DeviceTable:
    """Rows by place. One thread owns it.

    Args:
        spec: The table; its rule steps the rows.
        device: Where the rows are.
        kernels: Whether a processor reads and steps rows by its kernels.
        free_rows: int64 [shards], of a table whose rows are limited: how many each shard may
            still get. Those that are admitted are subtracted. None of another table.
    """

    def __init__(
        self,
        spec: TableSpec,
        *,
        device: torch.device,
        kernels: bool = True,
        free_rows: NDArray[np.int64] | None = None,
    ) -> None:
        self.spec = spec
        self.device = device
        self.layout = layout_of(spec)
        self._ids: PassIds | None = None
        self._rows = torch.zeros((0, self.layout.pitch), device=device)
        self._is_stepped = torch.zeros(0, dtype=torch.bool, device=device)
        self._value = self.layout.spans[VALUE]
        names = [column.name for column in spec.optimizer.columns if column is not SEEN]
        self._states = [self.layout.spans[name] for name in names]
        """Of the rule."""
        self._seen = self.layout.spans.get(SEEN.name)
        """Where a row keeps when it was pushed last, if it does."""
        self._admission = (
            None
            if spec.entry.admits_all
            else PassAdmission(spec.entry, device=device, free_rows=free_rows)
        )
        self._has_kernels = kernels and device.type == "cpu"
        self._step = self._step_by_kernel if self._has_kernels else self._step_by_torch
        self._counted: CtrLayout | None = None
        """Of rows with an accessor."""
        if spec.optimizer.num_counts:
            self._counted = ctr_layout_of(spec.optimizer, self.layout)
            self._step = self._step_counted
        self._keys = np.empty(0, np.uint64)
        """The id of each place, where something asks for it."""
        self._needs_keys = self._counted is not None or free_rows is not None

    @property
    def ids(self) -> PassIds | None:
        """Return the ids of the pass; None before the first."""
        return self._ids

    @property
    def capacity(self) -> int:
        """Return how many rows there is room for."""
        return len(self._rows)

    @property
    def num_bytes(self) -> int:
        """Return the device's memory in use."""
        return bytes_of(self.spec, len(self._rows))

    def begin(self, ids: PassIds, new: DeviceRows) -> None:
        """Begin a pass: rows that the former one had stay where they are.

        Args:
            ids: Made with those of the former pass.
            new: The rows of ``ids.new_ids``.
        """
        if ids.capacity > len(self._rows):
            self._rows = _grown(self._rows, ids.capacity)
            self._is_stepped = _grown(self._is_stepped, ids.capacity)
        if self._needs_keys:
            self._keys = np.concatenate(
                [self._keys, np.zeros(len(self._rows) - len(self._keys), np.uint64)]
            )
            self._keys[ids.places[ids.is_new]] = new.ids.view(np.uint64)
        places = self._on_device(ids.places[ids.is_new])
        rows = to_device(torch.from_numpy(new.rows), self.device)
        self._rows.index_copy_(0, places, rows)
        if self._admission is not None:
            assert new.waits is not None, "who reads the rows of such a table says it"
            self._admission.begin(places, new.waits, capacity=len(self._rows))
        self._ids = ids

    def values(self, places: torch.Tensor) -> torch.Tensor:
        """Return copies of rows' values, float32 [U, D].

        Args:
            places: int64 [U], on the device.
        """
        if not self._has_kernels:
            return self._rows[:, self._value].index_select(0, places)
        dim, rows = self.spec.dim, self._rows.numpy().reshape(-1)
        values = np.empty((len(places), dim), np.float32)
        gather(rows, self.layout.pitch, places.numpy(), values.reshape(-1), dim)
        return torch.from_numpy(values)

    def step(self, places: torch.Tensor, grads: torch.Tensor, moment: Moment) -> None:
        """Let the rule step rows, those of ids that have one or get it now.

        Args:
            places: int64 [U], on the device, each once.
            grads: float32 [U, D], on the device; of rows with an accessor shows and clicks
                stand before the gradients.
            moment: Learning rate and number of the step.
        """
        if self._admission is not None:
            admitted = self._admission.decide(places, self._keys)
            places, grads = places[admitted], grads[admitted]
        self._step(places, grads, moment)
        if self._seen is not None:
            self._note_seen(places, moment.now)
        self._is_stepped.index_fill_(0, places, 1)

    def train_by(self, rule: OptimizerSpec) -> None:
        """Let rows be stepped with other constants of their rule from now on."""
        if rule == self.spec.optimizer:
            return
        assert rule.rule == self.spec.optimizer.rule, "it has the same columns"
        self.spec = replace(self.spec, optimizer=rule)

    def rows(self) -> DeviceRows:
        """Return all rows of the pass, on the host."""
        return self._rows_at(np.arange(self._num_ids))

    def stepped(self) -> DeviceRows:
        """Return the rows that were stepped since they were taken last, on the host."""
        marks = to_host(self._is_stepped, dtype=torch.bool).numpy()
        found = (
            np.empty(0, np.int64)
            if self._ids is None
            else np.flatnonzero(marks[self._ids.places])
        )
        return self._rows_at(found)

    def came(self) -> CameIds | None:
        """Return which ids came without a row since that was taken last, on the host.

        None of a table that gives every id one.
        """
        if self._admission is None:
            return None
        none = np.empty(0, np.int64)
        ids, places = (none, none) if self._ids is None else (self._ids.ids, self._ids.places)
        return self._admission.came(ids, places)

    def note_taken(self) -> None:
        """Count no row as stepped: the servers have them as they are."""
        self._is_stepped.zero_()
        if self._admission is not None:
            self._admission.note_taken()

    def limit(self, free_rows: NDArray[np.int64] | None) -> None:
        """Count the rows that there is room for anew: int64 [shards], as when it was made."""
        if self._admission is not None:
            self._admission.free_rows = free_rows

    @property
    def _num_ids(self) -> int:
        return 0 if self._ids is None else len(self._ids.ids)

    def _rows_at(self, found: NDArray[np.int64]) -> DeviceRows:
        """Return the rows of some of the pass's ids, by number."""
        if self._ids is None:
            return DeviceRows(found, np.empty((0, self.layout.pitch), np.float32))
        rows = self._rows.index_select(0, self._on_device(self._ids.places[found]))
        return DeviceRows(self._ids.ids[found], to_host(rows, dtype=torch.float32).numpy())

    def _note_seen(self, places: torch.Tensor, now: int) -> None:
        """Keep that rows were pushed; few numbers, computed on the host."""
        column = self._rows[:, self._seen]
        seen = to_host(column.index_select(0, places), dtype=torch.float32).numpy()
        after = seen_after(seen, now, self.spec.optimizer.half_life)
        column.index_copy_(0, places, to_device(torch.from_numpy(after), self.device))

    def _step_by_kernel(
        self, places: torch.Tensor, grads: torch.Tensor, moment: Moment
    ) -> None:
        lr, number, first, _now = moment
        numbers = step_of(self.spec.optimizer, sparse=True, lr=lr, step=number, first=first)
        state, second = [*(span.start for span in self._states), 0, 0][:2]
        step_slots(
            numbers,
            self._rows.numpy().reshape(-1),
            to_host(grads, dtype=torch.float32).numpy().reshape(-1),
            places.numpy(),
            (self.spec.dim, self.layout.pitch, state, second),
        )

    def _step_counted(self, places: torch.Tensor, grads: torch.Tensor, moment: Moment) -> None:
        """Step rows that have an accessor, by the kernel of the pservers.

        Elsewhere than on a processor the rows of the batch come to it, and go back.
        """
        assert self._counted is not None, "the rows have one"
        where = to_host(places, dtype=torch.int64).numpy()
        keys, is_here = self._keys[where], self._has_kernels
        held = self._rows
        if not is_here:
            held = to_host(self._rows.index_select(0, places), dtype=torch.float32)
            where = np.arange(len(where))
        rows = held.numpy().reshape(-1)
        step_ctr_rows(
            ctr_step_of(self.spec.optimizer, lr=moment.lr, day=moment.now),
            CtrTable(firsts_of(self.spec), rows, self._counted),
            where,
            keys,
            to_host(grads, dtype=torch.float32).numpy().reshape(-1),
        )
        if not is_here:
            self._rows.index_copy_(0, places, to_device(held, self.device))

    def _step_by_torch(self, places: torch.Tensor, grads: torch.Tensor, moment: Moment) -> None:
        spans = (self._value, *self._states)
        step_rows_at(self.spec.optimizer, moment, self._rows, places, grads, spans)

    def _on_device(self, places: NDArray[np.int64]) -> torch.Tensor:
        return to_device(torch.from_numpy(places), self.device)


def layout_of(spec: TableSpec) -> RowLayout:
    """Return the columns of a row on a device: the value in float32, and all others."""
    value = ColumnSpec(VALUE, spec.dim)
    return RowLayout((value, *RowLayout.of(spec).columns[1:]))


def bytes_of(spec: TableSpec, num_rows: int) -> int:
    """Return the memory that so many rows take on a device."""
    mark = 1 if spec.entry.admits_all else 1 + BYTES_WAITING
    return num_rows * (layout_of(spec).row_bytes + mark)


def _grown(rows: torch.Tensor, num: int) -> torch.Tensor:
    """Return room for ``num`` rows with those that there are, and zeros behind them."""
    grown = rows.new_zeros((num, *rows.shape[1:]))
    grown[: len(rows)] = rows
    return grown
