"""Which files are the user's own code, and which a library's, or ours."""

import sysconfig
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

__all__ = ["library_test"]

_OURS = (
    "paramfleet",
    "paramfleet_coordinator",
    "paramfleet_pserver",
    "paramfleet_serving",
    "paramfleet_shared",
    "paramfleet_worker",
)


def library_test() -> Callable[[str], bool]:
    """Return what tells of a file, by its path, whether it is a library's of this Python."""
    paths = sysconfig.get_paths()
    folders = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    for name in _OURS:
        spec = find_spec(name)
        folders.update((spec.submodule_search_locations or ()) if spec is not None else ())
    known = [each for folder in folders for each in {Path(folder), Path(folder).resolve()}]

    def is_library(file: str) -> bool:
        return file.startswith("<") or any(Path(file).is_relative_to(each) for each in known)

    return is_library
