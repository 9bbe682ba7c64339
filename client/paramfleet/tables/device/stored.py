"""Rows between a store in the host's memory and a device, with all their columns.

Shape legend: n = ids, P = floats of a row with all its columns.
"""

import numpy as np
from numpy.typing import NDArray

from paramfleet.tables.device.admitting import CameIds
from paramfleet.tables.device.table import DeviceRows, layout_of
from paramfleet.tables.row_store import RowStore
from paramfleet_shared.tables.rows.layout import VALUE
from paramfleet_shared.tables.rowstore import initial_rows
from paramfleet_shared.tables.spec import TableSpec

__all__ = ["put_rows", "rows_from"]


def rows_from(store: RowStore, spec: TableSpec, ids: NDArray[np.int64]) -> DeviceRows:
    """Return rows as they are in a store, new ones where it has none; it makes none.

    Args:
        store: It has a column for each state of the rule.
        spec: The table with its rule.
        ids: int64 [n], each once.
    """
    layout, slots = layout_of(spec), store.held(ids)
    rows = layout.new_rows(len(ids))
    is_held = slots >= 0
    held, spans = slots[is_held], dict(layout.spans)
    value = spans.pop(VALUE)
    rows[is_held, value] = store.values[held]
    rows[~is_held, value] = initial_rows(store.spec, ids[~is_held])
    for name, span in spans.items():
        rows[is_held, span] = store.column(name)[held]
    return DeviceRows(ids, rows, store.waits(ids, is_held))


def put_rows(
    store: RowStore, spec: TableSpec, written: DeviceRows, came: CameIds | None
) -> None:
    """Put rows into a store, making those that it doesn't have.

    Args:
        store: As of ``rows_from``.
        spec: The table with its rule.
        written: The rows, float32 [n, P].
        came: Ids that came and got none, of a table that doesn't give every id one.

    Raises:
        CapacityError: if there is no room for them; nothing is changed.
    """
    slots, spans = store.slots(written.ids), dict(layout_of(spec).spans)
    store.values[slots] = written.rows[:, spans.pop(VALUE)]
    for name, span in spans.items():
        store.column(name)[slots] = written.rows[:, span]
    if came is not None:
        store.note_uses(came.ids, came.uses)
