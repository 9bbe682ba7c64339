"""Checkpoints in one folder, numbered: the newest, the link to it, and which ones go.

Each has a folder of its own, ``<number>-step-<step>``, which is complete or absent; numbers
continue over restarts, so the newest is the one with the highest, and ``latest`` is a link to
it. At an address one is complete with its manifest, and there is no link. A folder of such a
name without a manifest is no checkpoint, wherever it is. Older ones than are kept are removed
when a newer one is complete, but those that a kept one builds on.
"""

import logging
import os
import secrets
import shutil
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import NamedTuple

from paramfleet.session.checkpoint.replaceable import check_makes_way, names_saved_in
from paramfleet.session.checkpoint.whole_folders import (
    Owner,
    clear_own,
    is_being_written,
    temporary_beside,
)
from paramfleet_shared.checkpoint.layers import folders_of
from paramfleet_shared.checkpoint.manifest import (
    MANIFEST,
    CheckpointWriteError,
    ManifestError,
)
from paramfleet_shared.checkpoint.numbering import (
    MOST_NUMBER,
    is_partial,
    number_of,
    numbered_name,
)
from paramfleet_shared.files.addresses import Address
from paramfleet_shared.files.folders import FolderNameError

__all__ = ["begin_numbered", "clear_left", "complete_in", "end_numbered", "newest_in"]

LATEST = "latest"

_NEAR = 1000
"""How far above the one before it the number of what has no manifest may be to count. At an
address it may be being written; one that is farther off no save has chosen."""

log = logging.getLogger(__name__)


class _Numbered(NamedTuple):
    """What has the name of a numbered checkpoint, and may be one."""

    number: int
    path: Path


def begin_numbered(folder: Path, *, step: int) -> Path:
    """Return the absolute name of the next checkpoint in a folder.

    Its number is above those of all checkpoints there, and of what else may become one.

    Args:
        folder: Has the checkpoints; it may be absent.
        step: After how many steps it is.

    Raises:
        CheckpointWriteError: if an address can't be listed, or there is no such number.
    """
    folder = folder.absolute()
    try:
        numbered = _numbered(folder)
        number, newest = next(filter(_is_complete, reversed(numbered)), _Numbered(0, folder))
    except OSError as error:
        raise CheckpointWriteError(path=str(folder), reason=str(error)) from error
    for each in numbered:
        if number < each.number <= number + _NEAR:
            number = each.number
    if number >= MOST_NUMBER:
        reason = f"no number is left above its newest checkpoint's: move {newest} elsewhere"
        raise CheckpointWriteError(path=str(folder), reason=f"{reason}, or remove it")
    return folder / numbered_name(number + 1, step=step)


def complete_in(folder: Path) -> frozenset[str]:
    """Return the names of the checkpoints in a folder; none where it can't be listed."""
    try:
        return frozenset(each.path.name for each in filter(_is_complete, _numbered(folder)))
    except OSError:  # then none can be removed, either
        return frozenset()


def end_numbered(
    checkpoint: Path, *, keep: int, spared: AbstractSet[str] = frozenset()
) -> None:
    """Point to a new checkpoint, and remove old ones; failures are logged.

    None is removed that ``latest`` might still point to.

    Args:
        checkpoint: The new one.
        keep: How many of the newest stay.
        spared: Names of others that stay, such as those of another run.
    """
    folder = checkpoint.parent
    try:
        if isinstance(folder, Address):  # has no links: the newest is the one with the highest
            _remove_old(folder, keep, spared)
            return
        pointer = folder / f".{LATEST}.{secrets.token_hex(4)}"
        pointer.symlink_to(checkpoint.name, target_is_directory=True)
        try:
            pointer.replace(folder / LATEST)
        finally:
            pointer.unlink(missing_ok=True)
    except OSError as error:
        facts = {"folder": str(folder), "reason": str(error)}
        log.warning("worker.checkpoint_pointer_failed", extra=facts)
        return
    _remove_old(folder, keep, spared)


def _remove_old(folder: Path, keep: int, spared: AbstractSet[str]) -> None:
    """Remove those that neither stay nor are built on; none if that can't be found out."""
    try:
        found = [each.path for each in filter(_is_complete, _numbered(folder))]
        complete = [path for path in found if path.name not in spared]
        needed = {name for path in complete[-keep:] for name in folders_of(path)}
    except (ManifestError, OSError) as error:
        facts = {"folder": str(folder), "reason": str(error)}
        log.warning("worker.checkpoint_not_removed", extra=facts)
        return
    for path in complete[:-keep]:
        if path.name not in needed:
            _remove(path)


def newest_in(folder: Path) -> Path | None:
    """Return the newest checkpoint in a folder; None if there is none.

    Raises:
        ManifestError: if an address can't be listed.
    """
    try:
        newest = next(filter(_is_complete, reversed(_numbered(folder.absolute()))), None)
    except OSError as error:
        raise ManifestError(path=str(folder), rule=f"can't be listed: {error}") from error
    return None if newest is None else newest.path


def clear_left(folder: Path, *, owner: Owner | None = None, alone: bool = False) -> None:
    """Remove what was left half written or half removed; what is being written stays.

    Args:
        folder: Has the checkpoints.
        owner: At an address, whose unfinished ones go: what another run writes there, and what
            people keep there, looks the same. None removes none of them.
        alone: Whether no other job saves there: only what a compact holds stays then.
    """
    if isinstance(folder, Address):
        if owner is None:
            return
        try:
            for each in _numbered(folder):
                clear_own(each.path, owner)
        except OSError as error:
            facts = {"folder": str(folder), "reason": str(error)}
            log.warning("worker.checkpoint_not_removed", extra=facts)
        return
    for path in _listed(folder):
        if is_partial(path.name) and not is_being_written(path, by_others=not alone):
            shutil.rmtree(path, ignore_errors=True)


def _remove(folder: Path) -> None:
    """Remove a checkpoint; from the beginning on it has no checkpoint's name any more.

    One that holds anything else stays; at an address what else it holds stays.
    """
    if isinstance(folder, Address):
        try:
            names = names_saved_in(folder)
            (folder / MANIFEST).unlink()  # it is no checkpoint from now on
            for name in sorted(names - {MANIFEST}):
                (folder / name).unlink(missing_ok=True)
            folder.remove_if_empty()
        except (OSError, ValueError) as error:
            facts = {"folder": str(folder), "reason": str(error)}
            log.warning("worker.checkpoint_not_removed", extra=facts)
        return
    former = temporary_beside(folder)
    try:
        check_makes_way(folder)
        folder.rename(former)
        shutil.rmtree(former)
    except (FolderNameError, CheckpointWriteError, OSError) as error:
        facts = {"folder": str(folder), "reason": str(error)}
        log.warning("worker.checkpoint_not_removed", extra=facts)


def _is_complete(numbered: _Numbered) -> bool:
    """Return whether a folder has a manifest; so has a local one that can't be looked into.

    Raises:
        OSError: if an address can't be looked at.
    """
    manifest = numbered.path / MANIFEST
    if isinstance(manifest, Address):
        return manifest.exists()
    try:
        manifest.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # it may be a checkpoint: reading it says what is wrong
        return True
    return True


def _numbered(folder: Path) -> list[_Numbered]:
    """Return what has a checkpoint's name in a folder, by number; raises as ``_listed``."""
    found = ((number_of(path.name), path) for path in _listed(folder))
    return sorted(_Numbered(number, path) for number, path in found if number is not None)


def _listed(folder: Path) -> list[Path]:
    """Return what is in a folder; nothing if it isn't there, or is local and can't be read.

    Raises:
        OSError: if an address can't be listed.
    """
    try:
        if isinstance(folder, Address):
            return list(folder.iterdir())
        return [folder / name for name in os.listdir(folder)]  # noqa: PTH208 - raises at once
    except FileNotFoundError:
        return []
    except OSError:
        if isinstance(folder, Address):
            raise
        return []
