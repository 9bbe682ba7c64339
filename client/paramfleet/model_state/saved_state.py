"""A model's buffers and extra states as files of a checkpoint.

What can't be saved without running code when it is read (an extra state that is no plain
value) is left out, by name: in the manifest and in the log.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from paramfleet.model_state.module_state import (
    Buffer,
    ModuleState,
    check_fits,
    has_state,
    install,
    missing_in,
    state_of,
)
from paramfleet.model_state.numbers import wrong_numbers
from paramfleet.model_state.plain import from_document, to_document, to_documents
from paramfleet.tables.weight.parameter import TableWeight
from paramfleet_shared.checkpoint.manifest import (
    MANIFEST,
    CheckpointDamagedError,
    Manifest,
    ManifestError,
    read_arrays,
    write_arrays,
)
from paramfleet_shared.checkpoint.saved_module import SavedBuffer, SavedModule
from paramfleet_shared.errors import ContractError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "BuffersToLoad",
    "StateNumbersError",
    "StateToWrite",
    "buffers_to_load",
    "plain_state",
    "read_state",
    "state_to_write",
    "with_arrays",
    "write_state",
]

log = logging.getLogger(__name__)


class StateNumbersError(ContractError):
    """A model can't be exported: its answers would be NaN."""

    code = "contract.state_numbers"
    name: str
    rule: str
    sentence = (
        "{name!r} of the model {rule}, which an export can't contain: find the batch that "
        "caused it, or continue from an earlier checkpoint"
    )


_FILE = "module.safetensors"


class StateToWrite(NamedTuple):
    """A state that is a file of a checkpoint, copied and not written yet.

    Nothing that is changed later reaches it: arrays are carriers of tensors.
    """

    name: str
    kind: str
    saved: SavedModule
    arrays: "Mapping[str, NDArray[Any]]"

    def write(self, folder: Path) -> SavedModule:
        """Write it, and return what the manifest says of it.

        Raises:
            CheckpointWriteError: if the system refuses.
        """
        return with_arrays(folder, self.name, self.saved, self.arrays, kind=self.kind)


def write_state(folder: Path, model: torch.nn.Module) -> SavedModule:
    """Write a model's state beside its tables, and return what the manifest says of it.

    Raises:
        CheckpointWriteError: if the system refuses.
    """
    return state_to_write(model).write(folder)


def state_to_write(model: torch.nn.Module) -> StateToWrite:
    """Copy a model's state, as it is written beside its tables.

    A buffer whose numbers no checkpoint may hold, such as a running mean of NaN, is left out
    by name: the checkpoint loads, and the buffer begins anew.
    """
    state = state_of(model)
    extra, arrays, refused = to_documents(state.extra)
    not_saved = state.not_saved | {
        name: f"it {wrong}"
        for name, each in state.buffers.items()
        if (wrong := wrong_numbers(name, each.tensor()))
    }
    kept = {name: each for name, each in state.buffers.items() if name not in not_saved}
    for path, why in refused.items():
        not_saved[f"{path}._extra_state" if path else "_extra_state"] = why
    if not_saved:
        log.warning("worker.state_not_saved", extra={"left_out": not_saved})
    arrays |= {f"buffers/{name}": each.carrier for name, each in kept.items()}
    buffers = tuple(
        SavedBuffer(name=name, dtype=each.dtype, shape=each.shape)
        for name, each in kept.items()
    )
    saved = SavedModule(buffers=buffers, extra=extra, not_saved=not_saved)
    return StateToWrite(_FILE, "module", saved, arrays)


def with_arrays(
    folder: Path,
    name: str,
    saved: SavedModule,
    arrays: "Mapping[str, NDArray[Any]]",
    *,
    kind: str,
) -> SavedModule:
    """Write the arrays of a description into a file, if there are any, and name that in it.

    Raises:
        CheckpointWriteError: if the system refuses.
    """
    if not arrays:
        return saved
    written = write_arrays(folder, name, arrays, {"kind": kind})
    return replace(saved, file=name, sha256=written.sha256, bytes=written.num_bytes)


def read_state(folder: Path, manifest: Manifest) -> ModuleState:
    """Read what a checkpoint has of a model's state; nothing if it was saved without.

    Raises:
        ManifestError: if the manifest describes the state wrongly.
        CheckpointDamagedError: if the file isn't what was saved.
    """
    saved = manifest.module
    if saved is None:
        return ModuleState()
    arrays = read_arrays(folder, saved) if saved.file else {}
    buffers = {each.name: _buffer(each, arrays, folder / saved.file) for each in saved.buffers}
    try:
        extra = {path: from_document(each, arrays) for path, each in saved.extra.items()}
    except ValueError as error:
        rule = f"is malformed: an extra state: {error}"
        raise ManifestError(path=str(folder / MANIFEST), rule=rule) from error
    return ModuleState(buffers=buffers, extra=extra, not_saved=dict(saved.not_saved))


class BuffersToLoad(NamedTuple):
    """What a checkpoint has of a model's state, read and compared but not taken yet."""

    model: torch.nn.Module | None
    state: ModuleState
    folder: str

    def install(self) -> list[str]:
        """Give the model what there is.

        Returns:
            The model's buffers and extra states that the checkpoint lacks: they stay as they
            are.
        """
        if self.model is None:
            return []
        missing = missing_in(self.model, self.state)
        unknown = sorted(set(self.state.names) - set(state_of(self.model).names))
        tensors = {name: each.tensor() for name, each in self.state.buffers.items()}
        install(self.model, tensors, self.state.extra)
        if missing:
            not_saved = self.state.not_saved
            facts = {"folder": self.folder, "missing": missing, "not_saved": not_saved}
            log.warning("worker.buffers_not_in_checkpoint", extra=facts)
        if unknown:
            facts = {"folder": self.folder, "unknown": unknown}
            log.warning("worker.buffers_not_in_model", extra=facts)
        return missing


def buffers_to_load(
    model: torch.nn.Module | None, folder: Path, manifest: Manifest
) -> BuffersToLoad:
    """Read what a checkpoint has of a model's state, and compare it with the model.

    A model without any needs none: nothing is read.

    Raises:
        ManifestError: if the manifest describes the state wrongly.
        CheckpointDamagedError: if the file isn't what was saved.
        BufferMismatchError: if a buffer has another shape or dtype.
    """
    if model is None or not has_state(model):
        return BuffersToLoad(None, ModuleState(), str(folder))
    state = read_state(folder, manifest)
    check_fits(model, state.buffers, where=f"the checkpoint {folder}")
    return BuffersToLoad(model, state, str(folder))


def plain_state(model: torch.nn.Module) -> dict[str, Any]:
    """Return a model's ``state_dict`` on the CPU, without rows and states that aren't plain.

    Raises:
        StateNumbersError: if a tensor has numbers that nothing can be computed with.
    """
    found: dict[str, Any] = {}
    learned = {name for name, each in model.named_parameters() if each.requires_grad}
    for name, value in model.state_dict(keep_vars=True).items():
        if isinstance(value, TableWeight):
            continue
        if isinstance(value, torch.Tensor):
            found[name] = value.detach().cpu()
            wrong = wrong_numbers(name, found[name], is_learned=name in learned)
            if wrong:
                raise StateNumbersError(name=name, rule=wrong)
            continue
        try:
            to_document(value, {})
        except ValueError as error:
            log.warning("worker.state_not_saved", extra={"left_out": {name: str(error)}})
            continue
        found[name] = value
    return found


def _buffer(saved: SavedBuffer, arrays: Mapping[str, "NDArray[Any]"], path: Path) -> Buffer:
    """Return a buffer's values.

    Raises:
        CheckpointDamagedError: if the file lacks them, or has others.
    """
    carrier = arrays.get(f"buffers/{saved.name}")
    if carrier is None:
        reason = f"buffer {saved.name!r}: its numbers are missing"
        raise CheckpointDamagedError(path=str(path), reason=reason)
    buffer = Buffer(dtype=saved.dtype, shape=saved.shape, carrier=carrier)
    try:
        wrong = wrong_numbers(saved.name, buffer.tensor())
    except ValueError as error:
        reason = f"buffer {saved.name!r}: {error}"
        raise CheckpointDamagedError(path=str(path), reason=reason) from error
    if wrong:
        reason = f"buffer {saved.name!r} {wrong}"
        raise CheckpointDamagedError(path=str(path), reason=reason)
    return buffer
