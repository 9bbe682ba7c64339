"""Where a pserver keeps its training: a folder for each index, and in it one for each run.

::

    DATA_DIR/<job>/pserver-<index>/lock
    DATA_DIR/<job>/pserver-<index>/run-<id>/      snapshots and the log of a run

Who has the lock has the folder, from before it joins the job until it ends. So a process that
has it knows that the one before it is dead.
"""

import contextlib
import os
import pwd
import re
import shutil
import stat
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path

from paramfleet_pserver.durability.locking import FolderLock
from paramfleet_shared.errors.logs import DataFolderError, LogInUseError

__all__ = ["LOCK_NAME", "DataFolder", "check_folders"]

LOCK_NAME = "lock"
_INDEX = re.compile(r"pserver-(\d{1,5})")
_RUN = re.compile(r"run-(\d{1,16})")


class DataFolder:
    """The folder of one index, held by this process.

    Args:
        root: The setting's folder.
        job: Name of the job.
        index: The pserver's.

    Raises:
        LogInUseError: if another process has it.
        DataFolderError: if it is a link or another user's, or the system refuses, naming the
            folder and this process's user.
    """

    def __init__(self, root: Path, job: str, index: int) -> None:
        self.index = index
        self.path = root / job / f"pserver-{index}"
        with _named(self.path):
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            check_folders(root, self.path)  # others may write into a data folder, too
            self._lock = FolderLock(self.path, LOCK_NAME)

    @staticmethod
    def has_run(root: Path, job: str, index: int) -> bool:
        """Return whether some run was begun in an index's folder, whoever has it.

        Raises:
            DataFolderError: if the system refuses to look.
        """
        path = root / job / f"pserver-{index}"
        with _named(path):
            return path.is_dir() and any(_RUN.fullmatch(each.name) for each in path.iterdir())

    @classmethod
    def find(cls, root: Path, job: str) -> "DataFolder | None":
        """Return a folder that holds a training and that nobody has; None if there is none.

        Raises:
            DataFolderError: if the system refuses.
        """
        parent = root / job
        with _named(parent):
            found = list(parent.iterdir()) if parent.is_dir() else []
        names = [_INDEX.fullmatch(path.name) for path in found]
        for index in sorted(int(name[1]) for name in names if name):
            try:
                folder = cls(root, job, index)
            except LogInUseError:
                continue
            if folder.run_id:
                return folder
            folder.close()
        return None

    @property
    def run_id(self) -> int:
        """Return the run that was begun last here; 0 for none.

        Raises:
            DataFolderError: if the system refuses.
        """
        with _named(self.path):
            found = [(path.stat().st_mtime_ns, run_id) for run_id, path in self._runs()]
        return max(found, key=itemgetter(0), default=(0, 0))[1]

    @property
    def run_ids(self) -> list[int]:
        """Return all runs that have a folder here.

        Raises:
            DataFolderError: if the system refuses.
        """
        with _named(self.path):
            return [run_id for run_id, _ in self._runs()]

    def run(self, run_id: int) -> Path:
        """Return the folder of a run."""
        return self.path / f"run-{run_id}"

    def begin(self, run_id: int) -> None:
        """Have a folder for a run: who finds it without a training knows that none had begun.

        Raises:
            DataFolderError: if the system refuses.
        """
        with _named(self.path):
            self.run(run_id).mkdir(mode=0o700, exist_ok=True)

    def remove_runs(self, *, but: int = 0) -> list[int]:
        """Remove what is kept of all runs but one; return these.

        Raises:
            DataFolderError: if the system refuses; the rest stays.
        """
        removed = []
        with _named(self.path):
            for run_id, path in self._runs():
                if run_id != but:
                    shutil.rmtree(path)
                    removed.append(run_id)
        return removed

    def close(self) -> None:
        """Let others have the folder; may be called twice."""
        self._lock.close()

    def _runs(self) -> list[tuple[int, Path]]:
        named = ((_RUN.fullmatch(path.name), path) for path in self.path.iterdir())
        return sorted(
            (int(name[1]), path)
            for name, path in named
            if name and stat.S_ISDIR(path.lstat().st_mode)
        )


def check_folders(root: Path, folder: Path) -> None:
    """Pass if a folder below a data folder, and those between, are no links and no others'.

    Raises:
        OSError: if the system refuses to look.
        ValueError: naming the first that is.
    """
    owners = {os.geteuid(), root.stat().st_uid}
    for depth in range(1, len(folder.relative_to(root).parts) + 1):
        each = root.joinpath(*folder.relative_to(root).parts[:depth])
        found = each.lstat()
        if not stat.S_ISDIR(found.st_mode):
            problem = f"{each.name} is a link, which may lead anywhere, or no folder"
            raise ValueError(problem)
        if found.st_uid not in owners:
            problem = f"{each.name} belongs to another user (id {found.st_uid})"
            raise ValueError(problem)


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    """Have what is refused name the folder and the user.

    Raises:
        DataFolderError: if it refuses.
    """
    try:
        yield
    except (OSError, ValueError) as error:
        user = str(os.geteuid())
        with contextlib.suppress(KeyError):
            user = pwd.getpwuid(os.geteuid()).pw_name
        reason = f"{error} (as user {user})"
        raise DataFolderError(path=str(path), reason=reason) from error
