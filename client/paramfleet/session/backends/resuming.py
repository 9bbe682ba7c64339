"""Workers go on from what a checkpoint has beside the model: steps, schedules, positions.

Only the first worker reads the files. The others receive it in a gather.
"""

import logging
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from paramfleet.model_state.plain import pack, unpack
from paramfleet.session.backends.base import Backend
from paramfleet.session.registered import SavedProgress
from paramfleet.session.saved_progress import read_progress
from paramfleet.tables.dense_parameters import check_same_places, parameters_of
from paramfleet.training.job import Job
from paramfleet.training.load_notes import note_differences
from paramfleet.training.optimizer import DistributedOptimizer
from paramfleet_shared.checkpoint.manifest import Manifest
from paramfleet_shared.checkpoint.one_manifest import of_one_manifest
from paramfleet_shared.errors import FleetError, error_from_wire, error_to_wire

__all__ = [
    "begin_registered",
    "packed_progress",
    "plain_of",
    "progress_of",
    "take_progress",
    "taking_progress",
    "unpacked_progress",
]

log = logging.getLogger(__name__)

_GATHER = "fleet.progress"


def begin_registered(backend: Backend, job: Job, optimizer: DistributedOptimizer) -> None:
    """Go on from what the pservers had loaded before the job began; every worker calls it.

    Raises:
        FleetError: if worker 0 can't read it, its dense tables have other parameters than the
            model's, or have them in another order, or a state doesn't fit.
    """
    registered, loaded = backend.own.registered, job.agreement.loaded_from
    if registered.has_positions:
        job.answering.begin({"positions": registered.answer})
    if not loaded.folder or job.communicator.session.has_passed(f"gather/{_GATHER}"):
        return  # who comes late has no part in it, and who returns knows more of itself
    payload = b""
    if job.author.rank == 0:
        try:
            folder, manifest = loaded.read()
            _check_dense(job, optimizer, manifest)
            with of_one_manifest(folder, manifest):
                payload = pack([None, plain_of(read_progress(folder, manifest))])
            note_differences(optimizer, manifest, folder)
        except FleetError as error:
            payload = pack([error_to_wire(error), None])
    refusal, progress = unpack(backend.gather(_GATHER, payload)[0])
    if refusal is not None:
        failure = error_from_wire(refusal)
        raise failure
    take_progress(backend, optimizer, progress_of(progress), loaded.folder)


def take_progress(
    backend: Backend,
    optimizer: DistributedOptimizer,
    progress: SavedProgress | None,
    folder: str,
) -> list[str]:
    """Do as ``taking_progress`` with nothing else to do; return what that yields."""
    with taking_progress(backend, optimizer, progress, folder) as lacking:
        return lacking


@contextmanager
def taking_progress(
    backend: Backend,
    optimizer: DistributedOptimizer,
    progress: SavedProgress | None,
    folder: str,
    *,
    positions: bool = True,
) -> Generator[list[str], None, None]:
    """Have registered objects and the step count go on, if the block succeeds.

    Yields:
        What of it stays as it is.

    Raises:
        RegisteredStateError: if a saved state isn't one of such an object; nothing is changed.
        OtherDataError: if a position is one in other data; the same.
    """
    saved = progress or SavedProgress(steps=optimizer.num_steps)
    registered, workers = backend.own.registered, backend.worker_num()
    rank = backend.worker_index()
    taking = registered.taking(saved, rank=rank, workers=workers, positions=positions)
    with taking as lacking:
        yield list(lacking)
    optimizer.go_on_from(saved.steps, saved.days)
    if lacking:
        remedy = "they stay as they are"
        if workers != saved.workers and registered.has_positions:
            remedy = (
                f"load with {saved.workers} workers to continue from positions, or give their "
                "objects a reshard(states, rank, size)"
            )
        facts = {"folder": folder, "reasons": lacking, "remedy": remedy}
        log.warning("worker.not_resumed", extra=facts)


def packed_progress(folder: Path, manifest: Manifest) -> bytes:
    """Return a checkpoint's progress for all workers.

    Raises:
        ManifestError: if the manifest describes it wrongly.
        CheckpointDamagedError: if its file isn't what was saved.
    """
    return pack(plain_of(read_progress(folder, manifest)))


def unpacked_progress(packed: bytes) -> SavedProgress | None:
    """Return what ``packed_progress`` packed."""
    return progress_of(unpack(packed))


def _check_dense(job: Job, optimizer: DistributedOptimizer, manifest: Manifest) -> None:
    """Pass if the vectors that the pservers have loaded are those of the model.

    Raises:
        DenseParameterError: if they have other parameters, or other shapes.
        DenseOrderError: if they have them in another order.
    """
    blocks = [block for block, _ in optimizer.tables.dense]
    check_same_places(manifest.parameters, parameters_of(job.agreement.model, blocks))


def plain_of(progress: SavedProgress | None) -> Any:
    """Return a progress as a plain value."""
    if progress is None:
        return None
    return {
        "steps": progress.steps,
        "workers": progress.workers,
        "states": progress.states,
        "pending": progress.pending,
        "positions": [[rank, states] for rank, states in progress.positions.items()],
        "not_saved": progress.not_saved,
        "days": progress.days,
    }


def progress_of(plain: Any) -> SavedProgress | None:
    """Return what ``plain_of`` was given."""
    if plain is None:
        return None
    positions = {int(rank): states for rank, states in plain.pop("positions")}
    return SavedProgress(**plain, positions=positions)
