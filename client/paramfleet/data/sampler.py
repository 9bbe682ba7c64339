"""Which samples of a dataset are a worker's: torch's sampler, with the job's numbers."""

from collections.abc import Sized
from typing import Any

import torch.utils.data

from paramfleet.api.public import session
from paramfleet_shared.errors import ContractError

__all__ = ["DistributedSampler", "TooFewSamplesError"]


class TooFewSamplesError(ContractError):
    """There are more workers than samples, so that one would have nothing to train on."""

    code = "contract.too_few_samples"
    num_samples: int
    num_workers: int
    sentence = "{num_samples} samples for {num_workers} workers: start fewer workers"


class DistributedSampler(torch.utils.data.DistributedSampler[Any]):
    """Gives a ``DataLoader`` this worker's share of a dataset with a length.

    Every worker gets as many samples: where they can't be shared evenly, the last ones are
    drawn twice, or left out with ``drop_last``. Call ``set_epoch(epoch)`` before each epoch,
    or all have the same order. Give it to ``DataLoader(dataset, sampler=...)``.

    Args:
        dataset: The same in every worker; only its length is asked.
        shuffle: Draw in a random order, another one in each epoch.
        seed: Of the order; the same in every worker.
        drop_last: Leave the last samples out instead of drawing them twice.

    Raises:
        TooFewSamplesError: if a worker would get none of its own.
        CallOrderError: before ``fleet.init``.
    """

    def __init__(
        self,
        dataset: Sized,
        *,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        rank, num_workers = session.worker_index(), session.worker_num()
        num_samples = len(dataset)
        if num_samples < num_workers:
            raise TooFewSamplesError(num_samples=num_samples, num_workers=num_workers)
        super().__init__(
            dataset,  # type: ignore[arg-type]  # its length is all that is asked
            num_replicas=num_workers,
            rank=rank,
            shuffle=shuffle,
            seed=seed,
            drop_last=drop_last,
        )
