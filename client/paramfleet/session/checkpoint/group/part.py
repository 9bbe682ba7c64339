"""One worker's part of a checkpoint: its file, and what the manifest says of that."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.distributed.tensor import DTensor

from paramfleet.model_state.plain import to_document
from paramfleet.session.checkpoint.group.manifest import GroupManifest, SavedTensor, merged
from paramfleet.session.checkpoint.group.tensors import own_chunks
from paramfleet.session.checkpoint.group.worker_state import WorkerState
from paramfleet.session.registered import SavedProgress
from paramfleet_shared.checkpoint.manifest import write_arrays
from paramfleet_shared.checkpoint.saved_module import SavedModule
from paramfleet_shared.errors import ContractError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["StateNotSavedError", "manifest_of", "progress_of", "write_worker"]

log = logging.getLogger(__name__)

_STATES, _POSITIONS = "states", "positions"


class StateNotSavedError(ContractError):
    """A model or optimizer has a state that no checkpoint can hold; nothing was saved."""

    code = "contract.state_not_saved"
    worker: int
    reason: str
    sentence = (
        "the state of worker {worker}'s model or optimizer: {reason}; a checkpoint holds "
        "tensors and plain values only"
    )


def write_worker(
    folder: Path,
    rank: int,
    state: WorkerState,
    random: Mapping[str, Any],
    progress: SavedProgress,
) -> dict[str, Any]:
    """Write a worker's file.

    Args:
        folder: Of the checkpoint.
        rank: The worker's.
        state: What it has.
        random: The states of its generators.
        progress: What it registered: states, which worker 0 alone writes, and positions. A
            state that isn't made of plain values is left out: manifest and log name it.

    Returns:
        What ``manifest_of`` needs, as JSON carries it.

    Raises:
        StateNotSavedError: if the state isn't made of tensors and plain values.
        CheckpointWriteError: if the system refuses.
    """
    arrays: dict[str, NDArray[Any]] = {}
    whole = rank == 0
    tensors = {n: each for n, each in state.tensors.items() if whole or _is_sharded(each)}
    try:
        chunks = own_chunks(tensors, arrays, worker=rank)
        common = to_document(state.common, arrays) if whole else None
        documents = {"own": to_document(state.own, arrays)}
    except ValueError as error:
        raise StateNotSavedError(worker=rank, reason=str(error)) from error
    documents["random"] = to_document(dict(random), arrays)
    values = {f"{_STATES}/{name}": each for name, each in progress.states.items() if whole}
    for name, each in progress.positions.get(0, {}).items():
        values[f"{_POSITIONS}/{name}"] = each
    not_saved = {}
    for name, value in values.items():
        pieces = dict(arrays)
        try:
            documents[name] = to_document(value, pieces)
        except ValueError as error:
            not_saved[name] = str(error)
        else:
            arrays = pieces
    if not_saved:
        log.warning("worker.progress_not_saved", extra={"left_out": not_saved})
    name = f"worker{rank}.safetensors"
    written = write_arrays(folder, name, arrays, {"kind": "worker", "rank": str(rank)})
    saved = SavedModule(
        file=name,
        sha256=written.sha256,
        bytes=written.num_bytes,
        extra=documents,
        not_saved=not_saved,
    )
    return {
        "file": saved.to_wire(),
        "common": common,
        "chunks": {name: each.to_wire() for name, each in chunks.items()},
    }


def manifest_of(
    parts: Sequence[Mapping[str, Any]], *, steps: int, made_of: tuple[str, ...]
) -> GroupManifest:
    """Return the manifest of what all workers have written.

    Args:
        parts: What ``write_worker`` returned in each, by rank.
        steps: That each had taken.
        made_of: What makes the state.
    """
    chunks = [
        {name: SavedTensor.from_wire(wire) for name, wire in part["chunks"].items()}
        for part in parts
    ]
    return GroupManifest(
        steps=steps,
        made_of=made_of,
        common=parts[0]["common"],
        tensors=merged(chunks),
        workers=tuple(SavedModule.from_wire(part["file"]) for part in parts),
    )


def progress_of(manifest: GroupManifest, values: Sequence[Mapping[str, Any]]) -> SavedProgress:
    """Return what was registered, of a checkpoint.

    Args:
        manifest: The checkpoint's.
        values: The plain values that each worker wrote, by name, by rank.
    """
    progress = SavedProgress(steps=manifest.steps, workers=len(manifest.workers))
    for rank, (own, saved) in enumerate(zip(values, manifest.workers, strict=True)):
        for path, value in own.items():
            kind, _, name = path.partition("/")
            if kind == _STATES and name and not rank:
                progress.states[name] = value
            elif kind == _POSITIONS and name:
                progress.positions.setdefault(rank, {})[name] = value
        for path, why in saved.not_saved.items():
            kind, _, name = path.partition("/")
            named = path if kind == _STATES else f"{_POSITIONS}/{rank}/{name}"
            progress.not_saved[named] = why
    return progress


def _is_sharded(tensor: Any) -> bool:
    return isinstance(tensor, DTensor)
