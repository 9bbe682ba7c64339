"""Optimizer states of a loaded checkpoint, for workers that each have their own.

They are in no table here: a worker reads them out of the files, some rows at a time, right
after the load. One file is kept in memory while it is read.
"""

import asyncio
from pathlib import Path

from paramfleet_shared.checkpoint.manifest import FilePart, read_manifest, read_part
from paramfleet_shared.checkpoint.one_manifest import of_one_manifest
from paramfleet_shared.net.wire.message import MalformedMessageError, Message

__all__ = ["SavedStates"]

ANSWER_VALUES = 1 << 23
"""Floats of an answer: 32 MiB."""

KEPT_S = 5.0
"""Seconds that a file is kept after it was asked for."""


class SavedStates:
    """Reads one checkpoint's files. Used from one event loop."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._digest = ""
        self._kept: tuple[Path, int, FilePart] | None = None
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
        manifest = await asyncio.to_thread(read_manifest, self._folder, digest=self._digest)
        return Message(
            fields={
                "tables": [table.to_wire() for table in manifest.tables],
                "files": [file.table for file in manifest.files],
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
            if kept is None or kept[:2] != (folder, number):
                self._kept = None
                kept = await asyncio.to_thread(_read, folder, digest, number)
                if (folder, digest) == (self._folder, self._digest):
                    self._kept = kept
            if self._alarm is not None:
                self._alarm.cancel()
            self._alarm = asyncio.get_running_loop().call_later(KEPT_S, self._drop)
            return kept[2]

    def _drop(self) -> None:
        self._kept = None


def _read(folder: Path | None, digest: str, number: int) -> tuple[Path, int, FilePart]:
    manifest = None if folder is None else read_manifest(folder, digest=digest)
    if folder is None or manifest is None or number >= len(manifest.files):
        rule = f"there is no file {number}"
        raise MalformedMessageError(where="states field 'file'", rule=rule)
    file = manifest.files[number]
    (spec,) = [table.spec for table in manifest.tables if table.spec.name == file.table]
    with of_one_manifest(folder, manifest):
        return folder, number, read_part(folder, file, spec)
