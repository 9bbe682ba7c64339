"""Passes over data in one process: rows come from its own stores, and go back to them."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from paramfleet.tables.device.source import DeviceSource
from paramfleet.tables.device.stored import put_rows, rows_from
from paramfleet.tables.device.table import DeviceRows
from paramfleet.tables.sparse import RowSource
from paramfleet.training.modes.backing import PassBacking, PassOpenError, WrittenBack
from paramfleet.training.modes.rowstep import RowStepper
from paramfleet_shared.tables.spec import TableSpec

__all__ = ["LocalPasses"]


class LocalPasses(PassBacking):
    """Rows of the stores of this process.

    Args:
        steppers: What steps the rows of each table.
    """

    def __init__(self, steppers: Sequence[RowStepper]) -> None:
        self._steppers = {stepper.table.name: stepper for stepper in steppers}

    @override
    def specs(self) -> dict[str, TableSpec]:
        return {name: stepper.served_spec() for name, stepper in self._steppers.items()}

    @override
    def beneath(self, table: str) -> RowSource:
        return self._steppers[table].store

    @override
    def check_no_pass(self, function: str) -> None:
        if any(stepper.device is not None for stepper in self._steppers.values()):
            raise PassOpenError(function=function)

    @override
    def read(self, wanted: Mapping[str, NDArray[np.int64]]) -> dict[str, DeviceRows]:
        found = {}
        for table, ids in wanted.items():
            stepper = self._steppers[table]
            found[table] = rows_from(stepper.store, stepper.served_spec(), ids)
        return found

    @override
    def attach(self, sources: Mapping[str, DeviceSource]) -> None:
        for table, source in sources.items():
            stepper = self._steppers[table]
            stepper.device = source
            stepper.table.bind(source)

    @override
    def commit(self) -> WrittenBack:
        rows = 0
        for stepper in self._steppers.values():
            if stepper.device is None:
                continue
            on_device = stepper.device.rows
            stepped = on_device.stepped()
            put_rows(stepper.store, on_device.spec, stepped)
            on_device.note_taken()
            rows += len(stepped.ids)
        return WrittenBack(rows=rows)

    @override
    def abandon(self) -> None:
        """Keep what was trained, as a loop without passes does."""
        self.commit()

    @override
    def release(self) -> None:
        for stepper in self._steppers.values():
            if stepper.device is not None:
                stepper.device = None
                stepper.table.bind(stepper.store)
