"""Folders that are whole or not there: written under another name, and renamed at the end."""

import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from paramfleet_shared.checkpoint import CheckpointWriteError, sync_directory
from paramfleet_shared.folders import FolderNotAllowedError

__all__ = ["give_name", "naming", "temporary_beside"]


@contextmanager
def naming(final: Path) -> Iterator[None]:
    """Let a refusal name the folder that was asked for, not the temporary one beside it.

    Raises:
        FolderNotAllowedError: as the body did.
    """
    try:
        yield
    except FolderNotAllowedError as error:
        raise FolderNotAllowedError(path=str(final), allowed=error.allowed) from error


def temporary_beside(final: Path) -> Path:
    """Return a name for what isn't complete yet, on the same file system."""
    return final.with_name(f".{final.name}.{secrets.token_hex(4)}.partial")


def give_name(temporary: Path, final: Path) -> None:
    """Give a complete folder its name; a former one of that name makes way.

    Raises:
        CheckpointWriteError: if the system refuses.
    """
    former = temporary_beside(final)
    try:
        if final.exists():
            final.rename(former)
        temporary.rename(final)
        sync_directory(final.parent)
    except OSError as error:
        if former.exists() and not final.exists():
            former.rename(final)
        raise CheckpointWriteError(path=str(final), reason=str(error)) from error
    shutil.rmtree(former, ignore_errors=True)
