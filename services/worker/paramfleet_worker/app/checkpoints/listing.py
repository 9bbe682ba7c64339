"""Which checkpoints a folder has, by their manifests and the lengths of their files."""

import os
import re
import stat
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from paramfleet_shared.checkpoint.layers import read_layers
from paramfleet_shared.checkpoint.manifest import (
    FORMAT,
    MANIFEST,
    Manifest,
    ManifestError,
    read_manifest,
)
from paramfleet_shared.errors import ContractError
from paramfleet_shared.files.addresses import Address
from paramfleet_shared.files.documents import read_content, read_document
from paramfleet_worker.core.checkpoints.choosing import Listed, newest_first
from paramfleet_worker.core.checkpoints.integrity import server_of

__all__ = ["CheckpointFolderError", "files_of", "list_checkpoints", "list_one"]

_UNFINISHED = re.compile(r"\.(.+)\.[0-9a-f]{8}\.partial")
"""What a save writes to before the checkpoint gets its name."""

_DAY = re.compile(r"\d{8}", re.ASCII)
_OF_A_DAY = re.compile(r"(0|[1-9]\d{0,3})|\.(0|[1-9]\d{0,3})\.[0-9a-f]{8}\.partial", re.ASCII)
"""Of a checkpoint in a day's folder of a training by days, or of an unfinished one."""

_FIRST = datetime.min.replace(tzinfo=UTC)
_LAST = datetime.max.replace(tzinfo=UTC)


class CheckpointFolderError(ContractError):
    """A folder of checkpoints is missing, or can't be read."""

    code = "contract.checkpoint_folder"
    path: str
    reason: str
    sentence = (
        "{path}: {reason}; name a folder that has checkpoints in it, or make it if none has "
        "been saved yet"
    )


def list_checkpoints(folder: Path) -> list[Listed]:
    """Return the checkpoints in a folder, or the one that it is, newest first.

    Those of a training by days are in a folder for each day, and have its name before their
    own. Links, such as ``latest``, and exports are left out. Files aren't read.

    Raises:
        CheckpointFolderError: if it isn't a folder that can be read.
    """
    where, found = folder, list[Listed]()
    try:
        if (folder / MANIFEST).exists():
            return [list_one(folder)]
        for name in _folders_in(folder):
            where = folder / name
            if _may_be_one(where):
                found.append(list_one(where))
            elif _DAY.fullmatch(name):
                passes = [each for each in _folders_in(where) if _OF_A_DAY.fullmatch(each)]
                named = [each for each in passes if _may_be_one(where / each)]
                found += [list_one(where / each, f"{name}/{each}") for each in named]
    except OSError as error:
        reason = error.strerror or str(error)
        raise CheckpointFolderError(path=str(where), reason=reason) from error
    return newest_first(found)


def _folders_in(folder: Path) -> list[str]:
    """Return the names of the folders in one.

    Raises:
        OSError: if it can't be read.
    """
    if isinstance(folder, Address):
        return [each.name for each in folder.iterdir() if each.is_dir()]
    with os.scandir(folder) as entries:
        return [each.name for each in entries if each.is_dir(follow_symlinks=False)]


def list_one(folder: Path, name: str = "") -> Listed:
    """Return what a checkpoint's manifest says of it, and whether its files are there.

    Args:
        folder: The checkpoint's.
        name: How it is listed; the folder's own if not given.
    """
    path, name = str(folder.absolute()), name or folder.name
    unfinished = _UNFINISHED.fullmatch(folder.name)
    if unfinished or not (folder / MANIFEST).exists():
        reason = "it is unfinished: the save that began it has not ended"
        if not unfinished:
            reason = f"it has no {MANIFEST}"
        return Listed(
            name=name,
            path=path,
            written_at=_changed_at(folder),
            problem=reason,
            unfinished=unfinished is not None,
        )
    changed_at = _changed_at(folder / MANIFEST)
    try:
        manifest = read_manifest(folder)
    except ManifestError as error:
        problem = f"{MANIFEST} {error.rule}"
        return Listed(name=name, path=path, written_at=changed_at, problem=problem)
    servers = {server_of(file.name) for file in manifest.files} - {None}
    return Listed(
        name=name,
        path=path,
        written_at=manifest.written_at or changed_at,
        step=_count(manifest, "steps"),
        workers=_count(manifest, "workers"),
        servers=len(servers),
        tables=sum(not each.is_dense for each in manifest.tables),
        dense=sum(each.is_dense for each in manifest.tables),
        rows=sum(file.rows for file in manifest.files if file.kind == "sparse"),
        bytes=sum(length for _, length in files_of(manifest)),
        problem=_wrong_length(folder, manifest) or _wrong_base(folder, manifest),
        base="" if manifest.increment is None else manifest.increment.base.folder,
        consistent=None if manifest.cut is None else manifest.cut.consistent,
    )


def files_of(manifest: Manifest) -> list[tuple[str, int]]:
    """Return the names and lengths of all files that a manifest names."""
    found = [(file.name, file.bytes) for file in manifest.files]
    more = (manifest.module, manifest.progress)
    if manifest.increment is not None:
        found += [(removed.name, removed.bytes) for removed in manifest.increment.removed]
    return found + [(part.file, part.bytes) for part in more if part is not None and part.file]


def _may_be_one(folder: Path) -> bool:
    """Return whether a folder is a checkpoint, or what is left of one."""
    if _UNFINISHED.fullmatch(folder.name):
        return True
    if folder.name.startswith("."):
        return False
    try:
        document: Any = read_document(read_content(folder / MANIFEST))
    except FileNotFoundError:
        return any(folder.glob("*.safetensors"))
    except (OSError, ValueError):
        return True
    stated = document.get("format") if type(document) is dict else None
    return stated == FORMAT or not str(stated).startswith("paramfleet-")


def _changed_at(path: Path) -> datetime:
    """Return when a file or folder was changed last; the epoch if it is gone.

    File systems have times of more years than ``datetime``: its next one stands for those.
    """
    try:
        seconds = path.lstat().st_mtime
    except OSError:
        seconds = 0.0
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OSError, OverflowError, ValueError):
        return _FIRST if seconds < 0 else _LAST


def _count(manifest: Manifest, name: str) -> int | None:
    value = None if manifest.progress is None else manifest.progress.extra.get(name)
    return value if type(value) is int else None


def _wrong_length(folder: Path, manifest: Manifest) -> str:
    """Return the first file that is missing or has another length; empty if none has."""
    for name, length in files_of(manifest):
        try:
            found = (folder / name).lstat()
        except OSError as error:
            return f"{name}: {error.strerror}"
        if not stat.S_ISREG(found.st_mode):
            return f"{name} isn't a regular file"
        if found.st_size != length:
            return f"{name} has {found.st_size} bytes instead of {length}"
    return ""


def _wrong_base(folder: Path, manifest: Manifest) -> str:
    """Return what is wrong with what a checkpoint builds on; empty if nothing is."""
    if manifest.increment is None:
        return ""
    try:
        layers = read_layers(folder, manifest).layers[1:]
    except ManifestError as error:
        return f"{MANIFEST} {error.rule}"
    for layer in layers:
        if problem := _wrong_length(layer.folder, layer.manifest):
            return f"it builds on {layer.folder.name}: {problem}"
    return ""
