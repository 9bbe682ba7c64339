"""Exponential moving average of a model that is trained: dense parameters, and rows.

A row's average changes where the row is used: between two uses its value stays, so that the
average of all steps in between is known in closed form. So an update costs one read of the rows
of the step, and memory for one more value of each row that was used.

Shape legend: U = rows of a step, n = ids of a call, D = row width.
"""

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from paramfleet.tables.row_store import RowStore
from paramfleet.tables.sparse import SparseTable, table_of
from paramfleet.tables.weight.rows import write_rows
from paramfleet_shared.errors import ContractError

__all__ = ["Average", "AverageError"]

_STEP = "average.step"


class AverageError(ContractError):
    """An average can't be made, updated or loaded so; nothing was changed."""

    code = "contract.average"
    what: str
    rule: str
    sentence = "{what}: {rule}"


class Average:
    """Made by ``fleet.ema``. The training thread uses it.

    Args:
        model: The model that is trained. Its parameters must stay the same objects.
        decay: Of the average in each update, from 0 to below 1.

    Raises:
        AverageError: if ``decay`` is none.
    """

    def __init__(self, model: torch.nn.Module, decay: float) -> None:
        if not 0.0 <= decay < 1.0:
            raise AverageError(what=f"decay={decay}", rule="must be from 0 to below 1")
        self.decay = float(decay)
        self.num_updates = 0
        self._model = model
        named = list(model.named_parameters())
        self._dense = {
            name: each.detach().clone() for name, each in named if table_of(each) is None
        }
        tables = (table_of(each) for _, each in named)
        self._rows = {each.name: _Rows(each) for each in tables if each is not None}

    @torch.no_grad()
    def update(self) -> None:
        """Take in the values after a step; call it once after each ``optimizer.step()``.

        Raises:
            FleetError: if the rows of the step couldn't be read; it may be called again.
        """
        for rows in self._rows.values():
            rows.update(self.num_updates, self.decay)
        parameters = dict(self._model.named_parameters())
        for name, average in self._dense.items():
            average.lerp_(parameters[name].detach(), 1.0 - self.decay)
        self.num_updates += 1

    @torch.no_grad()
    def model(self) -> torch.nn.Module:
        """Return a frozen copy of the model, with averaged values and the model's buffers.

        Raises:
            WeightError: if a table on pservers has no fixed number of rows, or too many; read
                its averages with ``rows``.
        """
        copied = copy.deepcopy(self._model)
        for name, parameter in copied.named_parameters():
            table = table_of(parameter)
            if table is None:
                parameter.copy_(self._dense[name])
                parameter.requires_grad = False
                continue
            own = self._rows[table.name]
            ids = own.store.live_ids().copy()
            write_rows(table, torch.from_numpy(ids), self.rows(table.name, ids))
        return copied

    @torch.no_grad()
    def rows(self, table: str, ids: torch.Tensor | NDArray[np.int64]) -> torch.Tensor:
        """Return the averages of rows, float32 [n, D], of ids int64 [n].

        Args:
            table: Its name.
            ids: A row that wasn't used since the average began has its value.

        Raises:
            AverageError: if the model has no such table.
        """
        if table not in self._rows:
            rule = f"the model has no such table; it has: {', '.join(self._rows) or 'none'}"
            raise AverageError(what=f"table {table!r}", rule=rule)
        flat = torch.as_tensor(ids, dtype=torch.int64, device="cpu").reshape(-1).numpy()
        return torch.from_numpy(self._rows[table].read(flat, self.num_updates, self.decay))

    def state_dict(self) -> dict[str, Any]:
        """Return what ``load_state_dict`` takes: tensors and numbers in dicts."""
        rows = {name: each.state() for name, each in self._rows.items()}
        dense = {name: each.clone() for name, each in self._dense.items()}
        return {"num_updates": self.num_updates, "dense": dense, "rows": rows}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what ``state_dict`` returned.

        Raises:
            AverageError: if it is of a model with other parameters or tables.
        """
        for what, had, has in (
            ("parameters", state["dense"], self._dense),
            ("tables", state["rows"], self._rows),
        ):
            differing = sorted(had.keys() ^ has.keys())
            if differing:
                raise AverageError(what=what, rule=f"only one of both has {differing[0]!r}")
        for name, average in self._dense.items():
            average.copy_(state["dense"][name])
        for name, rows in self._rows.items():
            rows.load(state["rows"][name])
        self.num_updates = int(state["num_updates"])


class _Rows:
    """Averages of the rows of one table that were used: a value, and when it was updated."""

    def __init__(self, table: SparseTable) -> None:
        self._table = table
        self.store = self._empty()

    def _empty(self) -> RowStore:
        store = RowStore.empty(self._table)
        store.add_column(_STEP, np.zeros(1, np.float32))
        return store

    def update(self, num_updates: int, decay: float) -> None:
        """Take in the rows of the step that was taken, as one more update."""
        table = self._table
        ids = table.pending_ids
        if not len(ids) or not table.is_stepped:
            return
        before = table.stepping_rows.detach().to("cpu", torch.float32).numpy()
        now = table.read(ids)[:, -before.shape[1] :]
        average = self._as_of(ids, before, num_updates, decay)
        slots = self.store.slots(ids)
        self.store.values[slots, -before.shape[1] :] = decay * average + (1 - decay) * now
        self.store.column(_STEP)[slots] = num_updates + 1

    def read(
        self, ids: NDArray[np.int64], num_updates: int, decay: float
    ) -> NDArray[np.float32]:
        """Return the averages of rows, float32 [n, D]."""
        unique, place = np.unique(ids, return_inverse=True)
        return self._as_of(unique, self._table.read(unique), num_updates, decay)[place]

    def _as_of(
        self,
        ids: NDArray[np.int64],
        values: NDArray[np.float32],
        num_updates: int,
        decay: float,
    ) -> NDArray[np.float32]:
        """Return averages after some updates, of rows that had ``values`` since their last."""
        slots = self.store.held(ids)
        is_known = slots >= 0
        average = values.copy()
        own = self.store.values[slots[is_known], -values.shape[1] :]
        passed = num_updates - self.store.column(_STEP)[slots[is_known]].astype(np.float64)
        average[is_known] += (own - values[is_known]) * np.power(decay, passed)
        return average

    def state(self) -> dict[str, torch.Tensor]:
        """Return ids int64 [n], averages float32 [n, D] and updates float32 [n]."""
        ids = self.store.live_ids().copy()
        slots = self.store.held(ids)
        found = {"ids": ids, "values": self.store.values[slots].copy()}
        found["updates"] = self.store.column(_STEP)[slots, 0].copy()
        return {name: torch.from_numpy(each) for name, each in found.items()}

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take what ``state`` returned."""
        self.store = self._empty()
        slots = self.store.slots(state["ids"].numpy())
        self.store.values[slots] = state["values"].numpy()
        self.store.column(_STEP)[slots, 0] = state["updates"].numpy()
