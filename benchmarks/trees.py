"""Checkouts of the project whose code a benchmark runs: this one, or a former one beside it.

A former one is a git worktree. Its processes run with this interpreter and its packages, and
import the checkout's own modules:

    git worktree add /tmp/before COMMIT
"""

import os
from pathlib import Path
from typing import NamedTuple

__all__ = ["HERE", "Tree"]

_PACKAGES = ("client", "shared", "services/coordinator", "services/pserver", "services/worker")
"""Folders that modules are imported from."""


class Tree(NamedTuple):
    """A checkout."""

    root: Path

    @property
    def benchmarks(self) -> Path:
        """Return the folder of its benchmarks."""
        return self.root / "benchmarks"

    def environment(self) -> dict[str, str]:
        """Return what lets an interpreter import its modules before those installed."""
        return {"PYTHONPATH": os.pathsep.join(str(self.root / each) for each in _PACKAGES)}


HERE = Tree(Path(__file__).resolve().parents[1])
"""This checkout."""
