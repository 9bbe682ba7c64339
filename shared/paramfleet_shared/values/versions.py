"""Which versions this process runs of what a job's members share."""

import importlib.metadata
import platform
from functools import cache

__all__ = ["versions"]

PACKAGES = ("paramfleet", "numpy", "numba", "torch")


@cache
def versions() -> dict[str, str]:
    """Return the versions of Python and of those packages that are installed."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
