"""Exported models without a job: ``fleet.serving.load`` and ``tables``.

Nothing here needs more than torch and numpy: no server, no transport, no compiled kernel.
A model whose class uses ``fleet.nn`` brings numba, which those modules train with.
"""

from paramfleet.serving.errors import (
    ExportDamagedError,
    ExportError,
    ExportMismatchError,
    UnknownRowError,
)
from paramfleet.serving.loading import load, tables
from paramfleet.serving.rows import Rows

__all__ = [
    "ExportDamagedError",
    "ExportError",
    "ExportMismatchError",
    "Rows",
    "UnknownRowError",
    "load",
    "tables",
]
