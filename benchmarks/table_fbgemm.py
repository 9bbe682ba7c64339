"""fbgemm's table of embeddings on the CPU, beside ours; only where it is installed.

``pip install --no-deps fbgemm-gpu-cpu==1.8.0`` (for torch 2.13) into the environment of
the benchmark; nothing else here needs it.
"""

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["acts"]


def acts(size: int, dim: int, batch: int) -> dict[str, Callable[[NDArray[np.int64]], None]]:
    """Return a lookup and an update of rows by their numbers; none where it isn't installed."""
    try:
        package: Any = importlib.import_module(
            "fbgemm_gpu.split_table_batched_embeddings_ops_training"
        )
        common: Any = importlib.import_module(
            "fbgemm_gpu.split_table_batched_embeddings_ops_common"
        )
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
