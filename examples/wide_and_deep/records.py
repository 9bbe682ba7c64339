"""Examples as plain arrays, and which of them a worker sees in which step."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["Batch", "BatchPlan", "Dataset", "Examples"]


class Batch(NamedTuple):
    """Some examples as tensors. B = examples, W, D = wide and deep fields, N = numbers."""

    wide_ids: torch.Tensor
    """int64 ``[B, W]``."""
    deep_ids: torch.Tensor
    """int64 ``[B, D]``."""
    dense: torch.Tensor
    """float32 ``[B, N]``."""
    labels: torch.Tensor
    """float32 ``[B]``, 0 or 1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Examples:
    """Examples as arrays, one row each."""

    wide_ids: NDArray[np.int64]
    """``[examples, wide fields]``."""
    deep_ids: NDArray[np.int64]
    """``[examples, deep fields]``."""
    dense: NDArray[np.float32]
    """``[examples, numbers]``."""
    labels: NDArray[np.float32]
    """``[examples]``, 0 or 1."""

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: NDArray[np.int64]) -> "Examples":
        """Return copies of the rows, in the order given."""
        return Examples(
            wide_ids=self.wide_ids[rows],
            deep_ids=self.deep_ids[rows],
            dense=self.dense[rows],
            labels=self.labels[rows],
        )

    def batch(self, rows: NDArray[np.int64]) -> Batch:
        """Return the rows as tensors, in the order given."""
        arrays = (self.wide_ids, self.deep_ids, self.dense, self.labels)
        return Batch(*(torch.from_numpy(array[rows]) for array in arrays))


@dataclass(frozen=True, kw_only=True, slots=True)
class Dataset:
    """A task: examples to learn from, and examples to be judged on."""

    train: Examples
    test: Examples


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchPlan:
    """Which rows each worker sees in which step.

    Each epoch shuffles all rows anew by the seed, the same on every worker. In
    lockstep a step of the job is one batch and every worker takes every
    ``num_workers``-th example of it: the union of the workers' batches is the batch
    that a single process would see. Otherwise every worker takes every
    ``num_workers``-th row as its share and cuts that into whole batches of its own.
    Rows that fill no batch are left out of the epoch, so that all workers make the same
    number of steps.
    """

    batch_size: int
    """Examples in a batch; of the whole job in lockstep, else of one worker."""
    seed: int
    num_workers: int = 1
    lockstep: bool = False

    def __post_init__(self) -> None:
        if self.batch_size < (self.num_workers if self.lockstep else 1):
            msg = f"batch_size {self.batch_size} is too small for {self.num_workers} workers"
            raise ValueError(msg)

    def steps_per_epoch(self, num_rows: int) -> int:
        """Return the steps every worker makes in an epoch, the same for all of them."""
        share = num_rows if self.lockstep else num_rows // self.num_workers
        return share // self.batch_size

    def rows(self, num_rows: int, *, epoch: int, rank: int) -> Iterator[NDArray[np.int64]]:
        """Yield the rows of each batch of the worker ``rank`` in an epoch."""
        order = np.random.default_rng((self.seed, epoch)).permutation(num_rows)
        size = self.batch_size
        if not self.lockstep:
            order = order[rank :: self.num_workers]
        for step in range(self.steps_per_epoch(num_rows)):
            batch = order[step * size : (step + 1) * size]
            yield batch[rank :: self.num_workers] if self.lockstep else batch
