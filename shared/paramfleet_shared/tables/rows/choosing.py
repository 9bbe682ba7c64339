"""Which rows of a table a base or a delta holds, and what is left of their ``delta_score``.

A base holds the rows that are worth serving: of a table with an accessor those with a score of
at least ``base_threshold`` that were seen in the last ``delta_keep_days``. A delta holds those
of them whose ``delta_score`` is at least ``delta_threshold``. Of other tables a base holds all
rows, and a delta those that changed: which these are, marks say (``memory.changes``).

n = rows, D = width of a row, W = floats beside its value.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.kernels.firsts import firsts_of
from paramfleet_shared.tables.kernels.stepping.ctr import CtrTable
from paramfleet_shared.tables.rows.ctr import ctr_layout_of, scores_of
from paramfleet_shared.tables.rows.layout import RowLayout
from paramfleet_shared.tables.spec import ExportKind, TableSpec
from paramfleet_shared.values.bounds import MAX_DAY

__all__ = ["Choice", "delta_scores", "discounted"]


@dataclass(frozen=True, slots=True)
class Choice:
    """Which rows an export holds."""

    kind: ExportKind
    days: Mapping[str, int] = field(default_factory=dict)
    """Today, of tables with an accessor, by their names; 0 for none."""

    def to_wire(self) -> dict[str, Any]:
        """Return plain values."""
        return {"kind": self.kind, "days": dict(self.days)}

    @classmethod
    def from_wire(cls, wire: Any) -> "Choice":
        """Rebuild what ``to_wire`` returned.

        Raises:
            ValueError: if a value can't be.
        """
        if not isinstance(wire, Mapping):
            raise ValueError("must be a map")  # noqa: TRY004 - who sent it is told one kind of error
        kind, days = wire.get("kind"), wire.get("days")
        if kind not in {"base", "delta"}:
            raise ValueError("kind must be base or delta")
        if not isinstance(days, Mapping) or not all(
            type(name) is str and type(day) is int and 0 <= day <= MAX_DAY
            for name, day in days.items()
        ):
            raise ValueError("days must be days from 1970, by the names of tables")
        return cls("base" if kind == "base" else "delta", dict(days))

    def rows(
        self, spec: TableSpec, values: NDArray[np.float32], states: NDArray[np.float32]
    ) -> NDArray[np.bool_]:
        """Return which rows of a table with an accessor it holds: bool [n].

        Args:
            spec: The table.
            values: float32 [n, D].
            states: float32 [n, W].
        """
        optimizer, constants = spec.optimizer, spec.optimizer.constants
        layout = ctr_layout_of(optimizer, RowLayout.of(spec))
        floats = np.concatenate([values, states], axis=1)
        day = self.days.get(spec.name, 0)
        table = CtrTable(firsts_of(spec), floats.reshape(-1), layout)
        scores, _ = scores_of(optimizer, table, np.arange(len(floats)), day=day)
        seen = floats[:, layout.seen_day]
        unseen = np.where((seen > 0) & (day > 0), np.float32(day) - seen, np.float32(0.0))
        holds = scores >= np.float32(constants["base_threshold"])
        holds &= unseen <= np.float32(constants["delta_keep_days"])
        if self.kind == "delta":
            grown = floats[:, layout.delta_score]
            holds &= grown >= np.float32(constants["delta_threshold"])
        return holds


def delta_scores(spec: TableSpec, states: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return a copy of the ``delta_score`` of rows with an accessor: float32 [n].

    Args:
        spec: The table.
        states: float32 [n, W].
    """
    column = RowLayout.of(spec).states.spans["delta_score"]
    return states[:, column.start].copy()


def discounted(
    column: NDArray[np.float32], slots: NDArray[np.int64], amounts: NDArray[np.float32]
) -> NDArray[np.int64]:
    """Subtract amounts from rows that have as much; return the slots of these: int64 [m].

    Args:
        column: A number of each row, by slot.
        slots: Where the rows are, int64 [n], each once; -1 for none.
        amounts: float32 [n].
    """
    enough = slots >= 0
    enough[enough] = column[slots[enough]] >= amounts[enough]
    changed = slots[enough]
    column[changed] -= amounts[enough]
    return changed
