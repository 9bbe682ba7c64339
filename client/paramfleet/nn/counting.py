"""Shows and clicks: how they come to the rows of a table with an accessor.

Shape legend: n = ids of a batch, U = different ones, B = instances.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from paramfleet.config.accessor import AccessorOptionError
from paramfleet.tables.devices import to_host
from paramfleet.tables.sparse import RowUse
from paramfleet_shared.tables.rows.routing import merge_by_inverse

__all__ = ["continuous_value_model", "use_by_gradient", "use_of"]

Count = torch.Tensor | None


def use_by_gradient(*, instances: int, show: Count, click: Count) -> RowUse:
    """Return how a forward uses rows whose counts come with their gradients.

    Raises:
        AccessorOptionError: if they are given, too.
    """
    for option, value in (("show", show), ("click", click)):
        if value is not None:
            rule = "with cvm=True counts come by fleet.nn.continuous_value_model"
            raise AccessorOptionError(option=option, value="a tensor", rule=rule)
    return RowUse(max(1, instances), None)


def use_of(
    instance_of: NDArray[np.int64],
    index: NDArray[np.int64],
    num_rows: int,
    *,
    instances: int,
    show: Count,
    click: Count,
) -> RowUse:
    """Return how a forward uses rows.

    Args:
        instance_of: int64 [n], the instance that each id is of, padding left out.
        index: int64 [n], each id's row.
        num_rows: U.
        instances: B.
        show: [B], how often each instance was shown; None for once.
        click: [B], and clicked; None for never.

    Raises:
        AccessorOptionError: if a count has another shape, is negative or isn't finite, or if
            an instance wasn't shown.
    """
    shows = _counts("show", show, instances, 1.0)
    clicks = _counts("click", click, instances, 0.0)
    of_ids = np.stack([shows[instance_of], clicks[instance_of]], axis=1)
    return RowUse(max(1, instances), merge_by_inverse(of_ids, index, num_rows))


def _counts(option: str, given: Count, instances: int, default: float) -> NDArray[np.float32]:
    if given is None:
        return np.full(instances, default, np.float32)
    if given.numel() != instances:
        rule = f"must have one number for each of the {instances} instances of the batch"
        raise AccessorOptionError(option=option, value=f"{list(given.shape)}", rule=rule)
    counts: NDArray[np.float32] = to_host(
        given.detach().reshape(-1), dtype=torch.float32
    ).numpy()
    least = np.float32(0)
    good = np.isfinite(counts) & ((counts > least) if option == "show" else (counts >= least))
    if not good.all():
        wrong = float(counts[~good][0])
        rule = (
            "must be finite and more than 0" if option == "show" else "must be finite, from 0"
        )
        raise AccessorOptionError(option=option, value=f"{wrong:g}", rule=rule)
    return counts


class _ContinuousValues(torch.autograd.Function):
    """Fleet's ``cvm`` operator."""

    @staticmethod
    @override
    def forward(ctx: Any, rows: torch.Tensor, cvm: torch.Tensor, use_cvm: bool) -> torch.Tensor:
        ctx.save_for_backward(cvm)
        ctx.use_cvm = use_cvm
        if not use_cvm:
            return rows[..., 2:].contiguous()
        show = torch.log(rows[..., 0:1] + 1)
        click = torch.log(rows[..., 1:2] + 1) - show
        return torch.cat([show, click, rows[..., 2:]], dim=-1)

    @staticmethod
    @override
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (cvm,) = ctx.saved_tensors
        own = grad[..., 2:] if ctx.use_cvm else grad
        counts = cvm.to(grad.dtype).expand(*own.shape[:-1], 2)
        return torch.cat([counts, own], dim=-1), None, None


def continuous_value_model(
    input: torch.Tensor,  # noqa: A002 - Fleet's name
    cvm: torch.Tensor,
    use_cvm: bool = True,  # noqa: FBT001, FBT002 - Fleet's signature
) -> torch.Tensor:
    """Compute features from shows and clicks, and count those of the batch in the rows.

    As ``paddle.static.nn.continuous_value_model``: of columns ``show, click, ...`` the first
    two become ``ln(show + 1)`` and ``ln(click + 1) - ln(show + 1)``. Its backward adds the show
    and click of each instance to the rows of that instance.

    Args:
        input: float [B, D], rows of a table with ``CtrAccessor(cvm=True)``, pooled or not.
        cvm: float [B, 2], show and click of each instance.
        use_cvm: Whether to keep the two features; otherwise they are left out.

    Returns:
        float [B, D], or [B, D - 2].

    Raises:
        AccessorOptionError: if the shapes do not fit together.
    """
    if input.dim() < 2 or input.shape[-1] < 3:
        rule = "must be rows of at least 3 columns: show, click and weights"
        raise AccessorOptionError(option="input", value=f"{list(input.shape)}", rule=rule)
    if cvm.dim() != 2 or tuple(cvm.shape) != (input.shape[0], 2):
        rule = f"must be [{input.shape[0]}, 2]: a show and a click for each instance"
        raise AccessorOptionError(option="cvm", value=f"{list(cvm.shape)}", rule=rule)
    counts = cvm.detach().view(cvm.shape[0], *[1] * (input.dim() - 2), 2)
    found: torch.Tensor = _ContinuousValues.apply(input, counts, use_cvm)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return found
