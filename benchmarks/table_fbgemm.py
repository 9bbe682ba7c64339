"""fbgemm's table of embeddings on the CPU, beside ours; only where it is installed.

``scripts/install.sh benchmark`` tries to get the build for the pinned torch; nothing else
needs it.
"""

import importlib
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from conditions import Headline
from rounds import Rounds

__all__ = ["acts", "headlines"]

_OPS = "fbgemm_gpu.split_table_batched_embeddings_ops"


def acts(size: int, dim: int, batch: int) -> dict[str, Callable[[NDArray[np.int64]], None]]:
    """Return a lookup and an update of rows by their numbers; none where it isn't installed."""
    try:
        with warnings.catch_warnings():  # it looks for more optimizers than it comes with
            warnings.simplefilter("ignore", DeprecationWarning)
            package: Any = importlib.import_module(f"{_OPS}_training")
            common: Any = importlib.import_module(f"{_OPS}_common")
    except (ImportError, OSError):  # OSError: built for another torch
        return {}
    place = (common.EmbeddingLocation.HOST, package.ComputeDevice.CPU)
    table = package.SplitTableBatchedEmbeddingBagsCodegen(
        [(size, dim, *place)],
        optimizer=package.OptimType.EXACT_SGD,
        learning_rate=0.01,
        pooling_mode=common.PoolingMode.SUM,
    )
    offsets, grads = torch.arange(batch + 1), torch.ones(batch, dim)

    def look_up(slots: NDArray[np.int64]) -> None:
        with torch.no_grad():
            table(torch.from_numpy(slots), offsets[: slots.size + 1])

    def update(slots: NDArray[np.int64]) -> None:
        rows = table(torch.from_numpy(slots), offsets[: slots.size + 1])
        rows.backward(grads[: slots.size])

    return {"lookup": look_up, "update": update}


def headlines(rounds: Rounds) -> dict[str, Headline | None]:
    """Return our rates over fbgemm's, of the same rounds; None where it wasn't measured."""
    pairs = {
        "table_pull_vs_fbgemm": ("pull hit uniform", "fbgemm lookup uniform"),
        "table_push_sgd_vs_fbgemm": ("push sgd uniform", "fbgemm update uniform"),
    }
    return {
        name: rounds.headline(ours, theirs) if theirs in rounds.figures else None
        for name, (ours, theirs) in pairs.items()
    }
