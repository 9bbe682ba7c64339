"""The samples of a pass: in memory, shared by lot among the workers, read once more to score.

How samples are drawn depends on the seed and the pass alone, so that a training that begins
again with a pass trains the same batches.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import torch

import paramfleet as fleet
from paramfleet.data.memory_dataset import InMemoryDataset
from paramfleet.runner.batches import Batch, dataset_settings, fields_of
from paramfleet.runner.models.model import Feeds, Model
from paramfleet.runner.online.calendar import Pass
from paramfleet_shared.files.documents import whole

__all__ = ["PassData", "TrainingBatches"]

_VERSION = 1


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
        self._is_read = False
        """Whether this worker's share of the files is in memory, before it is shuffled."""
        self._facts = (trained.place, tuple(files), runner.seed, runner.train_batch_size)

    def preload(self) -> None:
        """Begin to read it in the background."""
        runner = self._runner
        self._dataset.preload_into_memory(runner.preload_thread_num or None)
        self._is_preloading = True

    def has_come(self) -> bool:
        """Return whether ``preload`` is done; an error of it is for ``load``."""
        if self._is_preloading and self._dataset.is_preloaded:
            self._dataset.wait_preload_done()
            self._is_preloading, self._is_read = False, True
        return self._is_read

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
        elif not self._is_read:
            self._dataset.load_into_memory()
        self._dataset.global_shuffle(fleet, self._runner.shuffle_thread_num)
        return self._dataset.get_memory_data_size(fleet)

    @property
    def key(self) -> str:
        """Return what this worker's batches depend on, as SHA-256."""
        facts = (*self._facts, fleet.worker_index(), fleet.worker_num(), self.num_batches)
        return hashlib.sha256(repr(facts).encode()).hexdigest()

    @property
    def num_batches(self) -> int:
        """Batches of this worker."""
        return -(-self.num_samples // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        """Yield this worker's batches for training."""
        for batch in self._dataset:
            yield fields_of(batch, self._slots)

    @property
    def num_samples(self) -> int:
        """Samples of this worker that are in memory."""
        return self._dataset.get_memory_data_size()

    @property
    def batch_size(self) -> int:
        """Of the batches for training."""
        return self._runner.train_batch_size

    def to_score(self) -> Iterator[Batch]:
        """Yield this worker's samples in batches for scoring."""
        return self.in_order(self._runner.infer_batch_size or self.batch_size)

    def in_order(self, batch_size: int) -> Iterator[Batch]:
        """Yield this worker's samples in batches, as they are in memory."""
        self._dataset.update_settings(batch_size=batch_size)
        try:
            yield from self
        finally:
            self._dataset.update_settings(batch_size=self.batch_size)

    def without_rows(self) -> Batch:
        """Return a batch of no samples."""
        dtypes = {"int64": torch.int64, "float32": torch.float32}
        return tuple(
            torch.empty((0, slot.width or 1), dtype=dtypes[slot.dtype]) for slot in self._slots
        )

    def release(self) -> None:
        """Forget the samples."""
        self._dataset.release_memory()


class TrainingBatches:
    """The batches of the pass that was given last, as the network takes them.

    A checkpoint of the middle of a pass has this worker's place in it.

    Args:
        model: Makes feeds of batches.
    """

    def __init__(self, model: Model[Any]) -> None:
        self._model = model
        self._data: PassData | None = None
        self._key = ""
        self._steps = 0
        self._used = 0
        """Steps of the pass that have their batch."""
        self._saved: tuple[str, int] | None = None
        """The key of a loaded place, and its steps; until a pass begins."""

    def place_in(self, data: PassData) -> int | None:
        """Return how many steps of a pass a loaded place is behind; None if it has others."""
        key, used = self._saved or ("", 0)
        return used if key == data.key else None

    def begin(self, data: PassData, *, steps: int, used: int) -> None:
        """Take a pass.

        Args:
            data: It.
            steps: How many steps this worker takes in it: more than its batches are without
                samples.
            used: How many of them it has taken.
        """
        self._data, self._key, self._steps, self._used = data, data.key, steps, used
        self._saved = None

    def __iter__(self) -> Iterator[Feeds]:
        """Yield those that are left, once."""
        assert self._data is not None, "a pass has begun"
        for batch in islice(self._data, self._used, None):
            self._used += 1
            yield self._model.create_feeds(batch)
        while self._used < self._steps:
            self._used += 1
            yield self.without_rows()

    def without_rows(self) -> Feeds:
        """Return a batch of no samples."""
        assert self._data is not None, "a pass has begun"
        return self._model.create_feeds(self._data.without_rows())

    def state_dict(self) -> dict[str, Any]:
        """Return this worker's place in the pass."""
        return {"version": _VERSION, "key": self._key, "used": self._used}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on at a place, if its pass comes next.

        Raises:
            ValueError: if it is none.
        """
        if state["version"] != _VERSION or type(state["key"]) is not str:
            rule = f"is no place of version {_VERSION}"
            raise ValueError(rule)
        self._saved = state["key"], whole(state["used"], "used")

    def reshard(self, states: Sequence[Any], rank: int, size: int) -> dict[str, Any]:
        """Return the place after workers of another number: none, the pass begins anew."""
        del states, rank, size
        return {"version": _VERSION, "key": "", "used": 0}


def _seed(seed: int, trained: Pass) -> int:
    """Return the seed of a pass."""
    text = f"{seed}/{trained.place.day}/{trained.place.number}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
