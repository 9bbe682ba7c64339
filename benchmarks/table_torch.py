"""torch's own tables of rows, beside ours."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["acts"]


def acts(size: int, dim: int, batch: int) -> dict[str, Callable[[NDArray[np.int64]], None]]:
    """Return what torch does with rows by their numbers: a lookup, a sum, a step of Adam.

    Args:
        size: Rows of the table.
        dim: Floats of a row.
        batch: The most rows of a call.
    """
    table = torch.zeros(size, dim)
    grads = torch.ones(batch, dim)
    bag = torch.nn.EmbeddingBag(size, dim, mode="sum", sparse=True)
    optimizer = torch.optim.SparseAdam(list(bag.parameters()))
    offsets = torch.arange(batch)

    def step(slots: NDArray[np.int64]) -> None:
        ids = torch.from_numpy(slots)
        bag(ids, offsets[: ids.numel()]).backward(grads[: ids.numel()])
        optimizer.step()  # type: ignore[no-untyped-call]  # torch
        optimizer.zero_grad()

    def select(slots: NDArray[np.int64]) -> None:
        torch.index_select(table, 0, torch.from_numpy(slots))

    def add(slots: NDArray[np.int64]) -> None:
        table.index_add_(0, torch.from_numpy(slots), grads[: slots.size], alpha=-0.01)

    return {
        "index_select": select,
        "index_add_": add,
        "EmbeddingBag, SparseAdam": step,
    }
