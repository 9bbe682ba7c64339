"""What a checkpoint of a job without servers consists of, as its manifest says it.

A checkpoint is a folder: ``workerN.safetensors`` of each worker that saved it, and
``manifest.json``, which has the SHA-256 of each. A tensor that all workers have in common lies
in one file, or, where it was sharded, in chunks in several. What each worker has of its own is
a plain value (``model_state.plain``), whose numbers are in that worker's file. Nothing that is
read is ever run: there is no pickle in it.
"""

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paramfleet_shared.checkpoint.manifest import (
    FORMAT,
    GROUP_FORMAT,
    MANIFEST,
    ManifestError,
    put_manifest,
    read_manifest_document,
)
from paramfleet_shared.checkpoint.saved_module import SavedModule
from paramfleet_shared.files.documents import whole
from paramfleet_shared.values.texts import shown

__all__ = [
    "Chunk",
    "GroupManifest",
    "SavedTensor",
    "merged",
    "read_group_manifest",
    "write_group_manifest",
]

VERSION = 1

_MAX_WORKERS = 1 << 20

_NOT_WHOLE = "its chunks don't have each of its numbers once"


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """A part of a tensor: a box in it, and where its numbers are."""

    offsets: tuple[int, ...]
    """Of its first number, in each dimension."""

    sizes: tuple[int, ...]

    worker: int
    """Whose file has it."""

    name: str
    """Of the array in that file."""

    def to_wire(self) -> list[Any]:
        """Return plain values."""
        return [list(self.offsets), list(self.sizes), self.worker, self.name]

    @classmethod
    def from_wire(cls, wire: Sequence[Any]) -> "Chunk":
        """Rebuild what ``to_wire`` returned.

        Raises:
            ValueError: if a value is of another kind.
        """
        offsets, sizes, worker, name = wire
        return cls(
            offsets=_lengths(offsets, "offsets"),
            sizes=_lengths(sizes, "sizes"),
            worker=whole(worker, "worker", most=_MAX_WORKERS),
            name=str(name),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedTensor:
    """A tensor that all workers have in common."""

    dtype: str
    """Torch's name of it, such as ``bfloat16``."""

    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]

    def check_whole(self) -> None:
        """Pass if the chunks, cut in one dimension, have each of its numbers once.

        Raises:
            ValueError: if they don't.
        """
        if any(
            not len(chunk.offsets) == len(chunk.sizes) == len(self.shape)
            for chunk in self.chunks
        ):
            raise ValueError("a chunk has other dimensions")
        cut = {
            dim
            for chunk in self.chunks
            for dim, box in enumerate(zip(chunk.offsets, chunk.sizes, strict=True))
            if box != (0, self.shape[dim])
        }
        if len(cut) > 1:
            raise ValueError("it is cut in more than one dimension")
        if not cut:
            if len(self.chunks) != (1 if math.prod(self.shape) else 0):
                raise ValueError(_NOT_WHOLE)
            return
        (dim,) = cut
        end = 0
        for chunk in sorted(self.chunks, key=lambda chunk: chunk.offsets[dim]):
            if chunk.offsets[dim] != end:
                raise ValueError(_NOT_WHOLE)
            end += chunk.sizes[dim]
        if end != self.shape[dim]:
            raise ValueError(_NOT_WHOLE)

    def to_wire(self) -> dict[str, Any]:
        """Return plain values."""
        chunks = [chunk.to_wire() for chunk in self.chunks]
        return {"dtype": self.dtype, "shape": list(self.shape), "chunks": chunks}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> "SavedTensor":
        """Rebuild what ``to_wire`` returned; its chunks may be a part of it.

        Raises:
            KeyError: if a value is missing.
            TypeError: if one can't be read at all.
            ValueError: if one is of another kind.
        """
        return cls(
            dtype=str(wire["dtype"]),
            shape=_lengths(wire["shape"], "shape"),
            chunks=tuple(Chunk.from_wire(each) for each in wire["chunks"]),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupManifest:
    """What a checkpoint consists of."""

    steps: int
    """That each worker had taken."""

    made_of: tuple[str, ...]
    """The optimizer's class, and the features whose state is in it."""

    common: Any
    """The document of what all workers have in common beside tensors."""

    tensors: Mapping[str, SavedTensor] = field(default_factory=dict)
    """Those that all workers have in common."""

    workers: tuple[SavedModule, ...]
    """The file of each, by rank, and the documents of what is its own."""

    digest: str = field(default="", compare=False)
    """SHA-256 of the file it was read from; empty if it was not read."""


def merged(parts: Sequence[Mapping[str, SavedTensor]]) -> dict[str, SavedTensor]:
    """Return tensors of whose chunks each worker has some.

    Args:
        parts: By rank.
    """
    found: dict[str, SavedTensor] = {}
    for part in parts:
        for name, tensor in part.items():
            before = found[name].chunks if name in found else ()
            found[name] = SavedTensor(
                dtype=tensor.dtype, shape=tensor.shape, chunks=(*before, *tensor.chunks)
            )
    return found


def write_group_manifest(folder: Path, manifest: GroupManifest) -> None:
    """Write a checkpoint's manifest, when all its files are on the disk.

    Raises:
        CheckpointWriteError: if the system refuses.
    """
    document = {
        "format": GROUP_FORMAT,
        "version": VERSION,
        "save": secrets.token_hex(16),  # no other save has the same digest
        "steps": manifest.steps,
        "made_of": list(manifest.made_of),
        "common": manifest.common,
        "tensors": {name: each.to_wire() for name, each in manifest.tensors.items()},
        "workers": [worker.to_wire() for worker in manifest.workers],
    }
    put_manifest(folder, document)


def read_group_manifest(folder: Path, *, digest: str = "") -> GroupManifest:
    """Read a checkpoint's manifest; with ``digest``, only the one of this SHA-256.

    Raises:
        ManifestError: if there is none, it is another, or it breaks a rule of the format.
    """
    path = folder / MANIFEST
    advice = "; load another checkpoint"
    document, found = read_manifest_document(path, digest=digest, advice=advice)
    if rule := _broken_format(document):
        raise ManifestError(path=str(path), rule=rule)
    try:
        return _manifest_of(document, found)
    except (KeyError, TypeError, ValueError) as error:
        rule = f"is malformed: {error!r}; load another checkpoint"
        raise ManifestError(path=str(path), rule=rule) from error


def _broken_format(document: Any) -> str:
    """Return why a document is no manifest of this version; empty if it may be one."""
    stated = (document.get("format"), document.get("version")) if type(document) is dict else ()
    if stated == (GROUP_FORMAT, VERSION):
        return ""
    if stated[:1] == (FORMAT,):
        return "is that of a job with servers, or of one process: load it in such a one"
    return f"must be {GROUP_FORMAT} version {VERSION}; load another checkpoint"


def _manifest_of(document: Mapping[str, Any], digest: str) -> GroupManifest:
    """Return what a document says.

    Raises:
        KeyError: if a value is missing.
        TypeError: if one can't be read at all.
        ValueError: if one is of another kind, or tensors aren't whole.
    """
    workers = tuple(SavedModule.from_wire(wire) for wire in document["workers"])
    if not workers or not all(worker.file for worker in workers):
        raise ValueError("it names no file of a worker")
    tensors = {
        str(name): SavedTensor.from_wire(wire) for name, wire in document["tensors"].items()
    }
    for name, tensor in tensors.items():
        if any(chunk.worker >= len(workers) for chunk in tensor.chunks):
            problem = f"tensor {shown(name)} lies in the file of a worker that isn't there"
            raise ValueError(problem)
        try:
            tensor.check_whole()
        except ValueError as error:
            problem = f"tensor {shown(name)}: {error}"
            raise ValueError(problem) from error
    return GroupManifest(
        steps=whole(document["steps"], "steps"),
        made_of=tuple(str(each) for each in document["made_of"]),
        common=document["common"],
        tensors=tensors,
        workers=workers,
        digest=digest,
    )


def _lengths(wire: Any, name: str) -> tuple[int, ...]:
    """Return whole numbers.

    Raises:
        ValueError: if they are anything else.
    """
    if type(wire) is not list:
        problem = f"{name} = {shown(wire)} is no list"
        raise ValueError(problem)
    return tuple(whole(each, name) for each in wire)
