"""Rows that were read of a weight and are a view of it, and the gradient of a weight.

Shape legend: N = ``num_embeddings``, D = row width, U = rows of a step, n = rows of a view.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from typing_extensions import override

from paramfleet.tables.weight.calls import exchanged, is_write, name_of, plainly, tensors_in
from paramfleet.tables.weight.rows import (
    Rows,
    is_whole,
    note_lazy_term,
    rows_by_id,
    shape_of,
    write_rows,
)

__all__ = ["RowGradient", "RowView", "viewed"]

_GEOMETRY = frozenset(
    {"shape", "size", "numel", "dim", "ndim", "dtype", "device", "requires_grad", "grad_fn"}
)


class RowView(torch.Tensor):
    """A view of a weight: rows that are read when they are used, and written when changed."""

    table: Rows
    ids: torch.Tensor
    """Of the rows of ``base``, int64 [...]."""
    base: torch.Tensor
    """The rows as they were read last, [..., D], contiguous; this shares its memory."""

    @classmethod
    def of(
        cls, view: torch.Tensor, base: torch.Tensor, table: Rows, ids: torch.Tensor
    ) -> "RowView":
        """Return a view of some rows that were read."""
        made = view.as_subclass(cls)
        made.base, made.table, made.ids = base, table, ids
        return made

    @classmethod
    @override
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs, name = kwargs or {}, name_of(func)
        views = [each for each in tensors_in([args, kwargs]) if isinstance(each, RowView)]
        first = views[0]
        if is_write(name):
            return _written(func, args, kwargs, views)
        if name not in _GEOMETRY:
            for each in views:
                each.refresh()
        plain = {id(each): _plain(each) for each in views}
        result = func(*exchanged(args, plain), **exchanged(kwargs, plain))
        return viewed(result, first.base, first.table, first.ids)

    def refresh(self) -> None:
        """Read the rows again, unless they are part of a loss."""
        if not self.base.requires_grad:
            with torch.no_grad():
                self.base.copy_(rows_by_id(self.table, self.ids))


def _plain(view: torch.Tensor) -> torch.Tensor:
    plain: torch.Tensor = plainly(torch.Tensor.as_subclass, (view, torch.Tensor), {})
    return plain


def _written(func: Callable[..., Any], args: Any, kwargs: Any, views: list[RowView]) -> Any:
    """Change views as a function changes its first argument, and write the rows that differ."""
    with torch.no_grad():
        read = {id(each): rows_by_id(each.table, each.ids).contiguous() for each in views}
        changed = {key: rows.clone() for key, rows in read.items()}
        plain = {}
        for each in views:
            own = _plain(each)
            start = own.storage_offset() - each.base.storage_offset()
            plain[id(each)] = changed[id(each)].as_strided(own.size(), own.stride(), start)
    result = func(*exchanged(args, plain), **exchanged(kwargs, plain))
    targets = {id(each) for each in tensors_in(args[0])}
    with torch.no_grad():
        for view in views:
            if id(view) in targets:
                _write_changes(view, read[id(view)], changed[id(view)])
                if not view.base.requires_grad:
                    view.base.copy_(changed[id(view)])
    return args[0] if result is not None else None


def _write_changes(view: RowView, before: torch.Tensor, rows: torch.Tensor) -> None:
    width = rows.shape[-1]
    before, rows = before.view(-1, width), rows.view(-1, width)
    differ = (rows != before).any(1)
    write_rows(view.table, view.ids.reshape(-1)[differ.cpu()], rows[differ])


def viewed(result: Any, base: torch.Tensor, table: Rows, ids: torch.Tensor) -> Any:
    """Return the result of an operation on rows, as a view where it shares their memory.

    Args:
        result: What a function of torch has returned.
        base: The rows that it got, [..., D].
        table: Theirs.
        ids: Theirs, int64 [...].
    """
    if isinstance(result, np.ndarray):
        result.flags.writeable = False  # nobody would see what is written to it
        return result
    if isinstance(result, (list, tuple)) and not hasattr(result, "_fields"):
        return type(result)(viewed(each, base, table, ids) for each in result)
    if not isinstance(result, torch.Tensor) or result.layout != torch.strided:
        return result
    plain = result.as_subclass(torch.Tensor)
    memory = base.untyped_storage().data_ptr()
    if not plain.numel() or plain.untyped_storage().data_ptr() != memory:
        return plain
    return RowView.of(plain, base, table, ids)


_ALIKE = frozenset(
    {
        "_foreach_norm", "_foreach_mul_", "_foreach_clamp_min_", "_foreach_clamp_max_",
        "count_nonzero", "dtype", "device", "layout", "is_sparse", "is_cuda", "is_cpu",
        "requires_grad", "grad_fn", "is_leaf", "is_floating_point", "is_complex", "dim", "ndim",
        "detach_", "requires_grad_", "_amp_foreach_non_finite_check_and_unscale_", "zero_",
        "element_size", "_version", "is_contiguous", "untyped_storage", "data_ptr", "is_meta",
    }
)  # fmt: skip
"""Functions that are the same for the rows of the step as for all, where the others are 0."""

_REDUCTIONS = frozenset({"sum", "norm", "linalg_vector_norm", "linalg_norm"})
_BY_SCALAR = frozenset({"mul_", "div_", "__imul__", "__itruediv__", "nan_to_num_"})
"""Functions that leave zeros as they are, if they have no tensor beside the gradient."""


class RowGradient(torch.Tensor):
    """The gradient of a weight, as torch's code sees it: [N, D], zeros but in the step's rows.

    Of a table without a number of rows it is that of the step's rows, [U, D].
    """

    table: Rows
    rows: torch.Tensor
    """Of the step's rows, [U, D]."""

    @classmethod
    def of(cls, gradient: torch.Tensor, table: Rows) -> "RowGradient":
        """Return a table's gradient of the step's rows, [U, D], as that of its weight."""
        made = gradient.as_subclass(cls)
        made.table, made.rows = table, gradient
        return made

    @override
    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        rows = len(self.table.stepping_ids)
        return f"RowGradient of {rows} rows of table {self.table.name!r}"

    @classmethod
    @override
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs, name = kwargs or {}, name_of(func)
        own = [each for each in tensors_in([args, kwargs]) if isinstance(each, RowGradient)]
        others = [e for e in tensors_in([args, kwargs]) if not isinstance(e, RowGradient)]
        rows = {id(each): each.rows for each in own}
        table = own[0].table
        if name == "zero_" and table.is_stepped:  # of a model that forgets a step's gradients
            table.zero_gradient()
            return args[0]
        is_alike = name in _ALIKE or (name in _BY_SCALAR and not others)
        is_alike |= name in _REDUCTIONS and len(args) <= 2 and kwargs.get("dim") is None
        is_alike &= not (name == "sum" and len(args) > 1)
        weights = {id(e): table.stepping_rows for e in others if e is table.weight}
        if weights:  # such as p.grad.add_(p, alpha=decay)
            note_lazy_term(table)
        if is_alike or weights or not is_whole(table):
            result = func(*exchanged(args, rows | weights), **exchanged(kwargs, rows))
            return args[0] if is_write(name) and result is not None else result
        if name in {"coalesce", "to_sparse"}:
            return _coalesced(own[0])
        whole = {id(each): _whole(each) for each in own}
        result = func(*exchanged(args, whole), **exchanged(kwargs, whole))
        if not is_write(name):
            return result
        for each in own:
            if any(each is changed for changed in tensors_in(args[0])):
                each.rows = each.table.take_whole_gradient(whole[id(each)])
        return args[0] if result is not None else None


def _coalesced(gradient: RowGradient) -> torch.Tensor:
    """Return the gradient as torch has it with ``sparse=True``, [N, D]."""
    table, rows = gradient.table, gradient.rows
    ids = torch.from_numpy(table.stepping_ids).to(rows.device).unsqueeze(0)
    return torch.sparse_coo_tensor(
        ids, rows, shape_of(table), check_invariants=False
    ).coalesce()


def _whole(gradient: RowGradient) -> torch.Tensor:
    """Return the gradient of all rows, [N, D]."""
    table, rows = gradient.table, gradient.rows
    found = rows.new_zeros(shape_of(table))
    ids = torch.from_numpy(table.stepping_ids).to(rows.device)
    return found.index_copy_(0, ids, rows)
