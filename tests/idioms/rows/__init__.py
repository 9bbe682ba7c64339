"""The records: a module for each group or two, in the order of the page."""

import importlib
from typing import Final

__all__ = ["load"]

_MODULES: Final = (
    "modes",
    "weight",
    "states",
    "regularizers",
    "layers",
    "batches",
    "gradients",
    "optimizers",
    "schedulers",
    "norms",
    "copies",
    "compiling",
    "precision",
)


def load() -> None:
    """Import all modules of records."""
    for name in _MODULES:
        importlib.import_module(f"{__name__}.{name}")
