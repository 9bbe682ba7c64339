"""GEO's rows, taken as the pservers hold them."""

import logging
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from paramfleet.tables.replica import RowReplica
from paramfleet.training.job import Job
from paramfleet.training.modes.geo.deltas import ReceivedRows
from paramfleet.training.modes.geo.states import GeoStates
from paramfleet.transport.requests import Read, ReadPlan
from paramfleet_shared.tables.partition import partition
from paramfleet_shared.tables.rows.batch import RowIds
from paramfleet_shared.tables.rows.ctr import NUM_SEEN

__all__ = ["drop", "lost_ids", "pull_anew", "take_lost", "take_received"]

log = logging.getLogger(__name__)


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
    ids = replica.store.live_ids().copy()
    for some, served in _pulled(job, replica, ids, max_rows):
        replica.install(some, served)


def lost_ids(
    replica: RowReplica, came: NDArray[np.int64], *, shards: range, num_shards: int
) -> NDArray[np.int64]:
    """Return the rows of some shards that are here, and didn't come with all others.

    Args:
        replica: The rows.
        came: Those that came, int64 [n].
        shards: Which.
        num_shards: Of the table.
    """
    ids, _, offsets = partition(replica.store.live_ids(), num_shards)
    own = ids[offsets[shards.start] : offsets[shards.stop]]
    lost: NDArray[np.int64] = own[~np.isin(own, came)]
    return lost


def take_lost(
    job: Job, replica: RowReplica, server: int, came: NDArray[np.int64], *, max_rows: int
) -> None:
    """Read the rows of a pserver that didn't come when it sent all that it has.

    It may lack what this worker has received of them: the change of a worker that died
    together with the pserver. This worker's own progress stays. No exchange is under way, so
    what it has sent of its own is in what is read.

    Args:
        job: The worker's connections.
        replica: The rows.
        server: The pserver.
        came: What came, int64 [n].
        max_rows: Of one message.

    Raises:
        FleetError: if a pserver didn't answer, or the job failed.
    """
    placement = job.placement
    shards = placement.shards_of(server)
    ids = lost_ids(replica, came, shards=shards, num_shards=placement.num_shards)
    for some, served in _pulled(job, replica, ids, max_rows):
        replica.receive(some, served)
    if len(ids):
        facts = {"server": server, "table": replica.store.spec.name, "rows": len(ids)}
        log.info("worker.rows_read_anew", extra=facts)


def _pulled(
    job: Job, replica: RowReplica, ids: NDArray[np.int64], max_rows: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    """Yield rows as the pservers hold them; of one that isn't there, its first value."""
    spec, placement = replica.store.spec, job.placement
    for start in range(0, len(ids), max_rows):
        some, _, offsets = partition(ids[start : start + max_rows], placement.num_shards)
        counted = bool(spec.optimizer.num_counts)
        dim = spec.dim + (NUM_SEEN if counted else 0)
        read = Read(table=spec.name, rows=RowIds(some, offsets), dim=dim, counted=counted)
        plan = ReadPlan([read], placement)
        answers = job.communicator.wait(
            job.pservers.pull(plan, rank=job.author.rank, min_step=0)
        )
        yield some, plan.join(answers)[0]
