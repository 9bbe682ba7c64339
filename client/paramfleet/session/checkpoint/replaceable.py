"""Which folders a save may replace: empty ones, and those that a save wrote.

A folder was written by a save if its manifest is that of a checkpoint or an export, and every
other entry is a file that the manifest names. Whatever else has the name stays, and the save
is refused.
"""

import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from paramfleet.serving.manifest import FORMAT as EXPORT_FORMAT
from paramfleet_shared.checkpoint.manifest import (
    FORMAT,
    GROUP_FORMAT,
    MANIFEST,
    CheckpointWriteError,
)
from paramfleet_shared.checkpoint.saved_module import check_file_name
from paramfleet_shared.files.addresses import Address, place_of
from paramfleet_shared.files.documents import read_content, read_document
from paramfleet_shared.files.folders import FolderNameError, check_folder_name
from paramfleet_shared.files.owned import OWNER, owner_at
from paramfleet_shared.values.texts import shown

__all__ = ["check_makes_way", "folder_to_save", "names_saved_in"]

_REMEDY = "choose another folder, or move that away"


def folder_to_save(dirname: str | Path) -> Path:
    """Return the absolute name of a folder that a save may write, without ``..``.

    Raises:
        FolderNameError: if no folder can have that name, or what has it must stay.
        CheckpointWriteError: if the system refuses to look.
    """
    check_folder_name(str(dirname))
    folder = place_of(dirname).absolute()
    try:
        if folder.name == "..":
            folder = folder.resolve()
        elif ".." in folder.parts:  # by the folders' links, not by their names
            folder = folder.parent.resolve() / folder.name
    except (OSError, RuntimeError) as error:
        raise CheckpointWriteError(path=str(folder), reason=str(error)) from error
    check_makes_way(folder)
    return folder


def check_makes_way(folder: Path) -> None:
    """Pass if nothing has this name, or what has it may be replaced.

    Args:
        folder: An absolute path without ``..``.

    Raises:
        FolderNameError: if what has it must stay: a file, a link, the working folder or one
            above it, or a folder with anything in it that no save wrote.
        CheckpointWriteError: if the system refuses to look.
    """
    try:
        rule = _reason_to_stay(folder)
    except OSError as error:
        raise CheckpointWriteError(path=str(folder), reason=str(error)) from error
    if rule:
        raise FolderNameError(path=str(folder), rule=f"{rule}: {_REMEDY}")


def _reason_to_stay(folder: Path) -> str:
    """Return why what has a name must stay; empty if it may go, or nothing has it.

    Raises:
        OSError: if the system refuses to look.
    """
    if isinstance(folder, Address):
        return _found_at(folder)
    try:
        mode = folder.lstat().st_mode
    except FileNotFoundError:
        return ""
    if stat.S_ISLNK(mode):
        return "is a link, which no save replaces or writes through"
    if not stat.S_ISDIR(mode):
        return "is not a folder"
    if Path.cwd().is_relative_to(folder.resolve()):
        return "is the working folder, or above it"
    return _strangers_in(folder)


def _found_at(folder: Address) -> str:
    """Return what is at an address, where nothing can be replaced at once; empty for nothing.

    Raises:
        OSError: if the file system refuses to look.
    """
    try:
        names = [each.name for each in folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        names = []
    if MANIFEST in names:
        return "holds a checkpoint or an export already"
    if OWNER in names:
        owner = owner_at(folder)
        whose = f"job {shown(owner.job)}, run {owner.run}," if owner and owner.job else "a save"
        return (
            f"has the mark {OWNER} of {whose} that is writing there or was killed; if it was, "
            "remove what it left"
        )
    if names:
        return f"holds {_some(names)}, and a save to an address needs a folder of its own"
    return "" if folder.is_dir() or not folder.exists() else "is not a folder"


def _strangers_in(folder: Path) -> str:
    """Return what a folder holds that no save wrote; empty if there is nothing.

    Raises:
        OSError: if the system refuses to look.
    """
    with os.scandir(folder) as entries:
        is_file = {entry.name: entry.is_file(follow_symlinks=False) for entry in entries}
    if not is_file:
        return ""
    try:
        named = _files_named(read_document(read_content(folder / MANIFEST)))
    except FileNotFoundError:
        return f"holds {_some(is_file)}, and no {MANIFEST} of a checkpoint or an export"
    except ValueError as error:
        return f"holds a {MANIFEST} of no checkpoint or export ({error})"
    strangers = sorted(name for name, is_one in is_file.items() if not is_one)
    strangers = strangers or sorted(set(is_file) - named)
    return f"holds {_some(strangers)}, which no save wrote" if strangers else ""


def names_saved_in(folder: Path) -> set[str]:
    """Return the names of the files that a save wrote into a folder, its manifest's among them.

    Raises:
        OSError: if the system refuses to read the manifest.
        ValueError: if that is none of a checkpoint or an export, or names files elsewhere.
    """
    named = _files_named(read_document(read_content(folder / MANIFEST)))
    named.discard("")  # of a part that has no file
    for name in named:
        check_file_name(name)
    return named


def _files_named(document: Any) -> set[str]:
    """Return the names of all files of a checkpoint or an export, its manifest's among them.

    Raises:
        ValueError: if the document isn't such a manifest.
    """
    names: list[Any]
    try:
        if document["format"] == FORMAT:
            parts = [document[key] for key in ("module", "progress") if document.get(key)]
            names = [file["name"] for file in document["files"]]
            names += [part["file"] for part in parts]
            if document.get("increment"):
                names += [file["name"] for file in document["increment"]["removed"]]
        elif document["format"] == GROUP_FORMAT:
            names = [worker["file"] for worker in document["workers"]]
        elif document["format"] == EXPORT_FORMAT:
            names = [document["model"]["name"]]
            names += [table["file"]["name"] for table in document["tables"]]
            gone = [table.get("removed") for table in document["tables"]]
            names += [file["name"] for file in gone if file]  # of a delta
        else:
            names = []
        named = {MANIFEST, *names}
    except (AttributeError, KeyError, TypeError) as error:
        problem = f"it is malformed: {error!r}"
        raise ValueError(problem) from error
    if not names:
        raise ValueError("its format is another, or it names no file")
    return named


def _some(names: Iterable[str]) -> str:
    listed = sorted(names)
    more = f" and {len(listed) - 1} more" if len(listed) > 1 else ""
    return f"{shown(listed[0])}{more}"
