"""The folders of a day's data: whether that of a pass is there, and its files."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paramfleet.data.reading.files import CannotReadFileError, list_folder, located
from paramfleet.runner.config.configuration import Config
from paramfleet.runner.online.calendar import Pass

__all__ = ["DataFolders", "Look"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """What was found of a pass: its files, or the first folder that isn't as it must be."""

    files: tuple[str, ...] = ()
    missing: str = ""
    """A folder that isn't there."""
    waits_for: str = ""
    """A file that says that a folder is complete, and isn't there yet."""
    reason: str = ""
    """Why that can't be seen, if the file system can't be reached."""

    @property
    def is_there(self) -> bool:
        """Whether all folders are."""
        return not (self.missing or self.waits_for)


class DataFolders:
    """``train_data_dir`` with its days.

    Args:
        config: Says where, and which file says that a folder is complete.
    """

    def __init__(self, config: Config[Any]) -> None:
        self._runner = config.runner
        address = located(config.runner.train_data_dir, config.runner)
        is_remote = "://" in address
        self._root = address if is_remote else str(config.path_of(address))
        self._is_remote = is_remote
        self._donefile = config.runner.data_donefile

    def look(self, coming: Pass) -> Look:
        """Return what there is of a pass: the files of its folders in turn, by name.

        Files whose names begin with a dot are left out, and the one that says that the folder
        is complete.

        Raises:
            CannotReadFileError: if a folder can't be looked into, and nothing is waited for.
        """
        files: list[str] = []
        for name in coming.folders:
            folder = f"{self._root.rstrip('/')}/{coming.place.day}/{name}"
            try:
                found = self._files(folder)
                if self._is_done(found):  # it says nothing of a listing that began before it
                    found = self._files(folder)
            except CannotReadFileError as error:
                if not self._donefile:
                    raise
                waits_for = f"{folder}/{self._donefile}"
                return Look(waits_for=waits_for, reason=error.reason)
            if self._donefile and not self._is_done(found):
                return Look(waits_for=f"{folder}/{self._donefile}")
            if found is None:
                return Look(missing=folder)
            files += [file for file in found if _name(file) != self._donefile]
        return Look(files=tuple(files))

    def _files(self, folder: str) -> list[str] | None:
        """Return a folder's files; None if it isn't there.

        Raises:
            CannotReadFileError: if it can't be looked into.
        """
        if self._is_remote:
            try:
                return list_folder(folder, self._runner, also=self._donefile)
            except CannotReadFileError as error:
                if isinstance(error.__cause__, FileNotFoundError):
                    return None
                raise
        try:
            found = sorted(str(path) for path in Path(folder).iterdir() if path.is_file())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise CannotReadFileError(file=folder, reason=str(error)) from error
        return [file for file in found if not _name(file).startswith(".") or self._is(file)]

    def _is_done(self, found: list[str] | None) -> bool:
        """Return whether a listing has the file that says that its folder is complete."""
        return bool(self._donefile) and any(self._is(file) for file in found or ())

    def _is(self, file: str) -> bool:
        return _name(file) == self._donefile


def _name(file: str) -> str:
    return file.rpartition("/")[2]
