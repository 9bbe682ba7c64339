"""The data folder of a group: locked before the process joins as its owner."""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

from paramfleet_pserver.config import PServerSettings
from paramfleet_pserver.durability.data_folder import DataFolder
from paramfleet_pserver.durability.lives import newest_life
from paramfleet_shared.errors.logs import LogInUseError
from paramfleet_shared.files.regular_files import read_regular, write_regular
from paramfleet_shared.system.clock import Clock

__all__ = [
    "claimed",
    "claimed_or_found",
    "held",
    "made",
    "note_owned",
    "run_folder",
    "seems_to_return",
]

CLAIM_PATIENCE_S = 5.0
"""Seconds that another process may still have the data folder."""

CLAIM_POLL_S = 0.05
"""Seconds between two attempts to lock it."""


_OWNED = "owned"
"""File in the newest folder of a run: the last term whose owner has gone on there."""

_GROUP = re.compile(r"pserver-(\d{1,5})")
_TERM = re.compile(rb"[0-9]{1,16}")
_MOST_TERM_BYTES = 16

_LOOKS = 3
"""Looks at a group whose owner removes what is looked at: it has made a newer folder before."""


def run_folder(settings: PServerSettings, group: int, run_id: int) -> Path:
    """Return where a group's training is kept, whoever has it now."""
    return Path(settings.data_dir) / settings.job / f"pserver-{group}" / f"run-{run_id}"


def note_owned(settings: PServerSettings, group: int, run_id: int, term: int) -> None:
    """Note on the disk that an owner goes on with what is there under a term.

    Raises:
        OSError: if the system refuses.
    """
    path = newest_life(run_folder(settings, group, run_id)).path
    draft = path / f"{_OWNED}.draft"
    draft.unlink(missing_ok=True)  # opening a pipe in its place would wait for a reader
    write_regular(draft, str(term).encode())
    draft.rename(path / _OWNED)


def held(
    settings: PServerSettings,
    run_id: int,
    refused: Callable[[Path, str], None] = lambda _path, _reason: None,
) -> dict[int, int]:
    """Return the groups of a run that are on this disk, and their newest terms here.

    The folders may be those of other processes, which change them meanwhile. What vanishes, or
    can't be read, isn't held.

    Args:
        settings: Of the process.
        run_id: The run.
        refused: Called with what can't be read, and why.
    """
    root = Path(settings.data_dir) / settings.job
    if settings.durability == "none":
        return {}
    found = {}
    try:
        names = [path.name for path in root.iterdir()] if root.is_dir() else []
    except OSError as error:
        refused(root, str(error))
        return {}
    for name in filter(None, map(_GROUP.fullmatch, names)):
        group = int(name[1])
        folder = run_folder(settings, group, run_id)
        try:
            term = _term_of(folder)
        except (OSError, ValueError) as error:
            refused(folder, str(error))
        else:
            if term is not None:
                found[group] = term
    return found


def _term_of(folder: Path) -> int | None:
    """Return the newest term whose owner has gone on in a run's folder; None without one.

    Raises:
        OSError: if the system refuses.
        ValueError: if what is noted there is no term.
    """
    for _ in range(_LOOKS):
        if not folder.is_dir():
            return None
        try:
            life = newest_life(folder)
            return _noted_term(life.path, otherwise=life.term)
        except FileNotFoundError:  # its owner has removed it, and goes on in a newer one
            continue
    return None


def _noted_term(path: Path, *, otherwise: int) -> int:
    """Return the term that is noted in an owner's folder.

    Raises:
        FileNotFoundError: if there is no such folder any more.
        OSError: if the system refuses.
        ValueError: if that is no term.
    """
    try:
        content = read_regular(path / _OWNED, most_bytes=_MOST_TERM_BYTES + 1)
    except FileNotFoundError:
        path.stat()
        return otherwise
    if _TERM.fullmatch(content) is None:
        problem = f"the file {_OWNED} in {path} holds no term"
        raise ValueError(problem)
    return int(content)


def seems_to_return(settings: PServerSettings) -> bool:
    """Return whether this process seems to go on with what another one has left."""
    if settings.durability == "none" or settings.index is None:
        return False
    return DataFolder.has_run(Path(settings.data_dir), settings.job, settings.index)


async def claimed_or_found(settings: PServerSettings, clock: Clock) -> DataFolder | None:
    """Return the folder of this pserver's index, or one whose process has died.

    Raises:
        LogInUseError: if another process has the folder of the index.
        DataFolderError: if the system refuses.
    """
    if settings.durability == "none":
        return None
    if settings.index is None:
        return DataFolder.find(Path(settings.data_dir), settings.job)
    return await claimed(settings, settings.index, clock)


async def claimed(settings: PServerSettings, group: int, clock: Clock) -> DataFolder | None:
    """Return the folder of a group, once no other process has it; None without a disk.

    Raises:
        LogInUseError: if another process goes on having it.
        DataFolderError: if the system refuses.
    """
    if settings.durability == "none":
        return None
    deadline = clock.monotonic() + CLAIM_PATIENCE_S
    while True:
        try:
            return DataFolder(Path(settings.data_dir), settings.job, group)
        except LogInUseError:  # a process that was killed may take a moment to end
            if clock.monotonic() >= deadline:
                raise
            await clock.sleep(CLAIM_POLL_S)


async def made(settings: PServerSettings, group: int) -> DataFolder:
    """Return the folder of a group that this process was given.

    Raises:
        LogInUseError: if another process has it.
        DataFolderError: if the system refuses.
    """
    return await asyncio.to_thread(DataFolder, Path(settings.data_dir), settings.job, group)
