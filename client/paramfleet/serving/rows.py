"""The rows of one table, read-only: found by id, or made by what unknown ids read.

Shape legend: n = ids that have a row, D = row width, q = ids of a call.
"""

import warnings

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from paramfleet.serving.firsts import first_rows, stored
from paramfleet.serving.manifest import ExportedTable
from paramfleet_shared.tables.spec import stream_of

__all__ = ["Rows", "TableRows", "tensor_of"]


def tensor_of(array: NDArray[np.generic]) -> torch.Tensor:
    """Return a tensor on the memory of an array, which may be read-only."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(array)


class TableRows(torch.nn.Module):
    """A module from ids of any shape ``[...]`` to rows ``[..., D]``, wherever these are.

    Args:
        name: The table's.
        dim: D.
    """

    def __init__(self, name: str, dim: int) -> None:
        super().__init__()
        self.name = name
        self.dim = dim
        self.register_buffer("_like", torch.empty(0), persistent=False)
        self._like: torch.Tensor

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the rows ``[..., D]`` of ids int64 or int32 ``[...]``."""
        ids_q = ids.reshape(-1).to(torch.int64)
        return self._rows_of(ids_q).view(*ids.shape, self.dim).to(self._like)

    def _rows_of(self, ids_q: torch.Tensor) -> torch.Tensor:
        """Return the rows of ids int64 [q]: float32 [q, D].

        Raises:
            NotImplementedError: if the class doesn't say how.
        """
        raise NotImplementedError


class Rows(TableRows):
    """A module from ids of any shape ``[...]`` to rows ``[..., D]``.

    The returned rows have the dtype and device of the module: ``.to()`` changes these, but
    never moves the table. Only rows that are looked up are read.

    Args:
        table: The exported table.
        ids_n: int64 [n], sorted, without duplicates.
        rows: float32 [n, D]. Ids and rows are never written to: they may be a mapped file.
        shared: float32 [D], the row of all other ids; None for the first values of the job.
    """

    def __init__(
        self,
        table: ExportedTable,
        ids_n: torch.Tensor,
        rows: torch.Tensor,
        shared: torch.Tensor | None,
    ) -> None:
        super().__init__(table.name, table.dim)
        self.ids = ids_n
        self.rows = rows
        self._shared = shared
        self._initializer = table.initializer
        self._drawn = table.drawn
        self._stream = stream_of(table.seed, table.name)
        self._storage = table.storage

    def move_table(self, device: str | torch.device | None) -> None:
        """Copy the table to a device, from where it is looked up then; None leaves it."""
        if device is not None:
            self.ids, self.rows = self.ids.to(device), self.rows.to(device)
            self._shared = self._shared if self._shared is None else self._shared.to(device)

    @override
    def extra_repr(self) -> str:
        """Say which table, and how large."""
        return f"{self.name!r}, {self.rows.shape[0]} rows of {self.dim}"

    @override
    def _rows_of(self, ids_q: torch.Tensor) -> torch.Tensor:
        ids_q = ids_q.to(self.ids.device)
        if not self.ids.numel():
            return self._unknown(ids_q)
        place = torch.searchsorted(self.ids, ids_q).clamp(max=self.ids.numel() - 1)
        absent = self.ids[place] != ids_q
        found = self.rows[place]
        if torch.compiler.is_compiling():
            return torch.where(absent.unsqueeze(1), self._unknown(ids_q), found)
        if bool(absent.any()):
            found[absent] = self._unknown(ids_q[absent])
        return found

    def _unknown(self, ids_q: torch.Tensor) -> torch.Tensor:
        if self._shared is not None:
            return self._shared.repeat(ids_q.shape[0], 1)
        firsts = first_rows(self._initializer, self._stream, ids_q, self.dim, self._drawn)
        return stored(firsts, self._storage)
