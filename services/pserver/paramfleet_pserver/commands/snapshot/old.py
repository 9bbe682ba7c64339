"""Messages of what the latest steps of sync have changed, as it was before them.

Nobody writes to these values any more, so they aren't copied.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from paramfleet_pserver.commands.snapshot.arrays import array_of
from paramfleet_pserver.requests.fields import Fields
from paramfleet_pserver.tables.old_values import OldRows, OldVersions, StepBefore
from paramfleet_pserver.tables.table import DenseTable, SparseTable
from paramfleet_pserver.tables.table_store import TableStore
from paramfleet_shared.net.wire.message import MalformedMessageError, Message
from paramfleet_shared.values.ids import Step

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["OldReader", "old_messages"]

_PIECE_VALUES = 1 << 19
"""Of one message: 2 MiB."""


def old_messages(old: OldVersions) -> Iterator[Message]:
    """Yield what is kept, the oldest step first."""
    for before in old.steps():
        about = {"kind": "old", "step": before.step}
        yield Message(fields=about)
        for (table, block), rows in sorted(before.rows.items(), key=_by_name):
            count = max(1, _PIECE_VALUES // rows.values.shape[1])
            for start in range(0, len(rows.ids), count):
                some = slice(start, start + count)
                yield Message(
                    fields={**about, "table": table, "block": block},
                    tensors={"ids": rows.ids[some], "values": rows.values[some]},
                )
        for table, values in sorted(before.ranges.items(), key=_by_name):
            for start in range(0, len(values), _PIECE_VALUES):
                yield Message(
                    fields={**about, "table": table},
                    tensors={"values": values[start : start + _PIECE_VALUES]},
                )


def _by_name(item: tuple[Any, Any]) -> Any:
    return item[0]


class OldReader:
    """Puts what ``old_messages`` yields together again.

    Args:
        store: Has the tables.
    """

    def __init__(self, store: TableStore) -> None:
        self._store = store
        self._rows: dict[tuple[int, str, int], list[tuple[Any, Any]]] = {}
        self._ranges: dict[tuple[int, str], list[NDArray[np.float32]]] = {}
        self._steps: list[int] = []

    def take(self, message: Message) -> None:
        """Take one message.

        Raises:
            MalformedMessageError: if it isn't one.
            UnknownTableError: if its table isn't there.
        """
        fields = Fields(message.fields, where="old")
        step = fields.integer("step")
        if "table" not in message.fields:
            self._steps.append(step)
            return
        table = self._store.find(fields.text("table"))
        if isinstance(table, DenseTable):
            values = array_of(message, "values", "float32", (None,))
            self._ranges.setdefault((step, table.spec.name), []).append(values.copy())
            return
        assert isinstance(table, SparseTable), "a table is sparse or dense"
        block = fields.integer("block")
        if block >= len(table.blocks):
            rule = f"must be below {len(table.blocks)}: as many owners are here"
            raise MalformedMessageError(where="old field 'block'", rule=rule)
        ids = array_of(message, "ids", "int64", (None,)).copy()
        values = array_of(message, "values", "float32", (len(ids), table.spec.dim)).copy()
        self._rows.setdefault((step, table.spec.name, block), []).append((ids, values))

    def end(self) -> list[StepBefore]:
        """Return what is kept, the oldest step first.

        Raises:
            MalformedMessageError: if it doesn't fit together.
        """
        steps = {step: StepBefore(Step(step)) for step in sorted(self._steps)}
        for (step, name, block), pieces in self._rows.items():
            ids = np.concatenate([ids for ids, _ in pieces])
            if step not in steps:
                raise MalformedMessageError(where="old", rule="must be of a step")
            values = np.concatenate([values for _, values in pieces])
            steps[step].rows[name, block] = OldRows(ids, values)
        for (step, name), ranges in self._ranges.items():
            whole = np.concatenate(ranges)
            if step not in steps or len(whole) != self._store.find(name).num_rows:
                raise MalformedMessageError(
                    where="old", rule="must hold a whole range of a step"
                )
            steps[step].ranges[name] = whole
        return list(steps.values())
