"""The samples of a pass: in memory, shared by lot among the workers, read once more to score.

How samples are drawn depends on the seed and the pass alone, so that a training that begins
again with a pass trains the same batches.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

import paramfleet as fleet
from paramfleet.data.memory_dataset import InMemoryDataset
from paramfleet.runner.batches import Batch, dataset_settings, fields_of
from paramfleet.runner.models.model import Feeds, Model
from paramfleet.runner.online.calendar import Pass

__all__ = ["PassData", "TrainingBatches"]


class PassData:
    """One pass in this worker.

    Args:
        model: Says the slots.
        trained: Which pass.
        files: Those of all workers.
    """

    def __init__(self, model: Model[Any], trained: Pass, files: Sequence[str]) -> None:
        runner = model.config.runner
        self._runner = runner
        self._slots = model.create_slots()
        self._dataset = InMemoryDataset()
        self._dataset.init(
            **dataset_settings(
                model,
                batch_size=runner.train_batch_size,
                thread_num=runner.train_thread_num or runner.thread_num,
                seed=_seed(runner.seed, trained),
            )
        )
        self._dataset.set_share(files, fleet)
        self._is_preloading = False

    def preload(self) -> None:
        """Begin to read it in the background."""
        runner = self._runner
        self._dataset.preload_into_memory(runner.preload_thread_num or None)
        self._is_preloading = True

    def load(self) -> int:
        """Have it in memory, shuffled among all workers, each of which calls this.

        Returns:
            Samples in all workers.

        Raises:
            FleetError: what is wrong with a file, a line or a pipe command, or the job.
        """
        if self._is_preloading:
            self._dataset.wait_preload_done()
            self._is_preloading = False
        else:
            self._dataset.load_into_memory()
        self._dataset.global_shuffle(fleet, self._runner.shuffle_thread_num)
        return self._dataset.get_memory_data_size(fleet)

    @property
    def num_batches(self) -> int:
        """Batches of this worker."""
        size = self._dataset.get_memory_data_size()
        return -(-size // self._runner.train_batch_size)

    def __iter__(self) -> Iterator[Batch]:
        """Yield this worker's batches for training."""
        for batch in self._dataset:
            yield fields_of(batch, self._slots)

    def to_score(self) -> Iterator[Batch]:
        """Yield this worker's samples in batches for scoring."""
        size = self._runner.infer_batch_size or self._runner.train_batch_size
        self._dataset.update_settings(batch_size=size)
        try:
            yield from self
        finally:
            self._dataset.update_settings(batch_size=self._runner.train_batch_size)

    def without_rows(self) -> Batch:
        """Return a batch of no samples."""
        dtypes = {"int64": torch.int64, "float32": torch.float32}
        return tuple(
            torch.empty((0, slot.width), dtype=dtypes[slot.dtype]) for slot in self._slots
        )

    def release(self) -> None:
        """Forget the samples."""
        self._dataset.release_memory()


class TrainingBatches:
    """The batches of the pass that was given last, as the network takes them.

    Args:
        model: Makes feeds of batches.
    """

    def __init__(self, model: Model[Any]) -> None:
        self._model = model
        self._batches: Iterable[Batch] = ()
        self._empty: Batch | None = None
        self._steps = 0
        self.num_used = 0
        """Batches with samples that were yielded."""

    def begin(self, data: PassData, *, steps: int) -> None:
        """Take a pass.

        Args:
            data: It.
            steps: How many steps all workers take in it: more than its batches are without
                samples.
        """
        self._batches, self._steps, self.num_used = data, steps, 0
        self._empty = data.without_rows()

    def __iter__(self) -> Iterator[Feeds]:
        """Yield them once."""
        for batch in self._batches:
            self.num_used += 1
            yield self._model.create_feeds(batch)
        for _ in range(self.num_used, self._steps):
            yield self.without_rows()

    def without_rows(self) -> Feeds:
        """Return a batch of no samples."""
        assert self._empty is not None, "a pass has begun"
        return self._model.create_feeds(self._empty)


def _seed(seed: int, trained: Pass) -> int:
    """Return the seed of a pass."""
    text = f"{seed}/{trained.place.day}/{trained.place.number}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
