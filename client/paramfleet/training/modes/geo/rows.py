"""GEO's rows, taken as the pservers hold them."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from paramfleet.tables.replica import RowReplica
from paramfleet.training.job import Job
from paramfleet.training.modes.geo.deltas import ReceivedRows
from paramfleet.training.modes.geo.states import GeoStates
from paramfleet.transport.requests import Read, ReadPlan
from paramfleet_shared.tables.partition import partition
from paramfleet_shared.tables.rows.batch import RowIds

__all__ = ["drop", "pull_anew", "take_received"]


def take_received(
    replica: RowReplica, pieces: Iterable[ReceivedRows], states: GeoStates
) -> None:
    """Take in what an exchange brought of one table, in the order it was said.

    Args:
        replica: Its rows.
        pieces: What was said.
        states: Of this worker's optimizer.
    """
    for removed, ids, served in pieces:
        if len(removed):
            drop(replica, removed, states)
        replica.receive(ids, served)


def drop(replica: RowReplica, ids: NDArray[np.int64], states: GeoStates) -> None:
    """Drop rows that were removed, int64 [n], with their progress and states."""
    with states.lock:
        states.forget(replica.store.spec.name, replica.drop(ids))


def pull_anew(job: Job, replica: RowReplica, *, max_rows: int) -> None:
    """Take every row anew: what was received and added before was rounded.

    Args:
        job: The worker's connections.
        replica: The rows.
        max_rows: Of one message.

    Raises:
        FleetError: if a pserver didn't answer, or the job failed.
    """
    spec, placement = replica.store.spec, job.placement
    ids = replica.store.live_ids().copy()
    for start in range(0, len(ids), max_rows):
        some, _, offsets = partition(ids[start : start + max_rows], placement.num_shards)
        read = Read(table=spec.name, rows=RowIds(some, offsets), dim=spec.dim)
        plan = ReadPlan([read], placement)
        answers = job.communicator.wait(
            job.pservers.pull(plan, rank=job.author.rank, min_step=0)
        )
        replica.install(some, plan.join(answers)[0])
