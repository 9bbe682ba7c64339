"""Rows of a batch by index, for autograd: torch's forward, and a backward of our own.

On the processor torch adds up the gradients of an embedding ten to twenty times slower
than the copy they are worth. Here one kernel does it, without the GIL, in the order of
the batch. Devices, other types and second derivatives go through torch's operations.

Shape legend: n = ids of a batch, R = rows, B = bags, D = row width.
"""

from typing import Any

import torch
from torch.nn import functional
from typing_extensions import override

from paramfleet_shared.tables.rows.routing import merge_by_inverse

__all__ = ["bags_of_rows", "rows_of_ids"]


def rows_of_ids(rows: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Return ``rows`` [R, D] by ``index`` int64 [n]: [n, D]."""
    if not _has_kernel(rows):
        return functional.embedding(index, rows)
    found: torch.Tensor = _RowsOfIds.apply(rows, index)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return found


def bags_of_rows(  # noqa: PLR0913 - torch's signature
    rows: torch.Tensor,
    index: torch.Tensor,
    offsets: torch.Tensor | None,
    *,
    mode: str,
    per_sample_weights: torch.Tensor | None,
    include_last_offset: bool,
    padding_idx: int | None,
) -> torch.Tensor:
    """Return one reduced row a bag, [B, D], as ``torch.nn.functional.embedding_bag`` does.

    Args:
        rows: [R, D].
        index: int64 [B, n / B], or [n] with ``offsets``.
        offsets: Where each bag starts in a 1-d ``index``.
        mode: ``sum``, ``mean`` or ``max``.
        per_sample_weights: One factor an id; ``sum`` only.
        include_last_offset: The last of ``offsets`` is n.
        padding_idx: The row that is left out.
    """
    options: dict[str, Any] = {
        "mode": mode,
        "include_last_offset": include_last_offset,
        "padding_idx": padding_idx,
    }
    if per_sample_weights is not None or mode == "max" or not _has_kernel(rows):
        return functional.embedding_bag(
            index, rows, offsets, per_sample_weights=per_sample_weights, **options
        )
    found: torch.Tensor = _BagsOfRows.apply(rows, index, offsets, options)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return found


def _has_kernel(rows: torch.Tensor) -> bool:
    return rows.device.type == "cpu" and rows.dtype == torch.float32


def _sum_by_index(grads: torch.Tensor, index: torch.Tensor, num_rows: int) -> torch.Tensor:
    """Return [R, D]: the sum of the gradients [n, D] of each row, in the batch's order."""
    if torch.is_grad_enabled():  # somebody wants the derivative of this
        return grads.new_zeros((num_rows, grads.shape[1])).index_add(0, index, grads)
    return torch.from_numpy(merge_by_inverse(grads.detach().numpy(), index.numpy(), num_rows))


class _RowsOfIds(torch.autograd.Function):
    @staticmethod
    @override
    def forward(ctx: Any, rows: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(index)
        ctx.num_rows = len(rows)
        return functional.embedding(index, rows)

    @staticmethod
    @override
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        (index,) = ctx.saved_tensors
        return _sum_by_index(grads[0], index, ctx.num_rows), None


class _BagsOfRows(torch.autograd.Function):
    @staticmethod
    @override
    def forward(
        ctx: Any,
        rows: torch.Tensor,
        index: torch.Tensor,
        offsets: torch.Tensor | None,
        options: dict[str, Any],
    ) -> torch.Tensor:
        ctx.save_for_backward(index, offsets)
        ctx.num_rows = len(rows)
        ctx.options = options
        return functional.embedding_bag(index, rows, offsets, **options)

    @staticmethod
    @override
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        index, offsets = ctx.saved_tensors
        grads_BD, options = grads[0], ctx.options
        if offsets is None:
            sizes = index.new_full((len(index),), index.shape[1])
        else:
            ends = () if options["include_last_offset"] else (index.new_tensor([len(index)]),)
            sizes = torch.cat([offsets.to(torch.int64), *ends]).diff()
        index = index.reshape(-1)
        of_bag = torch.repeat_interleave(sizes)
        index = index[: len(of_bag)]
        if options["mode"] == "mean":
            counted = index != (
                -1 if options["padding_idx"] is None else options["padding_idx"]
            )
            counts = torch.bincount(of_bag[counted], minlength=len(grads_BD)).clamp(min=1)
            grads_BD = grads_BD / counts.unsqueeze(1)
        return _sum_by_index(grads_BD[of_bag], index, ctx.num_rows), None, None, None
