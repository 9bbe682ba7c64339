"""Folders at addresses that one writer fills: marked first, and emptied by it alone.

A folder at an address has its final name from the beginning, as what other jobs and people
write there. So its writer marks it with a file that comes first and goes last. Only in a folder
that has one's own mark is anything removed, and of that only files that have names of a save's.
"""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from paramfleet_shared.files.addresses import Address
from paramfleet_shared.files.documents import read_content, read_document

__all__ = ["OWNER", "Owner", "claim", "empty_owned", "end_claim", "is_owned", "owner_at"]

OWNER = "owner.json"
"""The mark's file."""

_MANIFEST = "manifest.json"

_WRITTEN = re.compile(r"manifest\.json|model\.pt|.+\.safetensors")
"""Names of files that a save writes."""


class Owner(NamedTuple):
    """Who writes a folder."""

    job: str
    """Empty outside of one."""
    run: int
    save: str = ""
    """Which of its saves; empty for any of them."""


def claim(folder: Address, owner: Owner) -> bool:
    """Mark an empty folder; return False if another one's mark, or anything else, came first.

    Raises:
        OSError: if the file system refuses.
    """
    mark = folder / OWNER
    if not mark.create(json.dumps(owner._asdict()).encode()):
        return False
    if not is_owned(folder, owner):  # two wrote it at once, where a file system can't tell
        return False
    if [each.name for each in folder.iterdir()] != [OWNER]:
        mark.unlink(missing_ok=True)
        return False
    return True


def end_claim(folder: Address, owner: Owner) -> None:
    """Remove one's own mark.

    Raises:
        OSError: if the file system refuses.
    """
    if is_owned(folder, owner):
        (folder / OWNER).unlink(missing_ok=True)


def owner_at(folder: Path) -> Owner | None:
    """Return whose mark a folder has; None if it has none that can be read.

    Raises:
        OSError: if the file system refuses to say.
    """
    try:
        document: Any = read_document(read_content(folder / OWNER))
        return Owner(str(document["job"]), int(document["run"]), str(document.get("save", "")))
    except (FileNotFoundError, AttributeError, KeyError, TypeError, ValueError):
        return None


def is_owned(folder: Path, owner: Owner) -> bool:
    """Return whether a folder has this owner's mark.

    Raises:
        OSError: if the file system refuses to say.
    """
    found = owner_at(folder)
    return found is not None and owner in {found, found._replace(save="")}


def empty_owned(folder: Address, owner: Owner) -> bool:
    """Remove what a save has written into a folder that has its owner's mark, the mark last.

    Returns:
        False if the folder has another mark, or none: nothing is removed then.

    Raises:
        OSError: if the file system refuses.
    """
    if not is_owned(folder, owner):
        return False
    found = sorted(folder.iterdir(), key=lambda file: file.name != _MANIFEST)
    for file in found:  # without its manifest it is no checkpoint any more
        if _WRITTEN.fullmatch(file.name) and not file.is_dir():
            file.unlink(missing_ok=True)
    (folder / OWNER).unlink(missing_ok=True)
    folder.remove_if_empty()
    return True
