"""What is registered for checkpoints, as a part of them: plain values, and their numbers."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paramfleet.model_state.plain import from_document, to_documents
from paramfleet.model_state.saved_state import StateToWrite
from paramfleet.session.registered import SavedProgress
from paramfleet_shared.checkpoint.manifest import MANIFEST, Manifest, ManifestError, read_arrays
from paramfleet_shared.checkpoint.saved_module import SavedModule
from paramfleet_shared.files.documents import whole

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

__all__ = ["progress_to_write", "read_progress", "write_progress"]

log = logging.getLogger(__name__)

_FILE = "progress.safetensors"
_STATES, _POSITIONS = "states", "positions"


def write_progress(folder: Path, progress: SavedProgress) -> SavedModule:
    """Write it beside the tables, and return what the manifest says of it.

    Raises:
        CheckpointWriteError: if the system refuses.
    """
    return progress_to_write(progress).write(folder)


def progress_to_write(progress: SavedProgress) -> StateToWrite:
    """Copy it, as it is written beside the tables.

    A state that isn't made of plain values is left out: the manifest and the log name it.
    """
    values: dict[str, Any] = {f"{_STATES}/{name}": s for name, s in progress.states.items()}
    for rank, states in progress.positions.items():
        values |= {f"{_POSITIONS}/{rank}/{name}": s for name, s in states.items()}
    documents, arrays, refused = to_documents(values)
    documents |= {
        "steps": progress.steps,
        "workers": progress.workers,
        "pending": progress.pending,
    }
    if progress.days:  # which checkpoints of before don't have
        documents["days"] = progress.days
    not_saved = progress.not_saved | refused
    if not_saved:
        log.warning("worker.progress_not_saved", extra={"left_out": not_saved})
    saved = SavedModule(extra=documents, not_saved=not_saved)
    return StateToWrite(_FILE, "progress", saved, arrays)


def read_progress(folder: Path, manifest: Manifest) -> SavedProgress | None:
    """Return what a checkpoint has of it; None if it has nothing.

    Raises:
        ManifestError: if the manifest describes it wrongly.
        CheckpointDamagedError: if its file isn't what was saved.
    """
    saved = manifest.progress
    if saved is None:
        return None
    arrays = read_arrays(folder, saved) if saved.file else {}
    try:
        return _progress_of(saved, arrays)
    except (KeyError, TypeError, ValueError) as error:
        rule = f"is malformed: the progress: {error!r}"
        raise ManifestError(path=str(folder / MANIFEST), rule=rule) from error


def _progress_of(saved: SavedModule, arrays: "Mapping[str, NDArray[Any]]") -> SavedProgress:
    documents = dict(saved.extra)
    steps, workers = documents.pop("steps"), documents.pop("workers")
    pending = documents.pop("pending")
    documents.pop("days", None)
    if type(pending) is not list or any(type(each) is not str for each in pending):
        raise ValueError("pending is no list of names")
    progress = SavedProgress(
        steps=whole(steps, "steps"),
        workers=whole(workers, "workers", least=1),
        pending=pending,
        not_saved=dict(saved.not_saved),
        days=saved.days,
    )
    for path, document in documents.items():
        value = from_document(document, arrays)
        kind, _, name = path.partition("/")
        if kind == _STATES and name:
            progress.states[name] = value
            continue
        rank, _, name = name.partition("/")
        if kind != _POSITIONS or not name or not rank.isdecimal():
            problem = f"{path!r} is nothing that is saved"
            raise ValueError(problem)
        progress.positions.setdefault(int(rank), {})[name] = value
    return progress
