"""Rows of a table as its weight has them: all of them, some by id, those of the step.

A table has N rows for these functions, 0 to ``num_embeddings`` - 1, if the model gave a number
and no other id was looked up. Rows that were never trained read as their first values, and are
not created.

Shape legend: N = ``num_embeddings``, D = row width, n = ids of a call.
"""

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from paramfleet.tables.devices import to_device, to_host
from paramfleet_shared.errors import ContractError
from paramfleet_shared.tables.spec import InitializerSpec

if TYPE_CHECKING:
    from paramfleet_shared.tables.partition import Partitioned

__all__ = [
    "MAX_WHOLE_VALUES",
    "LocalRows",
    "Rows",
    "WeightError",
    "begin_with",
    "count_of",
    "ids_of",
    "independent_copy",
    "is_whole",
    "note_lazy_term",
    "rows_by_id",
    "rows_of_the_step",
    "shape_of",
    "whole_rows",
    "write_rows",
    "write_whole",
]

MAX_WHOLE_VALUES = 1 << 26
"""Values of a table, N * D, up to which its rows are read or written as a whole: 256 MiB."""


class WeightError(ContractError):
    """An operation on an embedding's weight that a table can't do; nothing was changed."""

    code = "contract.weight"
    table: str
    operation: str
    reason: str
    sentence = "table {table!r}: {operation} of the embedding's weight: {reason}"


@runtime_checkable
class LocalRows(Protocol):
    """Rows in this process's memory."""

    def live_ids(self) -> NDArray[np.int64]:
        """Return the id of every row, int64 [num_rows]."""
        ...

    def write(self, ids: NDArray[np.int64], values: NDArray[np.float32]) -> None:
        """Set the values of rows, making those that don't exist."""
        ...


class Rows(Protocol):
    """A table, as its weight uses it. See ``SparseTable``."""

    name: str
    dim: int
    accessor: Any
    device: torch.device
    dtype: torch.dtype
    initializer: InitializerSpec
    has_default_values: bool
    num_embeddings: int
    padding_idx: int | None
    has_other_ids: bool
    is_trainable: bool
    first_rows: list[tuple[NDArray[np.int64], NDArray[np.float32]]]
    preview: Any
    is_stepped: bool
    write: Callable[[Any, NDArray[np.int64], NDArray[np.float32]], None] | None
    gradient: torch.Tensor | None
    weight: Any

    def zero_gradient(self) -> None:
        """Keep a gradient without rows in place of one that is pending."""
        ...

    @property
    def in_use(self) -> bool:
        """Whether rows were handed out already."""
        ...

    @property
    def local(self) -> LocalRows | None:
        """The rows, where they are in this process's memory; None elsewhere."""
        ...

    @property
    def stepping_ids(self) -> NDArray[np.int64]:
        """Ids of the rows of the step in progress, int64 [U]."""
        ...

    @property
    def stepping_rows(self) -> torch.Tensor:
        """Rows of the step in progress, beside their gradient: [U, D]."""
        ...

    def make_local(self) -> Any:
        """Return rows of this process as they are before any was trained."""
        ...

    def partition(self, ids: NDArray[np.int64]) -> "Partitioned":
        """Return ids as ``rows`` takes them."""
        ...

    def rows(self, ids_U: NDArray[np.int64], offsets: NDArray[np.int64]) -> torch.Tensor:
        """Return the rows of unique ids as a tensor of the weight's type, [U, D]."""
        ...

    def read(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the values of rows, float32 [n, D], and create none."""
        ...

    def lookups_of_the_step(self) -> list[tuple[NDArray[np.int64], torch.Tensor]]:
        """Return ids and rows of each lookup that waits for its gradient."""
        ...

    def begin_anew(self, source: Any, *, learns: bool) -> None:
        """Be a table of its own, with a weight, and without a step."""
        ...

    def note_type(self, memory: torch.Tensor) -> None:
        """Take dtype and device of the weight's memory for rows."""
        ...

    def note_once(self, event: str, reason: str) -> None:
        """Log a difference from torch, once a table."""
        ...

    def take_whole_gradient(self, gradient: torch.Tensor) -> torch.Tensor:
        """Replace the gradient by one of all rows, [N, D]; return its rows."""
        ...

    def set_gradient(self, gradient: torch.Tensor | None) -> None:
        """Replace the gradient of the step in progress."""
        ...


T = TypeVar("T", bound=Rows)


def shape_of(table: Rows) -> torch.Size:
    """Return the shape of a table's weight: [N, D], or [0, D] without a number of rows."""
    return torch.Size((table.num_embeddings, table.dim - _hidden(table)))


def ids_of(table: Rows) -> torch.Tensor:
    """Return the ids of a weight's rows, int64 [N]."""
    return torch.arange(table.num_embeddings)


def count_of(table: Rows, operation: str) -> int:
    """Return N.

    Raises:
        WeightError: if the model gave no number.
    """
    if not table.num_embeddings:
        reason = (
            "the table has no fixed number of rows; give num_embeddings, or name the rows: "
            "weight[ids]"
        )
        raise WeightError(table=table.name, operation=operation, reason=reason)
    return table.num_embeddings


def is_whole(table: Rows) -> bool:
    """Return whether the rows 0 to N - 1 can be read, and are all rows that are known."""
    return _reason_against(table) is None


def whole_rows(table: Rows, operation: str) -> torch.Tensor:
    """Return rows 0 to N - 1 as a tensor of the weight's type, [N, D].

    Under autograd, of a weight that is trained, they are rows of the step with a gradient.

    Raises:
        WeightError: if the table has no number of rows, too many, or rows of other ids.
    """
    reason = _reason_against(table)
    if reason is not None:
        raise WeightError(table=table.name, operation=operation, reason=reason)
    return rows_by_id(table, torch.arange(table.num_embeddings))


def rows_by_id(table: Rows, ids: torch.Tensor, *, from_end: bool = False) -> torch.Tensor:
    """Return the rows of ids int64 or int32 [...] as [..., D], as a lookup does.

    Args:
        table: Whose rows.
        ids: Which.
        from_end: Whether negative ids count from the end, as an index does.

    Raises:
        IndexError: as torch's weight, if it has no such row.
        WeightError: if an id is negative and there is no number of rows.
    """
    flat = _flat(table, ids, from_end=from_end)
    shape = (*ids.shape, table.dim - _hidden(table))
    if not table.in_use:
        return _typed(table, _first_values(table, flat)).view(shape)
    is_padding = flat == table.padding_idx
    unique, inverse, offsets = table.partition(flat[~is_padding])
    rows = table.rows(unique, offsets)
    place = np.full(len(flat), len(unique), np.int64)
    place[~is_padding] = inverse
    if is_padding.any():
        rows = torch.cat([rows, rows.new_zeros((1, rows.shape[1]))])
    index = to_device(torch.from_numpy(place), rows.device)
    return rows.index_select(0, index).view(shape)


def _flat(table: Rows, ids: torch.Tensor, *, from_end: bool) -> NDArray[np.int64]:
    """Return ids as int64 [n], those that count from the end as they are from the start.

    Raises:
        IndexError: if the weight has no such row.
        WeightError: if an id is negative and there is no number of rows.
    """
    flat: NDArray[np.int64] = to_host(ids.reshape(-1), dtype=torch.int64).numpy()
    if not flat.size:
        return flat
    count = table.num_embeddings
    if flat.min() < 0:
        count = count_of(table, "a negative index")
    wrong = (flat < (-count if from_end else 0)) | (flat >= count)
    if count and not table.has_other_ids and wrong.any():
        message = f"index {flat[wrong][0]} is out of bounds for dimension 0 with size {count}"
        raise IndexError(message)
    return np.where(flat < 0, flat + count, flat) if from_end else flat


def rows_of_the_step(table: Rows, operation: str) -> torch.Tensor:
    """Return the rows that the step looks up, each once, with their gradient: [U, D].

    Raises:
        WeightError: if there are none: the forward comes later, or its gradients were computed.
    """
    found = table.lookups_of_the_step()
    if not found:
        reason = (
            "in a loss it stands for the rows that the step looks up, and none is waiting for "
            "its gradient; compute the term between the forward and backward(), and read it "
            "elsewhere under torch.no_grad()"
        )
        raise WeightError(table=table.name, operation=operation, reason=reason)
    if len(found) == 1:
        return found[0][1]
    ids = np.concatenate([each for each, _ in found])
    _, first = np.unique(ids, return_index=True)
    rows = torch.cat([leaf for _, leaf in found])
    return rows.index_select(0, to_device(torch.from_numpy(first), rows.device))


def note_lazy_term(table: Rows) -> None:
    """Log once that a term of the loss covers the rows of the step alone."""
    remedy = (
        "a term of the loss that reads the embedding's weight covers the rows that the step "
        "looks up; torch computes it over all rows in every step"
    )
    table.note_once("worker.lazy_regularizer", remedy)


def begin_with(table: Rows, kind: Any, **numbers: float) -> None:
    """Let rows begin with other values, before there are any; earlier writes are forgotten.

    Raises:
        TableSpecError: if a number isn't one that an initializer can have.
    """
    table.initializer = InitializerSpec(kind=kind, **numbers)
    table.has_default_values = False
    table.first_rows.clear()
    table.preview = None
    if table.padding_idx is not None and numbers.get("value") != 0.0:
        _note_padding(table)


def write_whole(table: Rows, values: torch.Tensor) -> None:
    """Set rows 0 to M - 1 to values [M, D]."""
    write_rows(table, torch.arange(len(values)), values)


def write_rows(table: Rows, ids: torch.Tensor, values: torch.Tensor) -> None:
    """Set the rows of ids int64 or int32 [...] to values [..., D]; an id's last one counts.

    Raises:
        WeightError: if rows have an accessor, or a value isn't finite.
        FleetError: if the pservers can't take them.
    """
    reason = None
    if table.accessor is not None:
        reason = "rows with an accessor have counts, which no weight has; load a checkpoint"
    elif not bool(torch.isfinite(values.to(torch.float32)).all()):
        reason = "the values must be finite numbers of float32"
    if reason is not None:
        raise WeightError(table=table.name, operation="a write", reason=reason)
    flat = _flat(table, ids, from_end=True)
    rows = to_host(values.reshape(-1, shape_of(table)[1]), dtype=torch.float32).numpy()
    is_padding = flat == table.padding_idx
    if is_padding.any():
        if rows[is_padding].any():
            _note_padding(table)
        flat, rows = flat[~is_padding], rows[~is_padding]
    unique, last = np.unique(flat[::-1], return_index=True)
    rows = rows[::-1][last].copy()
    if table.write is not None:
        table.write(table, unique, rows)
    elif table.local is not None:
        table.local.write(unique, rows)
    else:
        table.first_rows.append((unique, rows))
        if table.preview is not None:
            table.preview.write(unique, rows)


def independent_copy(table: T, memo: dict[int, Any]) -> T:
    """Return a table of its own for a deep copy of a model.

    Of a table without rows it is one that can be trained. Else its rows are those that this
    process can read now, in its own memory, and they are frozen.

    Raises:
        WeightError: if the rows are on pservers and the model gave no number of them, or if
            they are too many.
    """
    if id(table) in memo:
        found: T = memo[id(table)]
        return found
    copied = copy.copy(table)
    memo[id(table)] = copied
    copied.preview = None
    if table.in_use:
        copied.first_rows = [_all_rows(table)]
        copied.begin_anew(copied.make_local(), learns=False)
    else:
        copied.first_rows = list(table.first_rows)
        copied.begin_anew(None, learns=table.weight.requires_grad)
    return copied


def _all_rows(table: Rows) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return the ids int64 [n] and values float32 [n, D] of the rows that can be read here.

    Raises:
        WeightError: if they are on pservers, in an unknown number, or too many.
    """
    if table.local is not None:
        ids = table.local.live_ids().copy()
    else:
        reason = _reason_against(table)
        if reason is not None:
            reason = f"{reason}; to serve a trained model, export it for fleet.serving"
            raise WeightError(table=table.name, operation="a copy", reason=reason)
        ids = np.arange(table.num_embeddings, dtype=np.int64)
    if len(ids) * table.dim > MAX_WHOLE_VALUES:
        reason = (
            f"its {len(ids):,} rows of {table.dim} have more than {MAX_WHOLE_VALUES:,} values; "
            "export the model for fleet.serving"
        )
        raise WeightError(table=table.name, operation="a copy", reason=reason)
    return ids, table.read(ids)


def _reason_against(table: Rows) -> str | None:
    """Return why a table's rows aren't read as a whole; None if they are."""
    count, width = shape_of(table)
    if not count:
        return (
            "the table has no fixed number of rows; give num_embeddings, or name the rows: "
            "weight[ids]"
        )
    if count * width > MAX_WHOLE_VALUES:
        return (
            f"[{count}, {width}] has more than {MAX_WHOLE_VALUES:,} values; name the rows: "
            "weight[ids]"
        )
    if table.has_other_ids:
        return (
            f"ids outside 0 to {count - 1} were looked up; give the table's num_embeddings, or "
            "name the rows: weight[ids]"
        )
    return None


def _first_values(table: Rows, ids: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return what rows of ids int64 [n] begin with, and let them begin with that."""
    if table.preview is None:
        table.preview = table.make_local()
    values: NDArray[np.float32] = table.preview.read(ids)
    new, place = np.unique(ids[table.preview.held(ids) < 0], return_index=True)
    if table.accessor is None and len(new):  # its name, which they depend on, may change
        pinned = values[table.preview.held(ids) < 0][place]
        table.preview.write(new, pinned)
        table.first_rows.append((new, pinned))
    values[ids == table.padding_idx] = 0.0
    return values[:, _hidden(table) :]


def _typed(table: Rows, rows: NDArray[np.float32]) -> torch.Tensor:
    memory = table.weight.memory
    return to_device(torch.from_numpy(rows), memory.device, dtype=memory.dtype)


def _hidden(table: Rows) -> int:
    return 0 if table.accessor is None else table.accessor.num_hidden


def _note_padding(table: Rows) -> None:
    remedy = (
        f"the row of padding_idx={table.padding_idx} stays zeros; torch keeps a value that is "
        "written to it"
    )
    table.note_once("worker.padding_stays_zero", remedy)
