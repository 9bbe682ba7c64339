"""Where a pserver keeps its training: a folder for each index, and in it one for each run.

::

    DATA_DIR/<job>/pserver-<index>/lock
    DATA_DIR/<job>/pserver-<index>/run-<id>/      snapshots and the log of a run

Who has the lock has the folder, from before it joins the job until it ends. So a process that
has it knows that the one before it is dead.
"""

import re
import shutil
from pathlib import Path

from paramfleet_pserver.durability.locking import FolderLock
from paramfleet_shared.errors.logs import LogInUseError

__all__ = ["DataFolder"]

_LOCK_NAME = "lock"
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
        OSError: if the system refuses.
    """

    def __init__(self, root: Path, job: str, index: int) -> None:
        self.index = index
        self.path = root / job / f"pserver-{index}"
        self._lock = FolderLock(self.path, _LOCK_NAME)

    @classmethod
    def find(cls, root: Path, job: str) -> "DataFolder | None":
        """Return a folder that holds a training and that nobody has; None if there is none.

        Raises:
            OSError: if the system refuses.
        """
        parent = root / job
        names = [_INDEX.fullmatch(p.name) for p in parent.iterdir()] if parent.is_dir() else []
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
            OSError: if the system refuses.
        """
        newest = max(self._runs(), key=lambda run: run[1].stat().st_mtime_ns, default=(0, None))
        return newest[0]

    def run(self, run_id: int) -> Path:
        """Return the folder of a run."""
        return self.path / f"run-{run_id}"

    def begin(self, run_id: int) -> None:
        """Have a folder for a run: who finds it without a training knows that none had begun.

        Raises:
            OSError: if the system refuses.
        """
        self.run(run_id).mkdir(mode=0o700, exist_ok=True)

    def remove_runs(self, *, but: int = 0) -> list[int]:
        """Remove what is kept of all runs but one; return these.

        Raises:
            OSError: if the system refuses; the rest stays.
        """
        removed = []
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
        return sorted((int(name[1]), path) for name, path in named if name and path.is_dir())
