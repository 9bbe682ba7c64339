"""What pservers have left below a data folder: runs of jobs that failed, or that go on.

Others may write into a data folder, too. So no link below it is followed, folders of another
user than this one and the data folder's are left out, and to look writes nothing.
"""

import contextlib
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from paramfleet_pserver.durability.data_folder import LOCK_NAME, check_folders
from paramfleet_pserver.durability.locking import ExistingLock
from paramfleet_shared.errors.logs import DataFolderError, LogInUseError

__all__ = ["KeptRun", "kept_runs", "remove_run"]

_PSERVER = re.compile(r"pserver-([0-9]+)")
_RUN = re.compile(r"run-([0-9]+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptRun:
    """The training of one pserver in one run of a job."""

    job: str
    index: int
    run_id: int
    path: Path
    num_bytes: int
    """That its files take up on the disk."""
    changed_at: float
    """When a file was changed last, as time of day in seconds."""
    in_use: bool
    """Whether a process has the folder."""


def kept_runs(root: Path, report: Callable[[Path, str], None]) -> Iterator[KeptRun]:
    """Yield all runs below a data folder.

    Args:
        root: The data folder.
        report: Called with each folder that is left out, and why.

    Raises:
        OSError: if the system refuses to list the data folder.
    """
    for job in sorted(root.iterdir()):
        try:
            if _is_folder(job):
                yield from _runs_of_job(root, job, report)
        except (OSError, ValueError) as error:
            report(job, str(error))


def remove_run(root: Path, run: KeptRun) -> None:
    """Remove a run; who begins to use the folder meanwhile waits.

    Raises:
        LogInUseError: if a process has the folder.
        DataFolderError: if it can't be used, or is a link or another user's by now.
        OSError: if the system refuses; the rest stays.
    """
    folder = run.path.parent
    try:
        check_folders(root, folder)
        lock = ExistingLock(folder, LOCK_NAME)
    except (OSError, ValueError) as error:
        raise DataFolderError(path=str(folder), reason=str(error)) from error
    try:
        shutil.rmtree(run.path)
    finally:
        lock.close()


def _runs_of_job(
    root: Path, job: Path, report: Callable[[Path, str], None]
) -> Iterator[KeptRun]:
    check_folders(root, job)
    for folder in sorted(job.iterdir()):
        number = _PSERVER.fullmatch(folder.name)
        try:
            if number is not None and _is_folder(folder):
                yield from list(_runs_of(root, folder, index=int(number[1])))
        except (OSError, ValueError) as error:
            report(folder, str(error))


def _runs_of(root: Path, folder: Path, *, index: int) -> Iterator[KeptRun]:
    check_folders(root, folder)
    if not os.path.lexists(folder / LOCK_NAME):
        return
    in_use = _is_in_use(folder)
    for path in sorted(folder.iterdir()):
        number = _RUN.fullmatch(path.name)
        if number is None or not stat.S_ISDIR(path.lstat().st_mode):
            continue
        stats = [path.lstat()]
        for each in path.rglob("*"):
            with contextlib.suppress(FileNotFoundError):  # a process goes on there
                stats.append(each.lstat())
        yield KeptRun(
            job=folder.parent.name,
            index=index,
            run_id=int(number[1]),
            path=path,
            num_bytes=sum(512 * each.st_blocks for each in stats),
            changed_at=max(each.st_mtime for each in stats),
            in_use=in_use,
        )


def _is_folder(path: Path) -> bool:
    """Return whether it is a folder, or a link; any other file is no business of ours."""
    mode = path.lstat().st_mode
    return stat.S_ISDIR(mode) or stat.S_ISLNK(mode)


def _is_in_use(folder: Path) -> bool:
    """Return whether a process has a folder; raises as ``ExistingLock``, but for that."""
    try:
        ExistingLock(folder, LOCK_NAME).close()
    except LogInUseError:
        return True
    return False
