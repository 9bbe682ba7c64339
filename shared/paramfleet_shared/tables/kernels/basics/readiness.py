"""Whether this machine's kernels are compiled, and compiling them beside a process.

Kernels are kept on disk (``kernel_folders``), each once it is compiled; compiling those that
most tables need takes about half a minute of a core, and longer where others use it, loading
them less than a second. They are parts (``parts``). Once all of a part are there, a mark lies
beside them, named after what they were compiled for, this Python, numba and processor, and
after what numba finds them by: where their sources are. So a copy of an installation has none,
though it has the files.

One process compiles at a time (``alone``), so that a job's members that start at once
don't all do the same work.
"""

import contextlib
import hashlib
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from llvmlite import binding  # type: ignore[import-untyped]  # llvmlite ships no types

from paramfleet_shared.settings.config import read_environment
from paramfleet_shared.system.clock import Clock
from paramfleet_shared.system.processes.keeping import tied
from paramfleet_shared.system.processes.own_modules import module_command
from paramfleet_shared.tables.kernels.basics.folders import cache_folders, kernel_sources
from paramfleet_shared.tables.kernels.basics.parts import USUAL, Part
from paramfleet_shared.values.versions import versions

__all__ = [
    "COMPILING",
    "alone",
    "compile_missing",
    "compiling",
    "is_cold",
    "kernel_folders",
    "note_compiled",
    "num_kept",
]

log = logging.getLogger(__name__)

WARM = "paramfleet_shared.tables.warm"
"""Compiles every kernel of tables in memory."""

ONCE = (
    "only the first start after an installation does this, for half a minute or more; later "
    "starts use what it has compiled"
)
"""What is said of that to whoever waits."""

COMPILING = (
    f"compiling the table kernels for this machine: {ONCE} (`python -m {WARM}` does it "
    "beforehand)"
)
"""What is said to whoever waits."""

TOLD_AFTER_S = 3.0
"""Seconds until it is said that another process compiles."""

STUCK_AFTER_S = 300.0
"""Seconds without another kernel until it isn't waited for any more; one takes some seconds."""

_POLL_S = 0.05
"""Seconds between two looks at whether they are compiled."""

_ENDS_WITHIN_S = 1.0
"""How long a compilation may take to end when it is asked to; nothing is lost then."""

_CONTENT_SINCE = (0, 68)
"""The first numba that compares the content of sources, and not their times and sizes."""


def kernel_folders() -> tuple[Path, ...]:
    """Return where this process may keep compiled kernels, the best place first.

    Raises:
        UnsafeKernelsError: if others may write to the one that is given.
    """
    return cache_folders(read_environment().get("NUMBA_CACHE_DIR", ""))


def is_cold(part: Part = USUAL) -> bool:
    """Return whether a part's kernels are to be compiled, and kept for the next process.

    Where nothing can be kept, each process compiles what it needs when it needs it.
    """
    folder = _folder()
    return folder is not None and not (folder / _mark(part)).exists()


def num_kept() -> int:
    """Return how many compiled kernels are kept, also by a compilation that was stopped."""
    folder = _folder()
    return 0 if folder is None else sum(1 for _ in folder.rglob("*.nbc"))


def note_compiled(part: Part = USUAL) -> None:
    """Remember that every kernel of a part has been compiled."""
    folder = _folder()
    if folder is not None:
        (folder / _mark(part)).touch()


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Wait until no other process compiles, and hold the others up.

    Raises:
        HeldTooLongError: if the one that compiles gets no further; kernels are compiled when
            they are called first, too.
    """
    folder = _folder()
    if folder is None:
        yield
        return
    from paramfleet_shared.files.exclusion import Exclusion  # noqa: PLC0415 - few compile

    exclusion = Exclusion(
        lock=folder / "lock",
        doing="compiling the table kernels",
        progress=num_kept,
        told_after_s=TOLD_AFTER_S,
        stuck_after_s=STUCK_AFTER_S,
        advice=ONCE,
    )
    with exclusion.held(lambda text: sys.stderr.write(f"{text}\n")):
        yield


@contextlib.contextmanager
def compiling(module: str = WARM, *parts: Part) -> Iterator[subprocess.Popen[bytes]]:
    """Compile kernels in a process of its own, which ends with the context at latest.

    Args:
        module: What compiles them.
        parts: Which; none for what the module compiles without.
    """
    command = module_command(module, *parts)
    process = subprocess.Popen(  # noqa: S603 - a fixed command
        tied(command), stdout=subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(_ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:  # it is stopped, or its machine too busy to answer
            process.kill()
            process.wait()


async def compile_missing(parts: Iterable[Part], clock: Clock) -> None:
    """Compile those of some parts that this machine lacks, beside the event loop.

    In another process, because compiling would hold this one's event loop up. Where that fails
    kernels are compiled when they are called first.

    Args:
        parts: What is needed.
        clock: By which it is waited.
    """
    missing = [part for part in parts if is_cold(part)]
    if not missing:
        return
    named = ", ".join(missing)
    doing = f"compiling more table kernels for this machine, once: {named}"
    log.info("kernels.compiling", extra={"doing": doing})
    began = clock.monotonic()
    with compiling(WARM, *missing) as process:
        while process.poll() is None:
            await clock.sleep(_POLL_S)
    facts = {"parts": named, "seconds": round(clock.monotonic() - began, 1)}
    if process.returncode == 0:
        log.info("kernels.compiled", extra=facts)
    else:
        log.warning("kernels.not_compiled", extra=facts)


def _folder() -> Path | None:
    """Return where kernels are kept: the first folder that can be written, if any."""
    for folder in kernel_folders():
        try:
            folder.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            folder.mkdir(mode=0o755, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return folder
        except OSError:
            continue
    return None


def _mark(part: Part) -> str:
    facts = (
        sys.implementation.cache_tag,
        versions()["numba"],
        binding.get_host_cpu_name(),
        binding.get_host_cpu_features().flatten(),
        *_places(),
    )
    digest = hashlib.blake2b("\n".join(map(str, facts)).encode(), digest_size=8)
    return f"complete-{part}-{digest.hexdigest()}"


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
