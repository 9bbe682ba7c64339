"""Where compiled kernels are kept.

Known without numba: importing it would be most of a launcher's start, which only asks whether
there is something to compile.
"""

import contextlib
import hashlib
import os
from pathlib import Path

from paramfleet_shared.errors import ContractError
from paramfleet_shared.system.ownership import reason_against

__all__ = ["UnsafeKernelsError", "cache_folders", "kernel_sources", "made_folders"]

_OTHERS = 0o022
"""What a umask takes from group and others, so that they can't write."""


class UnsafeKernelsError(ContractError):
    """Others may write where compiled kernels are to be kept, which are code that runs."""

    code = "contract.unsafe_kernels"
    path: str
    reason: str
    sentence = (
        "{path} can't keep compiled kernels, which are code that runs: {reason}; name a folder "
        "of this user in NUMBA_CACHE_DIR, or leave it out"
    )


def kernel_sources() -> tuple[Path, ...]:
    """Return the files of every kernel's source, and of the formulas they are made of."""
    here = Path(__file__).parents[1]
    folders = (here, here.parent / "rules", here.parent / "disk" / "kernels")
    return tuple(path for folder in folders for path in sorted(folder.rglob("*.py")))


def cache_folders(given: str) -> tuple[Path, ...]:
    """Return where compiled kernels may be kept, the best place first.

    A folder's name holds a digest of every kernel's source, and of the formulas that the
    kernels are made of. numba itself looks only at the file that a kernel is written in,
    so that it would not see a change in a function inlined from another, and would fail on
    a record that an older version has left.

    What lies there runs here, so others may not write to it. Beside the sources of the kernels
    nothing is asked: who can write there can change the sources.

    Args:
        given: The folder that ``NUMBA_CACHE_DIR`` names; empty if it names none.

    Raises:
        UnsafeKernelsError: if others may write to the one that is given.
    """
    here = Path(__file__).parents[1]
    digest = hashlib.blake2b(digest_size=8)
    for path in kernel_sources():
        digest.update(path.read_bytes())
    name = f"kernels-{digest.hexdigest()}"
    if given:
        folder = Path(given) / name
        if reason := _reason_against(folder):
            raise UnsafeKernelsError(path=str(folder), reason=reason)
        return (folder,)
    own = Path("~/.cache/paramfleet").expanduser() / name
    return (here / "__pycache__" / name, *(() if _reason_against(own) else (own,)))


def made_folders(given: str) -> tuple[Path, ...]:
    """Return ``cache_folders``; the first one that this user can write to is made.

    They are looked at again once it is there: else somebody could make it first, in a folder
    such as ``/tmp`` where all may make some.

    Raises:
        UnsafeKernelsError: if others may write to the one that is given.
    """
    for folder in cache_folders(given):
        _make_closed(folder)
        if os.access(folder, os.W_OK):
            break
    return cache_folders(given)


def _make_closed(folder: Path) -> None:
    """Make a folder; one where this process makes files that others may write to is closed.

    Kernels are kept with the mode that the umask leaves, and whoever could change one would
    run code as whoever loads it. So with a loose umask the folder and those above it are
    closed. One that can't be made is left to whoever writes.
    """
    former = os.umask(0o077)
    is_loose = former & _OTHERS != _OTHERS
    os.umask(0o077 if is_loose else former)
    try:
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            if is_loose:
                folder.chmod(0o700)
    finally:
        os.umask(former)


def _reason_against(folder: Path) -> str:
    """Return why somebody else could put a kernel there; empty if nobody can."""
    return f"{folder} is a link" if folder.is_symlink() else reason_against(folder)
