"""The folder of what a training by days saves: its checkpoints, what it publishes, and lists.

Below it: ``<day>/<pass>`` a checkpoint, ``<day>/0`` that of a day's beginning; ``<day>/base``
and ``<day>/delta-<pass>`` what is published, and ``<day>/base-<pass>`` in a delta's place where
it isn't known what has changed.
"""

import re
from pathlib import Path

from paramfleet.runner.online.calendar import Place
from paramfleet.runner.online.course import Written
from paramfleet.runner.online.donefiles import (
    BASES,
    CHECKPOINTS,
    DELTAS,
    read_written,
    with_line,
)
from paramfleet_shared.checkpoint.manifest import (
    MANIFEST,
    CheckpointWriteError,
    ManifestError,
    sync_directory,
)
from paramfleet_shared.files.documents import MAX_DOCUMENT_BYTES
from paramfleet_shared.files.regular_files import read_regular, replaced

__all__ = ["ModelFolder"]


class ModelFolder:
    """Worker 0 writes there; all know its names.

    Args:
        root: It: an absolute path of this machine.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def checkpoint(self, place: Place) -> Path:
        """Return the name of a checkpoint."""
        return self._root / place.day / str(place.number)

    def base(self, place: Place) -> Path:
        """Return the name of a base: of a day's beginning, or within the day."""
        return self._root / place.day / (f"base-{place.number}" if place.number else "base")

    def delta(self, place: Place) -> Path:
        """Return the name of a delta."""
        return self._root / place.day / f"delta-{place.number}"

    def newest(self) -> Path | None:
        """Return the newest complete checkpoint; None if there is none.

        Raises:
            ManifestError: if the folder can't be looked through.
        """
        try:
            for day in sorted(_named(self._root, r"\d{8}"), reverse=True):
                numbers = _named(self._root / day, r"0|[1-9]\d{0,3}")
                for number in sorted(numbers, key=int, reverse=True):
                    if (self._root / day / number / MANIFEST).exists():
                        return self._root / day / number
        except OSError as error:
            rule = f"can't be looked through: {error}"
            raise ManifestError(path=str(self._root), rule=rule) from error
        return None

    def written(self) -> Written:
        """Return what the lists name.

        Raises:
            DonefileError: if a line is none of theirs.
            ManifestError: if one can't be read.
        """
        return read_written(*(self.read(name) for name in (CHECKPOINTS, BASES, DELTAS)))

    def add(self, name: str, line: str) -> None:
        """Put a line behind those of a list: the whole list is there before and afterwards.

        Raises:
            CheckpointWriteError: if the system refuses.
        """
        path = self._root / name
        content = with_line(self.read(name), line).encode()
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            with replaced(path) as file:
                file.write(content)
        except OSError as error:
            raise CheckpointWriteError(path=str(path), reason=str(error)) from error
        sync_directory(self._root)

    def read(self, name: str) -> str:
        """Return a list; nothing if it isn't there.

        Raises:
            ManifestError: if it can't be read.
        """
        path = self._root / name
        try:
            content = read_regular(path, most_bytes=MAX_DOCUMENT_BYTES + 1, may_be_link=True)
            if len(content) > MAX_DOCUMENT_BYTES:
                rule = f"it is larger than {MAX_DOCUMENT_BYTES} bytes"
                raise ManifestError(path=str(path), rule=rule)
            return content.decode("utf-8")
        except FileNotFoundError:
            return ""
        except (OSError, ValueError) as error:
            raise ManifestError(path=str(path), rule=f"can't be read: {error}") from error


def _named(folder: Path, pattern: str) -> list[str]:
    """Return what in a folder has such a name; nothing if it isn't there.

    Raises:
        OSError: if it can't be listed.
    """
    try:
        names = [path.name for path in folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [name for name in names if re.fullmatch(pattern, name, re.ASCII)]
