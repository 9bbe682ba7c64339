"""Optimizer states of a loaded checkpoint, for workers that each have their own.

They are in no table here: a worker reads them out of the files, some rows at a time, right
after the load. One file is kept in memory while it is read, and which ids newer layers decide.
"""

import asyncio
from pathlib import Path
from typing import NamedTuple

from paramfleet_shared.checkpoint.layers import Layers, read_layers
from paramfleet_shared.checkpoint.manifest import FilePart, read_manifest
from paramfleet_shared.checkpoint.one_manifest import of_one_manifest
from paramfleet_shared.net.wire.message import MalformedMessageError, Message

__all__ = ["SavedStates"]

ANSWER_VALUES = 1 << 23
"""Floats of an answer: 32 MiB."""

KEPT_S = 5.0
"""Seconds that a file is kept after it was asked for."""


class _Kept(NamedTuple):
    """What was read last."""

    folder: Path
    layers: Layers
    number: int
    part: FilePart


class SavedStates:
    """Reads one checkpoint's files. Used from one event loop."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._digest = ""
        self._kept: _Kept | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._reading = asyncio.Lock()

    def begin(self, folder: Path, digest: str) -> None:
        """Read from another checkpoint from now on: that of this manifest's SHA-256."""
        self._folder, self._digest, self._kept = folder, digest, None

    async def listed(self) -> Message:
        """Answer with the tables, as the manifest has them, and the table of each file.

        Raises:
            ManifestError: if the folder is no checkpoint any more, or another.
        """
        if self._folder is None:
            return Message(fields={"tables": [], "files": []})
        layers = await asyncio.to_thread(_layers_of, self._folder, self._digest)
        return Message(
            fields={
                "tables": [table.to_wire() for table in layers.top.manifest.tables],
                "files": layers.tables_of_files(),
            }
        )

    async def read(self, number: int, row: int) -> Message:
        """Answer with the states of a file's rows from ``row`` on, as many as fit.

        Args:
            number: The file's, in the manifest.
            row: The first row (dense: value), counted in the file.

        Returns:
            ``rows``, those of the file; ``start``, of a dense table's file the place of its
            first value; ``states`` float32 [n, W] and ``ids`` int64 [n], or [S, n].

        Raises:
            MalformedMessageError: if there is no such file or row.
            ManifestError: if the folder is no checkpoint any more, or another.
            CheckpointDamagedError: if the file isn't what was saved.
        """
        part = await self._part(number)
        if row > part.num_rows:
            raise MalformedMessageError(where="states field 'row'", rule="is behind the file")
        about = {"rows": part.num_rows, "start": part.start}
        if part.ids is None:
            count = max(1, ANSWER_VALUES // max(1, len(part.states)))
            return Message(
                fields=about, tensors={"states": part.states[:, row : row + count].copy()}
            )
        count = max(1, ANSWER_VALUES // max(1, part.states.shape[1]))
        some = slice(row, row + count)
        return Message(
            fields=about, tensors={"ids": part.ids[some], "states": part.states[some]}
        )

    async def _part(self, number: int) -> FilePart:
        async with self._reading:
            folder, digest, kept = self._folder, self._digest, self._kept
            if kept is not None and kept.folder != folder:
                kept = None
            if kept is None or kept.number != number:
                layers = None if kept is None else kept.layers
                self._kept = kept = None  # its memory is for the next file
                kept = await asyncio.to_thread(_read, folder, digest, layers, number)
                if (folder, digest) == (self._folder, self._digest):
                    self._kept = kept
            if self._alarm is not None:
                self._alarm.cancel()
            self._alarm = asyncio.get_running_loop().call_later(KEPT_S, self._drop)
            return kept.part

    def _drop(self) -> None:
        self._kept = None


def _layers_of(folder: Path, digest: str) -> Layers:
    return read_layers(folder, read_manifest(folder, digest=digest))


def _read(folder: Path | None, digest: str, layers: Layers | None, number: int) -> _Kept:
    if layers is None and folder is not None:
        layers = _layers_of(folder, digest)
    file = None if layers is None else layers.file(number)
    if folder is None or layers is None or file is None:
        rule = f"there is no file {number}"
        raise MalformedMessageError(where="states field 'file'", rule=rule)
    with of_one_manifest(folder, layers.top.manifest):
        return _Kept(folder, layers, number, file.read())
