"""What the workers that train a pass together look up in each step, and who has the rows.

Before a run, each worker sends each other the ids of its batches that are on that one's
device. From then on every device knows which rows to send to whom in each step, and nothing
but rows and gradients travels.

All workers call it in the same order. Shape legend: W = workers, R = rounds: steps of the run,
as many as the worker with most has batches.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from paramfleet.tables.device.pass_ids import PassIds
from paramfleet.tables.device.plan import (
    BatchIds,
    DeviceBudgetError,
    PlannedPass,
    plan_passes,
)
from paramfleet.tables.device.shared import BatchIdsByOwner, SharedRound
from paramfleet.transport.device_group import DeviceGroup
from paramfleet_shared.errors import ContractError
from paramfleet_shared.tables.spec import TableSpec

__all__ = ["PassesDifferError", "SharedRounds"]


_FINISHED = -1.0
"""What a worker says that has finished its training."""


class PassesDifferError(ContractError):
    """Workers that train together would not do the same."""

    code = "contract.passes_differ"
    rank: int
    what: str
    sentence = "worker {rank}: {what}; nothing of the pass was trained"


class SharedRounds:
    """The rounds of one run.

    Args:
        group: The workers.
        tables: The names of all tables of rows, in an order that all workers have.
        batches: Of this worker: by table, the ids of each lookup, each id once.
        trains: Whether the model is in training mode; None of a worker that has finished its
            training, and takes part for the others.

    Raises:
        PassesDifferError: if it is in some workers alone.
    """

    def __init__(
        self,
        group: DeviceGroup,
        tables: Sequence[str],
        batches: Sequence[Mapping[str, Sequence[NDArray[np.int64]]]],
        *,
        trains: bool | None,
    ) -> None:
        self._group = group
        said = group.gather([len(batches), _FINISHED if trains is None else trains])
        others = {does for _, does in said if does != _FINISHED}
        if len(others) > 1:
            training = [rank for rank, (_, does) in enumerate(said) if does == 1]
            what = f"workers {training} begin a pass in training mode, and others don't"
            raise PassesDifferError(rank=group.rank, what=what)
        self.all_finished = not others
        """Whether no worker trains any more."""
        self.trains = others == {1}
        """Whether the model is in training mode in the workers that do."""
        self.count = int(max(each[0] for each in said))
        """R"""
        self._own = [
            {
                table: BatchIdsByOwner(
                    batches[number].get(table, ()) if number < len(batches) else (),
                    group.size,
                )
                for table in tables
            }
            for number in range(self.count)
        ]
        self._asked: dict[str, NDArray[np.int64]] = {}
        """By table int64 [W, R]: how many rows each worker asks for in each round."""
        self._wanted: dict[str, list[NDArray[np.int64]]] = {}
        """By table and round: the ids of these rows, those for worker 0 first."""
        for table in tables:
            self._exchange(table)

    def plans(
        self, specs: Sequence[TableSpec], *, budget_bytes: int | None
    ) -> Iterator[PlannedPass]:
        """Yield passes that fit on every device, with the same rounds in each worker.

        Args:
            specs: The tables.
            budget_bytes: As of ``plan_passes``.

        Raises:
            DeviceBudgetError: if a round doesn't fit on this worker's device.
            PassesDifferError: if one doesn't fit on another's.
        """
        first, capacities = 0, dict[str, int]()
        while first < self.count:
            error: DeviceBudgetError | None = None
            planned = None
            try:
                planned = self._plan(specs, first, self.count, budget_bytes, capacities)
            except DeviceBudgetError as found:
                error = found
            said = self._group.gather([0 if planned is None else planned.stop])
            stop = int(min(each[0] for each in said))
            if error is not None:
                raise error
            if not stop:
                rank = next(rank for rank, each in enumerate(said) if not each[0])
                what = f"the rows of a step don't fit into the device_budget of worker {rank}"
                raise PassesDifferError(rank=self._group.rank, what=what)
            if planned is None or planned.stop != stop:
                planned = self._plan(specs, first, stop, budget_bytes, capacities)
            yield replace(planned, stop=stop)
            first, capacities = stop, dict(planned.capacities)

    def table_round(
        self, table: str, number: int, ids: PassIds | None, numbers: NDArray[np.int64] | None
    ) -> SharedRound:
        """Return one table's part of a round.

        Args:
            table: Its name.
            number: Of the round.
            ids: Of this device's rows in the pass; None without any.
            numbers: Of what is asked of them, int64 [v]; None for nothing.
        """
        none = np.empty(0, np.int64)
        places = none if ids is None or numbers is None else ids.places[numbers]
        asked = self._asked[table][:, number].tolist()
        return SharedRound(number, self._own[number][table], asked, places)

    def _plan(
        self,
        specs: Sequence[TableSpec],
        first: int,
        stop: int,
        budget_bytes: int | None,
        capacities: Mapping[str, int],
    ) -> PlannedPass:
        """Return the first pass of some rounds."""
        wanted = (self._wanted_in(number) for number in range(first, stop))
        planned = plan_passes(
            wanted, specs, budget_bytes=budget_bytes, existing=capacities, first=first
        )
        return next(planned)

    def _wanted_in(self, number: int) -> BatchIds:
        """Return the ids that are asked of this device in a round, by table."""
        return {
            table: wanted[number]
            for table, wanted in self._wanted.items()
            if len(wanted[number])
        }

    def _exchange(self, table: str) -> None:
        """Learn what others ask of this device."""
        size, batches = self._group.size, [own[table] for own in self._own]
        counts = np.array([batch.counts for batch in batches], np.int64).reshape(-1, size).T
        one_each = [1] * size
        asked = self._group.exchange(
            torch.from_numpy(np.ascontiguousarray(counts)), one_each, one_each
        ).numpy()
        of_owner: list[NDArray[np.int64]] = []
        for owner in range(size):
            for batch in batches:
                start = int(batch.counts[:owner].sum())
                of_owner.append(batch.ids[start : start + int(batch.counts[owner])])
        flat = np.concatenate(of_owner) if of_owner else np.empty(0, np.int64)
        sent, got = counts.sum(1).tolist(), asked.sum(1).tolist()
        ids = self._group.exchange(torch.from_numpy(flat), sent, got).numpy()
        bounds = np.concatenate([[0], np.cumsum(asked.reshape(-1))])
        self._asked[table] = asked
        self._wanted[table] = [
            np.concatenate(
                [
                    ids[
                        bounds[rank * self.count + number] : bounds[
                            rank * self.count + number + 1
                        ]
                    ]
                    for rank in range(size)
                ]
            )
            for number in range(self.count)
        ]
