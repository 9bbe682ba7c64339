"""Writes a snapshot beside the training."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import TypeVar

from paramfleet_pserver.commands.snapshot.writing import MachineImage
from paramfleet_pserver.durability.snapshot_files import SnapshotDraft, SnapshotFile
from paramfleet_shared.system.threads import background_threads

__all__ = ["save_snapshot"]

T = TypeVar("T")


async def save_snapshot(
    image: MachineImage, folder: Path, position: int, *, job: str
) -> SnapshotFile:
    """Write an image as a snapshot, and remove the snapshots before it; the image ends.

    The log behind the position must not be removed before this has returned, and what is before
    it must be on the disk by then: the log goes on where the newest snapshot ends.

    Cancellation: what there was stays, and nothing else is left. If it comes while the file
    gets its name, the snapshot may be there.

    Args:
        image: As ``take_image`` has returned it.
        folder: Where to; made if it is missing.
        position: Of the last command before the image.
        job: The job's name, its epoch included.

    Raises:
        TableMemoryError: if there was no memory for rows that have changed since.
        OSError: if the system refuses, as on a full disk.
    """
    draft, thread = SnapshotDraft(folder, position, job=job), _Thread()
    try:
        await thread.run(draft.begin)
        async with aclosing(image.messages()) as messages:
            async for message in messages:
                await thread.run(partial(draft.write, message))
        image.end()
        return await thread.run(draft.commit)
    except BaseException:
        try:
            image.end()
        finally:
            await asyncio.shield(thread.run(draft.abandon))
        raise
    finally:
        thread.end()


class _Thread:
    """Runs one function after the other; what was cancelled before it began isn't run."""

    def __init__(self) -> None:
        self._executor = background_threads(1, "snapshot")

    def run(self, act: Callable[[], T]) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._executor, act)

    def end(self) -> None:
        """End the thread when it has nothing to do."""
        self._executor.shutdown(wait=False)
