"""What passes over data will need of a device, before they begin.

The different ids of each batch are counted. Where the rows of all batches would need more than
the budget, the data is split at a border of batches: each part is a pass of its own. A table's
capacity on the device never shrinks between passes, as its rows stay where they are; so a plan
counts the most that each table has needed. Where that would be too much although a pass by
itself would fit, the pass begins anew (``keeps_rows``): all rows are fetched again.

Sans-io. Shape legend: n = ids of a batch.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from paramfleet.tables.device.pass_ids import IdSet
from paramfleet.tables.device.table import bytes_of
from paramfleet_shared.errors import ContractError
from paramfleet_shared.tables.spec import TableSpec

__all__ = ["BatchIds", "DeviceBudgetError", "PlannedPass", "plan_passes"]

BatchIds = Mapping[str, NDArray[np.int64]]
"""The ids that a batch looks up, int64 [n], by table."""


class DeviceBudgetError(ContractError):
    """The rows of a single batch need more of the device than they may take."""

    code = "contract.device_budget"
    batch: int
    """Its number, from 0."""
    bytes: int
    budget: int
    rows: int

    @override
    def describe(self) -> str:
        return (
            f"the {self.rows:,} rows of batch {self.batch} take {self.bytes:,} bytes of the "
            f"device, and device_budget is {self.budget:,}: make batches smaller, or the "
            "budget larger"
        )


@dataclass(frozen=True, slots=True)
class PlannedPass:
    """Neighbouring batches that are trained as one pass."""

    first: int
    """The number of the first batch."""
    stop: int
    """And of the one after the last."""
    ids: Mapping[str, IdSet]
    """The different ids by table: tables without any are left out."""
    numbers: Sequence[Mapping[str, NDArray[np.int64]]]
    """Of each batch, the numbers of its ids in ``ids``, int64 [n], as they came, by table."""
    keeps_rows: bool
    """Whether rows of the pass before stay on the device."""
    device_bytes: int
    """What rows on the device take from its beginning on."""
    capacities: Mapping[str, int]
    """Rows that fit on the device from then on, by table."""

    @property
    def num_rows(self) -> int:
        """Return how many rows it has."""
        return sum(map(len, self.ids.values()))


class _Counter:
    """The different ids of some batches, by table."""

    def __init__(self) -> None:
        self._sets: dict[str, IdSet] = {}
        self._tried: dict[str, NDArray[np.int64]] = {}
        self.numbers: list[dict[str, NDArray[np.int64]]] = []
        """Of each batch that was kept."""

    def try_to_add(self, batch: BatchIds) -> dict[str, int]:
        """Count a batch; return how many ids there are with it, by table."""
        self._tried = {
            table: self._sets.setdefault(table, IdSet(table)).try_to_add(ids)
            for table, ids in batch.items()
        }
        return {table: ids.num_tried for table, ids in self._sets.items()}

    def keep(self) -> None:
        """Take the batch for good."""
        self.numbers.append(self._tried)
        for ids in self._sets.values():
            ids.keep()

    def ids(self) -> dict[str, IdSet]:
        """Return the different ids of the batches that were kept, by table."""
        return {table: ids for table, ids in self._sets.items() if len(ids)}


def plan_passes(
    batches: Iterable[BatchIds],
    specs: Sequence[TableSpec],
    *,
    budget_bytes: int | None = None,
    existing: Mapping[str, int] | None = None,
    first: int = 0,
) -> Iterator[PlannedPass]:
    """Divide batches into passes that fit; each is yielded when its last batch is known.

    Args:
        batches: In their order; each is looked at once.
        specs: The tables.
        budget_bytes: What rows may take of the device; None for no limit.
        existing: Capacities of tables that are on the device already, by name.
        first: The number of the first batch.

    Raises:
        DeviceBudgetError: if a batch doesn't fit by itself.
    """
    known = {spec.name: spec for spec in specs}
    capacities, keeps_rows = dict(existing or {}), True
    counter, stop = _Counter(), first

    def ended() -> PlannedPass:
        taken = _bytes_of(known, capacities)
        ids, numbers = counter.ids(), counter.numbers
        return PlannedPass(first, stop, ids, numbers, keeps_rows, taken, capacities)

    for number, batch in enumerate(batches, start=first):
        counts = counter.try_to_add(batch)
        needed = _larger(capacities, counts)
        if budget_bytes is not None and _bytes_of(known, needed) > budget_bytes:
            if stop > first:
                yield ended()
            counter, first, keeps_rows = _Counter(), number, True
            counts = counter.try_to_add(batch)
            needed = _larger(capacities, counts)
            if _bytes_of(known, needed) > budget_bytes:
                needed, keeps_rows = counts, False
            num_bytes = _bytes_of(known, needed)
            if num_bytes > budget_bytes:
                raise DeviceBudgetError(
                    batch=number,
                    bytes=num_bytes,
                    budget=budget_bytes,
                    rows=sum(counts.values()),
                )
        counter.keep()
        capacities, stop = needed, number + 1
    if stop > first:
        yield ended()


def _larger(some: Mapping[str, int], others: Mapping[str, int]) -> dict[str, int]:
    """Return the larger of two counts of each table."""
    return {table: max(some.get(table, 0), others.get(table, 0)) for table in {*some, *others}}


def _bytes_of(specs: Mapping[str, TableSpec], rows: Mapping[str, int]) -> int:
    return sum(bytes_of(specs[table], count) for table, count in rows.items())
