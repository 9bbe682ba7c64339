"""``fleet.load_model`` in a job: what workers can refuse comes first, then the pservers load.

1. Worker 0 reads the checkpoint's manifest, its buffers and what is registered. Pservers load
   dense tables as vectors, so their parameters must be in the model's order.
2. Every worker's registered objects take their states; all learn whether each one could.
3. Worker 0 has every pserver load, and all workers take what it has.

A failure before the third part changes nothing. In the third some pservers may have loaded:
then this worker takes no step until a load has succeeded.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgpack

from paramfleet.model_state.saved_state import BuffersToLoad, buffers_to_load
from paramfleet.nn.table_binding import without_negative_ids
from paramfleet.session.backends.base import Backend
from paramfleet.session.backends.resuming import (
    packed_progress,
    taking_progress,
    unpacked_progress,
)
from paramfleet.tables.dense_parameters import check_same_places, parameters_of
from paramfleet.training.job import Job
from paramfleet.training.load_notes import note_differences
from paramfleet.transport.pservers import answers_of
from paramfleet_shared.checkpoint.manifest import Manifest
from paramfleet_shared.checkpoint.one_manifest import of_one_manifest, one_manifest
from paramfleet_shared.errors import (
    ContractError,
    FleetError,
    OutcomeUnknownError,
    UnavailableError,
    error_from_wire,
    error_to_wire,
)
from paramfleet_shared.net.wire.message import Message

if TYPE_CHECKING:
    from paramfleet.training.optimizer import DistributedOptimizer

__all__ = ["LoadRefusedError", "LoadReport", "load_everywhere", "log_left_out"]

log = logging.getLogger(__name__)


class LoadRefusedError(ContractError):
    """A worker's registered objects raised something else than an error of a wrong state."""

    code = "contract.load_refused"
    worker: int
    reason: str
    sentence = (
        "worker {worker} can't take the checkpoint's states: {reason}; nothing was changed"
    )


class LoadReport(NamedTuple):
    """What a load has done."""

    missing: list[str]
    """What stays as it was, because the checkpoint doesn't have it."""
    rows: dict[str, int]
    """In worker 0: how many rows, or values of a dense table, pservers have of each table."""


class _Read(NamedTuple):
    """What worker 0 has read."""

    manifest: Manifest
    buffers: BuffersToLoad
    progress: bytes


def load_everywhere(
    backend: Backend,
    job: Job,
    optimizer: "DistributedOptimizer",
    folder: Path,
    *,
    positions: bool = True,
) -> LoadReport:
    """Load a checkpoint in every pserver and worker; every worker calls it.

    Without ``positions`` each worker stays where it is in its data.

    Raises:
        FleetError: what one of them has refused: the same one in every worker.
    """
    read: _Read | None = None
    said: list[Any] = [None, b""]
    if backend.worker_index() == 0:
        try:
            read = _read(job, optimizer, folder)
            said[1] = read.progress
        except FleetError as unread:
            said[0] = error_to_wire(unread)
    refusal, progress = msgpack.unpackb(backend.gather("fleet.load_model", _packed(said))[0])
    _raise(refusal)
    saved = unpacked_progress(progress)
    with ExitStack() as taken:
        lacking: list[str] = []
        error: Exception | None = None
        try:
            taking = taking_progress(
                backend, optimizer, saved, str(folder), positions=positions
            )
            lacking = taken.enter_context(taking)
        except Exception as failure:  # noqa: BLE001 - a user's object may raise anything
            error = failure
        workers = _agree(backend, error)
        report = _load(backend, job, optimizer, folder, read, workers=workers)
        return report._replace(missing=[*report.missing, *lacking])


def _read(job: Job, optimizer: "DistributedOptimizer", folder: Path) -> _Read:
    """Read what the pservers don't, and compare dense parameters and buffers with the model's.

    Raises:
        FleetError: if the folder isn't a checkpoint of this model; nothing is changed.
    """
    model, blocks = job.agreement.model, [block for block, _ in optimizer.tables.dense]
    with one_manifest(folder) as manifest:
        check_same_places(manifest.parameters, parameters_of(model, blocks))
        buffers = buffers_to_load(model, folder, manifest)
        return _Read(manifest, buffers, packed_progress(folder, manifest))


def _agree(backend: Backend, error: Exception | None) -> int:
    """Say whether this worker has taken its states; return how many workers there are.

    Raises:
        Exception: this worker's error, or that of the first worker that has one.
    """
    refusal = None
    if error is not None:
        log.warning("worker.states_not_taken", extra={"reason": str(error) or repr(error)})
        reported = error
        if not isinstance(error, FleetError):
            reported = LoadRefusedError(worker=backend.worker_index(), reason=repr(error))
        refusal = error_to_wire(reported)
    outcomes = backend.gather("fleet.load_model.states", _packed(refusal))
    if error is not None:
        raise error
    for outcome in outcomes:
        _raise(msgpack.unpackb(outcome))
    return len(outcomes)


def _load(
    backend: Backend,
    job: Job,
    optimizer: "DistributedOptimizer",
    folder: Path,
    read: _Read | None,
    *,
    workers: int,
) -> LoadReport:
    """Have the pservers load, and take what they have.

    Raises:
        FleetError: if a pserver refuses. The optimizer steps on only if all have refused.
    """
    agreement = job.agreement
    with optimizer.loading(str(folder)):
        outcome, rows = b"", dict[str, int]()
        if read is not None:
            outcome, rows = _load_servers(job, optimizer, folder, read)
        outcome = backend.gather("fleet.load_model.tables", outcome)[0]
        refusal, unchanged, missing, buffers = msgpack.unpackb(outcome)
        if not unchanged:
            _raise(refusal)
            optimizer.running.reload(workers=workers)
            agreement.take([buffers], others="worker 0")
            optimizer.end_load()
    _raise(refusal)
    return LoadReport(list(missing), rows)


def _load_servers(
    job: Job, optimizer: "DistributedOptimizer", folder: Path, read: _Read
) -> tuple[bytes, dict[str, int]]:
    """Have every pserver load, and worker 0's model take the buffers.

    Returns:
        For all workers: the first error as the wire has it, whether all pservers have refused,
        what the checkpoint lacks, and the buffers. And the rows of each table.
    """
    agreement, unchanged = job.agreement, False
    fields = {
        **job.author.fields(),
        "dirname": str(folder),
        "manifest": read.manifest.digest,
        "not_negative": without_negative_ids(agreement.model),
    }
    try:
        outcomes = job.communicator.wait(_ask_each(job, fields))
        unchanged = all(map(_has_refused, outcomes))
        with of_one_manifest(folder, read.manifest):
            answers = answers_of(outcomes)
    except FleetError as error:
        return _packed([error_to_wire(error), unchanged, [], b""]), {}
    log_left_out(answers[0].fields["left_out"])
    missing = note_differences(optimizer, read.manifest, folder) + read.buffers.install()
    rows = Counter[str]()
    for answer in answers:
        rows.update(answer.fields["rows"])
    return _packed([None, False, missing, agreement.payload(say="all")]), dict(rows)


async def _ask_each(job: Job, fields: dict[str, Any]) -> "list[Message | BaseException]":
    """Return what each pserver answers or raises; runs on the communicator's loop."""
    pservers = job.pservers
    return await asyncio.gather(
        *(
            pservers.call_one(server, "load", fields, timeout_s=pservers.step_timeout_s)
            for server in range(len(pservers.placement.endpoints))
        ),
        return_exceptions=True,
    )


def log_left_out(tables: Iterable[Sequence[str]]) -> None:
    """Warn of tables whose optimizer states another rule had saved."""
    for table, saved, rule in tables:
        log.warning(
            "worker.states_left_out", extra={"table": table, "saved": saved, "rule": rule}
        )


def _has_refused(outcome: Message | BaseException) -> bool:
    """Return whether a pserver has certainly not loaded."""
    if isinstance(outcome, UnavailableError):
        return True
    is_error = isinstance(outcome, FleetError) and outcome.remote
    return is_error and not isinstance(outcome, OutcomeUnknownError)


def _packed(said: Any) -> bytes:
    packed: bytes = msgpack.packb(said)
    return packed


def _raise(refusal: Any) -> None:
    """Raise an error that another worker has sent, if it is one."""
    if refusal is not None:
        failure = error_from_wire(refusal)
        raise failure
