"""A GEO worker takes the optimizer states of a checkpoint that the pservers have loaded.

They come out of the checkpoint's files, some rows at a time: each file from one pserver.
"""

import logging
from collections.abc import Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from paramfleet.training.job import Job
from paramfleet_shared.checkpoint.manifest import ManifestError, SavedTable
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.tables.spec import OptimizerSpec, TableSpec

__all__ = ["TakesStates", "states_not_used", "take_saved_states"]

log = logging.getLogger(__name__)


class TakesStates(Protocol):
    """Where they go."""

    def rule_for(self, saved: TableSpec) -> OptimizerSpec | None:
        """Return under which rule saved states are used; None if they can't be."""
        ...

    def kind_of(self, table: str) -> str | None:
        """Return which rule or optimizer trains a table here; None if nothing does."""
        ...

    def take_rows(
        self,
        saved: TableSpec,
        ids: NDArray[np.int64],
        states: NDArray[np.float32],
        *,
        steps: int,
    ) -> None:
        """Take states of rows: int64 [n], float32 [n, W]."""
        ...

    def take_values(
        self, saved: TableSpec, start: int, states: NDArray[np.float32], *, steps: int
    ) -> None:
        """Take states of a dense table's values: float32 [S, n] from ``start`` on."""
        ...


def take_saved_states(job: Job, states: TakesStates) -> None:
    """Take the states of what the pservers have loaded last, if they have.

    The first worker warns of tables whose states can't be used. A checkpoint that is gone
    meanwhile leaves the states as they are, with a warning.

    Raises:
        FleetError: if a pserver can't read one of its files.
    """
    try:
        listed = _ask(job, 0, {})
    except ManifestError as error:
        log.warning("worker.states_not_loaded", extra={"reason": str(error)})
        return
    tables = {
        table.spec.name: table for table in map(SavedTable.from_wire, listed.fields["tables"])
    }
    if job.author.rank == 0:
        for left_out in states_not_used(tables, states):
            log.warning("worker.states_left_out", extra=left_out)
    for number, name in enumerate(listed.fields["files"]):
        table = tables[name]
        if table.version and states.rule_for(table.spec) is not None:
            _take_file(job, states, table, number)


def _take_file(job: Job, states: TakesStates, table: SavedTable, number: int) -> None:
    server, row = number % job.placement.num_servers, 0
    while True:
        answer = _ask(job, server, {"file": number, "row": row})
        some, start = answer.tensors["states"], int(answer.fields["start"])
        if table.spec.kind == "dense":
            states.take_values(table.spec, start + row, some, steps=table.version)
            row += some.shape[1]
        else:
            ids = answer.tensors["ids"]
            states.take_rows(table.spec, ids, some, steps=table.version)
            row += len(some)
        if row >= answer.fields["rows"]:
            return


def _ask(job: Job, server: int, about: dict[str, int]) -> Message:
    fields = {"rank": job.author.rank, **about}
    timeout_s = job.pservers.step_timeout_s
    asking = job.pservers.call_one(server, "states", fields, timeout_s=timeout_s)
    return job.communicator.wait(asking)


def states_not_used(
    tables: Mapping[str, SavedTable], states: TakesStates
) -> list[dict[str, str]]:
    """Return the model's tables whose saved states nobody goes on with, and both kinds."""
    return [
        {"table": name, "saved": table.spec.optimizer.rule, "rule": rule}
        for name, table in tables.items()
        if table.spec.optimizer.num_state_columns
        and states.rule_for(table.spec) is None
        and (rule := states.kind_of(name)) is not None
    ]
