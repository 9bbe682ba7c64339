"""The rows of one table of a checkpoint, whatever trained it, in a process without a job.

Shape legend: n = rows, D = row width.
"""

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from paramfleet_shared.checkpoint.layers import read_layers
from paramfleet_shared.checkpoint.manifest import Manifest
from paramfleet_shared.checkpoint.one_manifest import one_manifest
from paramfleet_shared.checkpoint.saved_ids import check_each_once
from paramfleet_shared.errors import ContractError
from paramfleet_shared.files.addresses import place_of
from paramfleet_shared.tables.spec import TableSpec
from paramfleet_shared.values.texts import nearest

__all__ = ["NoSuchTableError", "SavedRows", "load_rows", "sparse_spec"]


class NoSuchTableError(ContractError):
    """A checkpoint has no sparse table of this name."""

    code = "contract.no_such_table"
    path: str
    table: str
    known: str
    nearest: str

    @override
    def describe(self) -> str:
        hint = f"did you mean {self.nearest!r}?" if self.nearest else f"it has: {self.known}"
        return f"{self.path} has no sparse table {self.table!r}; {hint}"


class SavedRows(NamedTuple):
    """A whole sparse table, without optimizer states."""

    ids: NDArray[np.int64]
    """int64 [n], sorted, each once."""
    rows: NDArray[np.float32]
    """float32 [n, D]: row i is that of ``ids[i]``."""


def load_rows(dirname: str | os.PathLike[str], table: str) -> SavedRows:
    """Return the rows of one sparse table of a checkpoint.

    No job, server or ``fleet.init`` is needed, and it makes no difference which mode has
    trained the table, or with how many servers. Each file is proven by its SHA-256. All rows
    of the table are in memory then.

    Args:
        dirname: A folder that ``fleet.save_persistables`` or ``paramfleet train`` wrote.
        table: The table's name: that of its module in the model, or the one it was given.

    Raises:
        ManifestError: if the folder isn't a checkpoint, or another one took its name
            meanwhile: load again.
        CheckpointDamagedError: if a file isn't what was saved, or has an id that another one
            has.
        NoSuchTableError: if it has no such table; it says which there are.
    """
    folder = place_of(dirname)
    with one_manifest(folder) as manifest:
        return _rows_of(folder, manifest, table)


def sparse_spec(folder: Path, manifest: Manifest, table: str) -> TableSpec:
    """Return a sparse table of a checkpoint.

    Raises:
        NoSuchTableError: if it has no such table; it says which there are.
    """
    specs = {saved.spec.name: saved.spec for saved in manifest.tables}
    sparse = sorted(name for name, spec in specs.items() if spec.kind == "sparse")
    if table not in sparse:
        raise NoSuchTableError(
            path=str(folder),
            table=table,
            known=", ".join(sparse) or "none",
            nearest=nearest(table, sparse) or "",
        )
    return specs[table]


def _rows_of(folder: Path, manifest: Manifest, table: str) -> SavedRows:
    """Return the rows of one sparse table.

    Raises:
        CheckpointDamagedError: as ``load_rows``.
        NoSuchTableError: as ``load_rows``.
    """
    spec = sparse_spec(folder, manifest, table)
    files = list(read_layers(folder, manifest).files(table))
    parts = [file.read() for file in files]
    found = [part.ids for part in parts if part.ids is not None]
    check_each_once(table, [file.path for file in files], found)
    ids = np.concatenate([np.empty(0, np.int64), *found])
    rows = np.concatenate([np.empty((0, spec.dim), np.float32), *(p.values for p in parts)])
    order = np.argsort(ids, kind="stable")
    return SavedRows(ids[order], rows[order])
