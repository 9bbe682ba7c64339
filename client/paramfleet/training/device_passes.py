"""Passes over batches with rows on a device, in this one process.

Batches are known before a pass begins: which rows each looks up, so which rows the pass needs
(``tables.device.plan``). They come to the device together, batches are trained there, and what
was stepped goes back together.

Rows of two passes of one run stay on the device. Between two runs rows may change by other
means, such as a load, so each run fetches its rows.

The training thread calls it.
"""

import logging
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from paramfleet.nn.embedding import Different, SparseModule
from paramfleet.tables.device.pass_ids import PassIds
from paramfleet.tables.device.plan import BatchIds, PlannedPass, plan_passes
from paramfleet.tables.device.source import DeviceSource
from paramfleet.tables.device.table import DeviceTable
from paramfleet.tables.devices import to_device
from paramfleet.training.modes.rowstep import RowStepper
from paramfleet_shared.errors import ContractError
from paramfleet_shared.tables.spec import TableSpec

__all__ = ["DevicePasses", "DeviceRoomError", "Lookups"]

log = logging.getLogger(__name__)

B = TypeVar("B")

Lookups = Callable[[B], Iterable[tuple[SparseModule, torch.Tensor]]]
"""Returns what a batch looks up: modules, and the ids of each."""


class DeviceRoomError(ContractError):
    """A device has no memory for the rows of a pass."""

    code = "contract.device_room"
    device: str
    bytes: int
    sentence = (
        "{device} has no memory for the {bytes:,} bytes of a pass's rows: give "
        "fleet.device_pass a device_budget below what is free, and it splits the data"
    )


class _Lookup(NamedTuple):
    """One lookup of a batch, prepared before the batch begins."""

    module: SparseModule
    ids: torch.Tensor
    found: Different

    @property
    def unique(self) -> NDArray[np.int64]:
        """Return its different ids, int64 [U]."""
        return self.found[0].ids


class DevicePasses:
    """Runs batches with rows of tables on a device.

    Args:
        steppers: What steps the rows of each table.
        device: Where rows are during a pass.
        budget_bytes: What they may take of it; None for no limit.
    """

    def __init__(
        self,
        steppers: Sequence[RowStepper],
        *,
        device: torch.device,
        budget_bytes: int | None = None,
    ) -> None:
        self._steppers = {stepper.table.name: stepper for stepper in steppers}
        self._device = device
        self._budget_bytes = budget_bytes

    def run(self, batches: Sequence[B], lookups: Lookups[B]) -> Generator[B, None, None]:
        """Yield batches, with the rows of each on the device until the next one.

        Rows go back when a pass ends, and when the loop is left in its middle.

        Args:
            batches: In their order.
            lookups: Returns what a batch looks up.

        Raises:
            OptimizerNotServedError: if rows are stepped by no rule of the pservers.
            DeviceBudgetError: if a batch doesn't fit into the budget.
            DeviceRoomError: if the device has less memory than a pass needs.
            IdError: if a batch has what can't be an id.
        """
        specs = {name: stepper.served_spec() for name, stepper in self._steppers.items()}
        prepared = [
            [_Lookup(module, ids, module.different(ids)) for module, ids in lookups(batch)]
            for batch in batches
        ]
        planned = plan_passes(
            map(_ids_of, prepared), list(specs.values()), budget_bytes=self._budget_bytes
        )
        try:
            for number, each in enumerate(planned):
                self._note(number, len(planned), each)
                self._begin(each, specs)
                for place, ready in enumerate(self._placed(each, prepared)):
                    self._begin_batch(each.first + place, prepared, ready)
                    yield batches[each.first + place]
                self._write_back()
        finally:
            self._write_back()
            self._release()
            for lookup in (lookup for batch in prepared for lookup in batch):
                lookup.module.expect_nothing()

    def _begin(self, planned: PlannedPass, specs: dict[str, TableSpec]) -> None:
        """Bring the rows of a pass to the device.

        Raises:
            DeviceRoomError: if there is no memory for them.
        """
        if not planned.keeps_rows:
            self._release()
        try:
            for name, ids in planned.ids.items():
                stepper = self._steppers[name]
                device = stepper.device
                if device is None:
                    table = DeviceTable(specs[name], device=self._device)
                    device = DeviceSource(table, stepper.store)
                device.fetch(PassIds.of(name, ids, device.rows.ids))
                stepper.device = device
                stepper.table.bind(device)
        except torch.OutOfMemoryError as error:
            raise DeviceRoomError(
                device=str(self._device), bytes=planned.device_bytes
            ) from error

    def _placed(
        self, planned: PlannedPass, prepared: Sequence[Sequence[_Lookup]]
    ) -> list[list[torch.Tensor]]:
        """Return the places of the rows of each batch of a pass, on the device, by lookup."""
        return [
            self._places_in(numbers, prepared[planned.first + batch])
            for batch, numbers in enumerate(planned.numbers)
        ]

    def _places_in(
        self, numbers: Mapping[str, NDArray[np.int64]], lookups: Iterable[_Lookup]
    ) -> list[torch.Tensor]:
        """Return the places of the rows of one batch, whose ids were numbered by table."""
        places, taken = list[torch.Tensor](), dict.fromkeys(numbers, 0)
        for lookup in lookups:
            name = lookup.module.table.name
            start = taken[name]
            taken[name] = stop = start + len(lookup.unique)
            device = self._steppers[name].device
            if device is None or device.rows.ids is None or start == stop:
                places.append(torch.empty(0, dtype=torch.int64))
                continue
            found = device.rows.ids.places[numbers[name][start:stop]]
            places.append(to_device(torch.from_numpy(found), self._device))
        return places

    def _begin_batch(
        self,
        number: int,
        prepared: Sequence[Sequence[_Lookup]],
        places: Sequence[torch.Tensor],
    ) -> None:
        """Let the lookups of a batch find what was prepared."""
        of_table: dict[str, list[tuple[NDArray[np.int64], torch.Tensor]]] = {}
        for lookup in prepared[number]:
            lookup.module.expect_nothing()
        for lookup, where in zip(prepared[number], places, strict=True):
            lookup.module.expect(lookup.ids, lookup.found)
            of_table.setdefault(lookup.module.table.name, []).append((lookup.unique, where))
        for name, stepper in self._steppers.items():
            if stepper.device is not None:
                stepper.device.begin_batch(number, of_table.get(name, ()))

    def _write_back(self) -> None:
        for stepper in self._steppers.values():
            if stepper.device is not None:
                stepper.device.write_back()

    def _release(self) -> None:
        """Give the device's memory back, and let rows come from the store."""
        for stepper in self._steppers.values():
            if stepper.device is not None:
                stepper.device = None
                stepper.table.bind(stepper.store)

    def _note(self, number: int, count: int, planned: PlannedPass) -> None:
        facts = {
            "number": number + 1,
            "passes": count,
            "batches": planned.stop - planned.first,
            "rows": planned.num_rows,
            "bytes": planned.device_bytes,
            "device": str(self._device),
        }
        log.info("worker.device_pass", extra=facts)


def _ids_of(lookups: Iterable[_Lookup]) -> BatchIds:
    """Return the ids of a batch by table."""
    of_table: dict[str, list[NDArray[np.int64]]] = {}
    for lookup in lookups:
        of_table.setdefault(lookup.module.table.name, []).append(lookup.unique)
    return {name: np.concatenate(each) for name, each in of_table.items()}
