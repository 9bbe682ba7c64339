"""The kernels that lookups and changes need, loaded before somebody waits for them."""

from typing import get_args

import numpy as np

from paramfleet_serving.store.base import BaseRows
from paramfleet_serving.store.table import ServedTable
from paramfleet_shared.deltas.records import StreamTable
from paramfleet_shared.tables.spec import Storage

__all__ = ["load_kernels"]


def load_kernels() -> None:
    """Load what tables of any kind need, or compile it; idempotent."""
    ids, rows = np.zeros(1, np.int64), np.zeros((1, 1), np.float32)
    for storage in get_args(Storage):
        facts = StreamTable(name="warm", dim=1, storage=storage)
        table = ServedTable(facts, BaseRows(ids, rows))
        table.put(ids, rows, 1)
        table.remove(ids, 2)
        table.lookup(ids, 2)
