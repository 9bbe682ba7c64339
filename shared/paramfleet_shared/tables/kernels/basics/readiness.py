"""Whether this machine's kernels are compiled, and compiling them beside a process.

Kernels are kept on disk (``kernel_folders``); compiling all of them takes about a minute,
loading them less than a second. Once all are there, a mark lies beside them, named after
what they were compiled for, this Python, numba and processor, and after what numba finds them
by: where their sources are. So a copy of an installation has none, though it has the files.

One process compiles at a time (``alone``), so that a job's members that start at once
don't all do the same work.
"""

import contextlib
import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from llvmlite import binding  # type: ignore[import-untyped]  # llvmlite ships no types

from paramfleet_shared.settings.config import read_environment
from paramfleet_shared.system.processes.keeping import tied
from paramfleet_shared.system.processes.own_modules import module_command
from paramfleet_shared.tables.kernels.basics.folders import cache_folders, kernel_sources
from paramfleet_shared.values.versions import versions

__all__ = ["COMPILING", "alone", "compiling", "is_cold", "kernel_folders", "note_compiled"]

WARM = "paramfleet_shared.tables.warm"
"""Compiles every kernel of tables in memory."""

COMPILING = "compiling the table kernels for this machine: about a minute, once"
"""What is said to whoever waits."""

_CONTENT_SINCE = (0, 68)
"""The first numba that compares the content of sources, and not their times and sizes."""


def kernel_folders() -> tuple[Path, ...]:
    """Return where this process may keep compiled kernels, the best place first."""
    return cache_folders(read_environment().get("NUMBA_CACHE_DIR", ""))


def is_cold() -> bool:
    """Return whether there are kernels to be compiled, and kept for the next process.

    Where nothing can be kept, each process compiles what it needs when it needs it.
    """
    folder = _folder()
    return folder is not None and not (folder / _mark()).exists()


def note_compiled() -> None:
    """Remember that every kernel has been compiled."""
    folder = _folder()
    if folder is not None:
        (folder / _mark()).touch()


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Wait until no other process compiles, and hold the others up."""
    folder = _folder()
    if folder is None:
        yield
        return
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def compiling(module: str = WARM) -> Iterator[subprocess.Popen[bytes]]:
    """Compile kernels in a process of its own, which ends with the context at latest.

    Args:
        module: What compiles them.
    """
    command = module_command(module)
    process = subprocess.Popen(  # noqa: S603 - a fixed command
        tied(command), stdout=subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def _folder() -> Path | None:
    """Return where kernels are kept: the first folder that can be written, if any."""
    for folder in kernel_folders():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return folder
        except OSError:
            continue
    return None


def _mark() -> str:
    facts = (
        sys.implementation.cache_tag,
        versions()["numba"],
        binding.get_host_cpu_name(),
        binding.get_host_cpu_features().flatten(),
        *_places(),
    )
    digest = hashlib.blake2b("\n".join(map(str, facts)).encode(), digest_size=8)
    return f"complete-{digest.hexdigest()}"


def _places() -> list[str]:
    """Return what numba finds kernels by, beside the content that the folder is named after.

    It keeps them apart by the absolute path of their source, links in it included. An older
    one takes none whose source has another time or size than when it was compiled.
    """
    sources = kernel_sources()
    places = [os.path.abspath(path) for path in sources]  # noqa: PTH100 -- as numba does
    if tuple(map(int, versions()["numba"].split(".")[:2])) < _CONTENT_SINCE:
        found = [path.stat() for path in sources]
        places += [f"{each.st_mtime!r} {each.st_size}" for each in found]
    return places
