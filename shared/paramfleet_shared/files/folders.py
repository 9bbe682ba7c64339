"""Which folders checkpoints may be written to and read from on behalf of others.

A path that comes over the network is resolved, symbolic links and ``..`` included, before it
is compared with the folders that this process was given.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from paramfleet_shared.errors import ContractError
from paramfleet_shared.files.addresses import (
    Address,
    FolderNameError,
    place_of,
    split_places,
)

__all__ = ["CheckpointDirs", "FolderNameError", "FolderNotAllowedError", "check_folder_name"]

_SETTING = "PARAMFLEET_CHECKPOINT_DIRS"
_MAX_PATH_BYTES = 4095
_MAX_NAME_BYTES = 255
_MAX_DEPTH = 100
_SHOWN = 200
"""Characters of a wrong path that an error repeats."""


class FolderNotAllowedError(ContractError):
    """A folder isn't below those that checkpoints may be in."""

    code = "contract.folder_not_allowed"

    def __init__(self, *, path: str, allowed: Sequence[str]) -> None:
        super().__init__(
            f"folder {path!r} is not below {' or '.join(allowed)}, where this pserver may save "
            f"and load: choose one that is, or add it to the pserver's {_SETTING}",
            path=path,
            allowed=list(allowed),
        )
        self.path = path
        self.allowed = allowed


def check_folder_name(path: str) -> None:
    """Pass if a folder could have this name.

    Raises:
        FolderNameError: if it is empty, too long, the root, or has a control character.
    """
    rule = ""
    try:
        raw = os.fsencode(path)
    except ValueError:
        raw, rule = b"", "has characters that no file system has"
    parts = raw.split(os.sep.encode())
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in path):
        rule = "must have no control characters"
    elif len(raw) > _MAX_PATH_BYTES:
        rule = f"must have at most {_MAX_PATH_BYTES} bytes"
    elif any(len(part) > _MAX_NAME_BYTES for part in parts):
        rule = f"each name in it must have at most {_MAX_NAME_BYTES} bytes"
    elif len(parts) > _MAX_DEPTH:
        rule = f"must be at most {_MAX_DEPTH} folders deep"
    elif not path.strip() and not rule:
        rule = "must not be empty"
    rule = rule or _wrong_place(place_of(path))
    if rule:
        raise FolderNameError(path=_shown(path), rule=rule)


def _shown(path: str) -> str:
    place = place_of(path)
    return (str(place) if isinstance(place, Address) else path)[:_SHOWN]


def _wrong_place(place: Path) -> str:
    """Return why no checkpoint can have this name; empty if one can."""
    if isinstance(place, Address):
        return place.problem
    is_root = place.is_absolute() and not place.name
    return "is the root of the file system: name a folder below it" if is_root else ""


class CheckpointDirs:
    """The folders below which others may have checkpoints saved and loaded.

    Args:
        folders: Resolved paths; at least one.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        assert folders, "the caller has a default"
        self.folders = tuple(folders)

    @classmethod
    def of(cls, text: str) -> "CheckpointDirs":
        """Return those of a setting: paths with ``os.pathsep`` between.

        Empty is the process's working folder.

        Raises:
            FolderNameError: as ``split_places``.
        """
        named = split_places(text) or ["."]
        return cls([place_of(name).expanduser().resolve() for name in named])

    def require(self, path: str) -> Path:
        """Return a path with its symbolic links resolved, if it is one of these or below.

        Raises:
            FolderNameError: if no folder can have this name.
            FolderNotAllowedError: if it is elsewhere.
        """
        check_folder_name(path)
        try:
            resolved = place_of(path).resolve()
        except (OSError, RuntimeError, ValueError) as error:
            raise FolderNameError(
                path=_shown(path), rule=f"can't be resolved: {error}"
            ) from error
        if not any(resolved.is_relative_to(folder) for folder in self.folders):
            shown = [str(folder) for folder in self.folders]
            raise FolderNotAllowedError(path=str(resolved)[:_SHOWN], allowed=shown)
        return resolved
