"""Writes a checkpoint's files while the next rows are copied."""

import asyncio
import re
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.checkpoint.manifest import (
    CheckpointWriteError,
    FilePart,
    SavedFile,
    write_part,
)
from paramfleet_shared.files.visibility import make_private
from paramfleet_shared.system.threads import background_threads
from paramfleet_shared.tables.memory.reservation import reserve
from paramfleet_shared.tables.spec import TableSpec

__all__ = ["FileWriter"]

AT_ONCE = 2
"""Files that are written at a time: one is hashed while the disk takes the other."""

_Memory = NDArray[np.uint8]
_Result = TypeVar("_Result")


class FileWriter:
    """The files of one save, in the order in which they are given. Used from one event loop.

    Args:
        directory: Where to; ``begin`` makes it. Nothing makes it again: who removes it, because
            the save was given up, has it removed for good.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._written: list[asyncio.Future[SavedFile]] = []
        self._others: list[asyncio.Future[Any]] = []
        self._memory: dict[int, _Memory] = {}
        """By turn. Kept for the whole save: the system takes long to give fresh memory."""
        self._turn = 0
        self._threads = background_threads(AT_ONCE, "checkpoint")

    async def begin(self, own: re.Pattern[str]) -> None:
        """Make the folder, and remove what an earlier attempt of this save has left there.

        A file that no manifest names would keep the checkpoint from being removed later.

        Args:
            own: Matches the names of files that nobody else writes.

        Raises:
            CheckpointWriteError: if the system refuses.
        """
        await self.beside(partial(_make_empty, self._directory, own))

    async def beside(self, work: Callable[[], _Result]) -> _Result:
        """Do other work in this folder on a thread of the writer's; ``settle`` waits for it."""
        loop = asyncio.get_running_loop()
        doing = loop.run_in_executor(self._threads, work)
        self._others.append(doing)
        return await asyncio.shield(doing)

    async def memory(self, num_bytes: int) -> _Memory:
        """Return bytes for what is given to ``write`` next.

        Raises:
            CheckpointWriteError: if a file couldn't be written.
            ReservationError: if the system refuses.
        """
        await self._wait_for_others()
        turn = self._turn % AT_ONCE
        if turn not in self._memory or len(self._memory[turn]) < num_bytes:
            self._memory[turn] = reserve(num_bytes, np.uint8)
        return self._memory[turn][:num_bytes]

    async def write(self, name: str, spec: TableSpec, part: FilePart) -> None:
        """Begin to write a file; return when fewer than ``AT_ONCE`` others are being written.

        Args:
            name: The file's.
            spec: Of the table.
            part: Its rows or values. Nobody may change them before ``memory`` was called
                ``AT_ONCE`` times, or ``end`` has returned.

        Raises:
            CheckpointWriteError: if an earlier file couldn't be written.
        """
        await self._wait_for_others()
        loop = asyncio.get_running_loop()
        write = partial(write_part, self._directory, name, spec, part, makes=False)
        self._written.append(loop.run_in_executor(self._threads, write))
        self._turn += 1

    async def end(self) -> list[SavedFile]:
        """Return what was written, in order, when all of it is on the disk.

        Raises:
            CheckpointWriteError: if a file couldn't be written; none is being written then.
        """
        await self.settle()
        return [file.result() for file in self._written]

    async def settle(self) -> None:
        """Return when nothing is being written any more; nothing can be from then on."""
        self._threads.shutdown(wait=False)
        under_way = [*self._others, *self._written]
        if under_way:
            await asyncio.wait(under_way)
        for each in under_way:
            each.exception()  # it has been seen

    async def _wait_for_others(self) -> None:
        """Wait until fewer than ``AT_ONCE`` files are being written.

        Raises:
            CheckpointWriteError: if one couldn't be.
        """
        if len(self._written) >= AT_ONCE:
            await asyncio.shield(self._written[-AT_ONCE])


def _make_empty(directory: Path, own: re.Pattern[str]) -> None:
    """Make a folder, and remove the files of some names from it.

    Raises:
        CheckpointWriteError: if the system refuses.
    """
    try:
        make_private(directory)
        with suppress(FileNotFoundError):  # an address is there with its first file
            for path in directory.iterdir():
                if own.fullmatch(path.name) and not path.is_symlink():  # writing refuses links
                    path.unlink(missing_ok=True)
    except OSError as error:
        raise CheckpointWriteError(path=str(directory), reason=str(error)) from error
