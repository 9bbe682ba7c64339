"""Worker 0 has every pserver load a checkpoint, and says to all workers how that ended."""

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgpack

from paramfleet.model_state.one_checkpoint import one_manifest
from paramfleet.model_state.saved_state import buffers_to_load
from paramfleet.nn.table_binding import without_negative_ids
from paramfleet.session.backends.resuming import packed_progress
from paramfleet.training.job import Job
from paramfleet.training.load_notes import note_differences
from paramfleet_shared.errors import FleetError, error_to_wire

if TYPE_CHECKING:
    from paramfleet.training.optimizer import DistributedOptimizer

__all__ = ["load_everywhere", "log_left_out"]

log = logging.getLogger(__name__)


def load_everywhere(job: Job, folder: Path, optimizer: "DistributedOptimizer") -> bytes:
    """Have every pserver load, and worker 0's model take the buffers.

    Returns:
        For all workers: the first error as the wire has it, or what the checkpoint lacks,
        the buffers and the progress.
    """
    agreement = job.agreement
    try:
        with one_manifest(folder) as manifest:
            buffers = buffers_to_load(agreement.model, folder, manifest)
            progress = packed_progress(folder, manifest)
            fields = {
                "dirname": str(folder),
                "manifest": manifest.digest,
                "not_negative": without_negative_ids(agreement.model),
            }
            timeout_s = job.pservers.step_timeout_s
            loading = job.pservers.call_all("load", fields, timeout_s=timeout_s)
            log_left_out(job.communicator.wait(loading)[0].fields["left_out"])
    except FleetError as error:
        answer: list[Any] = [error_to_wire(error), [], b"", b""]
    else:
        lacking = note_differences(optimizer, manifest, folder) + buffers.install()
        answer = [None, lacking, agreement.payload(say="all"), progress]
    packed: bytes = msgpack.packb(answer)
    return packed


def log_left_out(tables: Iterable[Sequence[str]]) -> None:
    """Warn of tables whose optimizer states another rule had saved."""
    for table, saved, rule in tables:
        log.warning(
            "worker.states_left_out", extra={"table": table, "saved": saved, "rule": rule}
        )
