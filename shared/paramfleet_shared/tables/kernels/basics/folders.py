"""Where compiled kernels are kept.

Known without numba: importing it would be most of a launcher's start, which only asks whether
there is something to compile.
"""

import hashlib
from pathlib import Path

__all__ = ["cache_folders", "kernel_sources"]


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

    Args:
        given: The folder that ``NUMBA_CACHE_DIR`` names; empty if it names none.
    """
    here = Path(__file__).parents[1]
    digest = hashlib.blake2b(digest_size=8)
    for path in kernel_sources():
        digest.update(path.read_bytes())
    name = f"kernels-{digest.hexdigest()}"
    if given:
        return (Path(given) / name,)
    return (here / "__pycache__" / name, Path("~/.cache/paramfleet").expanduser() / name)
