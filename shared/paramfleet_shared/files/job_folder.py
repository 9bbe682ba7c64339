"""The folder of a running job on one machine: what its owner alone may read.

``paramfleet launch`` makes one for its job, below a folder of this user. It holds the job's
secret, the Unix socket of its Redis, the token for its commands and the facts by which the
command line finds it. Folder and files are of mode 0700 and 0600.

The launcher holds a lock on the folder while it runs. So a second launch of the same name
sees that the first one runs, and a folder whose lock is free was left by a launcher that was
killed: the next launch of this user removes it, whatever its name. (systemd leaves locked
folders of ``/tmp`` alone, too.)
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import final

from paramfleet_shared.errors import ContractError
from paramfleet_shared.files.held import is_at
from paramfleet_shared.files.regular_files import replaced
from paramfleet_shared.system.ownership import reason_against

__all__ = [
    "JobFacts",
    "JobFolder",
    "JobRunsError",
    "UnsafeFolderError",
    "runtime_dir",
    "write_private",
]

TOLD_AFTER_S = 3.0
"""Seconds until it is said for which other launch one waits."""

STUCK_AFTER_S = 30.0
"""Seconds until that is given up."""

_FACTS_NAME = "job.json"

_LOCK_NAME = ".lock"
"""The file that whoever makes or removes folders locks; it is no folder of a job."""

_MAX_NAME_LENGTH = 48
"""Characters of a folder's name: the address of a Unix socket has at most 107."""


class UnsafeFolderError(ContractError):
    """A folder that must be this user's alone isn't."""

    code = "contract.unsafe_folder"
    path: str
    reason: str
    sentence = (
        "{path} can't keep the secrets of a job: {reason}; remove it, or name another "
        "folder in PARAMFLEET_RUNTIME_DIR"
    )


class JobRunsError(ContractError):
    """A job of this name runs on this machine already."""

    code = "contract.job_runs"
    job: str
    pid: int
    launch: str
    sentence = (
        "job {job} runs already on this machine (process {pid}, launch {launch}): end it "
        "first, or give this one another name with --job"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class JobFacts:
    """How the command line finds a job that runs here."""

    job: str
    launch: str
    """Random name of this launch."""

    redis: str
    """The ``redis`` setting; without a password."""

    pid: int
    """The launcher's process."""

    tls_dir: str = ""
    """The ``tls_dir`` setting."""

    folder: str = ""
    """The launcher's working folder; empty if it isn't known."""


def runtime_dir(given: str) -> Path:
    """Return the folder of this user's running jobs, which is made if need be.

    Args:
        given: The ``runtime_dir`` setting; empty takes one below the temporary folder. (Not
            XDG_RUNTIME_DIR: it vanishes when a user logs out, and a job may go on.)

    Raises:
        UnsafeFolderError: if somebody else could read or change it.
    """
    path = Path(given) if given else Path(tempfile.gettempdir(), f"paramfleet-{os.geteuid()}")
    try:
        if not path.exists():
            _require_own_way(path)  # nothing is made in a folder of another user
        path.mkdir(mode=0o700, parents=bool(given), exist_ok=True)
    except OSError as error:
        raise UnsafeFolderError(path=str(path), reason=str(error)) from error
    _require_private(path)
    _require_own_way(path)
    return path


def write_private(path: Path, data: bytes) -> None:
    """Write a file of mode 0600, whole or not at all; one that is there is replaced.

    Raises:
        OSError: if it can't be written.
    """
    with replaced(path, mode=0o600) as file:
        file.write(data)


@final
class JobFolder:
    """The folder of one job; ``claim`` it to launch a job, ``find`` it to ask one.

    Args:
        path: The folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    @property
    def secret_file(self) -> Path:
        """Where the job's secret is."""
        return self.path / "secret"

    @property
    def redis_socket(self) -> Path:
        """Where the job's own Redis listens."""
        return self.path / "redis.sock"

    @property
    def tokens_file(self) -> Path:
        """Where the hashes of the tokens are that admin addresses accept."""
        return self.path / "tokens"

    @property
    def admin_token_file(self) -> Path:
        """Where the token for the job's commands is."""
        return self.path / "admin.token"

    def arguments_file(self, server: int) -> Path:
        """Where a pserver that a script runs keeps the script's arguments."""
        return self.path / f"pserver-{server}.json"

    @property
    def endings(self) -> Path:
        """The folder in which processes write down what ends them."""
        return self.path / "endings"

    @property
    def admin_url_file(self) -> Path:
        """Where the coordinator's admin address is, once it serves."""
        return self.path / "admin.url"

    @classmethod
    def claim(
        cls, root: Path, job: str, say: Callable[[str], object] | None = None
    ) -> "JobFolder":
        """Make a job's folder and hold it until ``close``; what dead launches left goes.

        Args:
            root: ``runtime_dir``.
            job: The job's name, safe as a file's.
            say: Is told for which other launch this waits; None writes it to standard error.

        Raises:
            HeldTooLongError: if another launch hangs that is making its folder.
            JobRunsError: if a running launcher has it.
            UnsafeFolderError: if somebody else could read it.
            OSError: if there can't be locks.
        """
        folder = cls(root / _name_of(job))
        with _alone(root, say or _tell):  # else another one takes this folder for a dead one's
            folder._take(job)
            try:
                _remove_dead(root)
            except BaseException:
                folder.close()
                raise
        return folder

    def _take(self, job: str) -> None:
        """Make the folder, lock it and empty it.

        Raises:
            JobRunsError: if a running launcher has it.
            UnsafeFolderError: if somebody else could read it.
        """
        for _ in range(100):  # its launcher may remove it between two steps
            with contextlib.suppress(FileExistsError):
                self.path.mkdir(mode=0o700)
            try:
                _require_private(self.path)
                lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            except FileNotFoundError:
                continue
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                os.close(lock)
                facts = self.facts()
                pid, launch = (facts.pid, facts.launch) if facts else (0, "?")
                raise JobRunsError(job=job, pid=pid, launch=launch) from error
            if is_at(lock, self.path):
                self._lock = lock
                _clear(self.path)
                return
            os.close(lock)
        raise UnsafeFolderError(path=str(self.path), reason="it is replaced all the time")

    @classmethod
    def find(cls, root: Path, job: str) -> "JobFolder | None":
        """Return the folder of a job that runs here; None if none of the name does."""
        folder = cls(root / _name_of(job))
        return folder if folder.is_held() and folder.facts() is not None else None

    @classmethod
    def running(cls, root: Path) -> Iterator["JobFolder"]:
        """Yield the folders of the jobs that run here, by name."""
        for path in sorted(root.iterdir()) if root.is_dir() else ():
            folder = cls(path)
            if folder.is_held() and folder.facts() is not None:
                yield folder

    def facts(self) -> JobFacts | None:
        """Return what the launcher wrote; None before it has, or if it can't be read."""
        try:
            return JobFacts(**json.loads((self.path / _FACTS_NAME).read_text("utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    def write_facts(self, facts: JobFacts) -> None:
        """Let the command line find the job."""
        write_private(self.path / _FACTS_NAME, json.dumps(asdict(facts)).encode() + b"\n")

    def is_held(self) -> bool:
        """Return whether a running launcher has the folder."""
        try:
            _require_private(self.path)
            lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except (OSError, UnsafeFolderError):
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(lock)
        return False

    def close(self) -> None:
        """Remove the folder with all that is in it, and give it up; may be repeated."""
        if self._lock is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = None


def _name_of(job: str) -> str:
    """Return the name of a job's folder, which is the job's unless that is long."""
    if len(job) <= _MAX_NAME_LENGTH:
        return job
    digest = hashlib.sha256(job.encode()).hexdigest()[:16]
    return f"{job[: _MAX_NAME_LENGTH - 17]}-{digest}"


def _require_private(path: Path) -> None:
    """Look whether a folder is this user's alone.

    Raises:
        UnsafeFolderError: if it isn't, or isn't a folder.
        FileNotFoundError: if there is none.
    """
    fact = path.lstat()
    reason = ""
    if not stat.S_ISDIR(fact.st_mode):
        reason = "it isn't a folder"
    elif fact.st_uid != os.geteuid():
        reason = f"it belongs to user {fact.st_uid}"
    elif fact.st_mode & 0o077:
        reason = f"others may look into it (mode {stat.S_IMODE(fact.st_mode):04o})"
    if reason:
        raise UnsafeFolderError(path=str(path), reason=reason)


def _require_own_way(path: Path) -> None:
    """Check that no other user can replace a folder by another one.

    Raises:
        UnsafeFolderError: if somebody can, at any level above it.
    """
    if reason := reason_against(path):
        raise UnsafeFolderError(path=str(path), reason=reason)


def _alone(root: Path, say: Callable[[str], object]) -> AbstractContextManager[None]:
    """Hold the lock on the folder of all jobs: one launch at a time makes or removes some."""
    from paramfleet_shared.files.exclusion import Exclusion  # noqa: PLC0415 - launchers alone

    exclusion = Exclusion(
        lock=root / _LOCK_NAME,
        doing="making the folder of a job",
        progress=lambda: 0,  # it takes milliseconds
        told_after_s=TOLD_AFTER_S,
        stuck_after_s=STUCK_AFTER_S,
    )
    return exclusion.held(say)


def _tell(text: str) -> None:
    sys.stderr.write(f"paramfleet: {text}\n")


def _remove_dead(root: Path) -> None:
    """Remove the folders of launchers that were killed; what is no job's folder stays."""
    for path in root.iterdir():
        folder = JobFolder(path)
        if folder.facts() is None:
            continue
        try:
            _require_private(path)
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except (OSError, UnsafeFolderError):
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        except OSError:  # its launcher lives
            pass
        finally:
            os.close(lock)


def _clear(path: Path) -> None:
    for entry in path.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
