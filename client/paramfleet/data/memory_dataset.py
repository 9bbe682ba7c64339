"""``InMemoryDataset``: files that are read once, and used from memory."""

import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from paramfleet.api.collectives import Util
from paramfleet.config.errors import NotYetError
from paramfleet.data.batch import Batch
from paramfleet.data.dataset import DatasetBase, share_of_process
from paramfleet.data.parsing.rows import Rows
from paramfleet.data.parsing.slots import Layout
from paramfleet.data.progress import require_same
from paramfleet.data.reading.files import require_files
from paramfleet.data.reading.threads import Readers
from paramfleet.data.settings import DatasetSettings
from paramfleet.data.shuffling import Drawing, exchange_rows, permuted
from paramfleet.data.store import Store

__all__ = ["Fleet", "InMemoryDataset", "NotLoadedError"]

_VERSION = 1


class Fleet(Protocol):
    """What a dataset needs of ``import paramfleet as fleet``."""

    util: Util


class NotLoadedError(NotYetError):
    """Something was asked of data that isn't in memory."""

    code = "contract.not_loaded"

    def __init__(self, *, function: str, remedy: str) -> None:
        super().__init__(f"{function}: {remedy}", function=function, remedy=remedy)
        self.function = function
        self.remedy = remedy


@dataclass(slots=True)
class _Loaded:
    """Data in memory."""

    files: list[str]
    layout: Layout
    rows: Rows
    order: NDArray[np.int64]
    """The rows as they are yielded."""
    shuffles: list[list[Any]] = field(default_factory=list)
    """What made the order: kind and number of each shuffle."""
    original: Rows | None = None
    """The rows before ``slots_shuffle``."""


class InMemoryDataset(DatasetBase):
    """Reads its files into arrays: 8 bytes an id, 4 a float, 4 a slot, 24 a sample.

    The order is that of the files, whatever ``thread_num`` is, until a shuffle; with the
    same seed, files and calls it is the same again.

        dataset = fleet.data.InMemoryDataset()
        dataset.init(batch_size=512, thread_num=2, use_var=[label, *slots])
        dataset.set_filelist(fleet.data.split_files(files, rank, num_workers))
        dataset.load_into_memory()
        dataset.global_shuffle(fleet)
        for batch in dataset:
            ...
        dataset.release_memory()

    To resume: ``load_state_dict``, then load and shuffle as before; the next ``for`` goes
    on with the sample behind the last one yielded.
    """

    def __init__(self) -> None:
        super().__init__()
        self._loaded: _Loaded | None = None
        self._preload: _Preload | None = None
        self._may_be_none = False
        """Whether this worker's share of the files may be empty."""
        self._num_shuffles = 0
        self._epoch = 0
        self._next = 0
        self._state: Mapping[str, Any] | None = None

    def set_share(self, files: Sequence[str], fleet: Fleet) -> None:
        """Take this worker's contiguous share of the files of all, which may be none.

        Then nothing is read here, and ``global_shuffle`` gives this worker samples of others.

        Args:
            files: Those of all workers, in the same order in each.
            fleet: ``paramfleet``.

        Raises:
            CannotReadFileError: if a local one isn't a file.
        """
        share = fleet.util.get_file_shard([str(file) for file in files])
        if share:
            self.set_filelist(share)
        self._files, self._may_be_none = share, not share

    @override
    def set_filelist(self, files: Sequence[str]) -> None:
        super().set_filelist(files)
        self._may_be_none = False

    def load_into_memory(self, is_shuffle: bool = False) -> None:  # noqa: FBT001, FBT002 - Fleet's signature
        """Read all files with ``thread_num`` readers; what was in memory is dropped.

        Args:
            is_shuffle: Follow with ``local_shuffle``.

        Raises:
            EmptyFileListError: if there are no files.
            FleetError: what is wrong with a file, a line or a pipe command; memory is then
                empty.
        """
        self.release_memory()
        self._loaded = self._read(self.settings, list(self._files))
        if is_shuffle:
            self.local_shuffle()

    def preload_into_memory(self, thread_num: int | None = None) -> None:
        """Begin to read the files in the background; the data in memory stays in use.

        Args:
            thread_num: Readers; None takes that of the settings.

        Raises:
            NotLoadedError: if one is running already.
            EmptyFileListError: if there are no files.
        """
        if self._preload is not None:
            remedy = "call wait_preload_done() first"
            raise NotLoadedError(function="preload_into_memory", remedy=remedy)
        settings = self.settings
        if thread_num is not None:
            settings = replace(settings, thread_num=thread_num)
        self._require_files(settings, self._files)
        self._preload = _Preload(self, settings, list(self._files))

    def wait_preload_done(self) -> None:
        """Wait for ``preload_into_memory``, and use its data from now on.

        Raises:
            NotLoadedError: if none was started.
            FleetError: what went wrong in it; the data in memory stays.
        """
        if self._preload is None:
            remedy = "call preload_into_memory() first"
            raise NotLoadedError(function="wait_preload_done", remedy=remedy)
        preload, self._preload = self._preload, None
        loaded = preload.wait()
        self.release_memory()
        self._loaded = loaded

    @property
    def is_preloaded(self) -> bool:
        """Whether ``wait_preload_done`` neither waits nor fails."""
        return self._preload is not None and self._preload.is_whole

    def local_shuffle(self) -> None:
        """Shuffle this worker's samples.

        Raises:
            NotLoadedError: if nothing is in memory.
        """
        loaded = self._require("local_shuffle")
        number = self._note_shuffle(loaded, "local")
        loaded.order = permuted(loaded.order, [self.settings.seed, number])

    def global_shuffle(self, fleet: Fleet | None = None, thread_num: int = 12) -> None:
        """Send each sample to a random worker, and shuffle the samples that arrive.

        Every worker calls it. Afterwards each sample is in exactly one worker.

        Args:
            fleet: ``paramfleet``; without it, and in one process, this is a local shuffle.
            thread_num: Number of messages of ``fleet_send_batch_size`` samples in transfer at
                the same time.

        Raises:
            NotLoadedError: if nothing is in memory.
            FleetError: if a worker doesn't come or can't be reached in time, or the job
                fails; the samples may then be gone: load them again.
        """
        if fleet is None:
            self.local_shuffle()
            return
        loaded = self._require("global_shuffle")
        number = self._note_shuffle(loaded, "global")
        util, settings = fleet.util, self.settings
        seed = [settings.seed, number, util.rank]
        drawing = Drawing(
            seed=seed, block_rows=settings.fleet_send_batch_size, in_flight=max(1, thread_num)
        )
        rows, order = exchange_rows(loaded.rows, loaded.order, loaded.layout, util, drawing)
        loaded.rows, loaded.original = rows, None
        loaded.order = permuted(order, [*seed, 1])

    def slots_shuffle(self, slots: Sequence[str]) -> None:
        """Give each sample the values of these slots from another, drawn by lot.

        The samples' own values of all other slots stay, those of an earlier call come
        back. So a model's loss without the information of some slots can be measured; an
        empty list brings the data back.

        Raises:
            NotLoadedError: if nothing is in memory.
            SettingError: if there is no slot of a name.
        """
        loaded = self._require("slots_shuffle")
        layout = loaded.layout
        numbers = layout.numbers(slots)
        original = loaded.original or loaded.rows
        loaded.rows, loaded.original = original, None
        if numbers:
            number = self._note_shuffle(loaded, f"slots {','.join(slots)}")
            other = permuted(np.arange(len(original)), [self.settings.seed, number])
            loaded.rows, loaded.original = original.mixed(layout, numbers, other), original

    def release_memory(self) -> None:
        """Forget the samples."""
        self._loaded = None
        self._next = 0

    def get_memory_data_size(self, fleet: Fleet | None = None) -> int:
        """Return the samples in memory; with ``fleet``, in all workers."""
        return self._summed(0 if self._loaded is None else len(self._loaded.order), fleet)

    def get_shuffle_data_size(self, fleet: Fleet | None = None) -> int:
        """Return the samples in memory if they have been shuffled, else 0."""
        loaded = self._loaded
        is_shuffled = loaded is not None and bool(loaded.shuffles)
        return self._summed(len(loaded.order) if loaded and is_shuffled else 0, fleet)

    @property
    def memory_bytes(self) -> int:
        """Bytes of memory that the samples take."""
        if self._loaded is None:
            return 0
        return self._loaded.rows.num_bytes + self._loaded.order.nbytes

    @override
    def __iter__(self) -> Generator[Batch, None, None]:
        """Yield the samples in memory once, or the rest of them after ``load_state_dict``.

        Raises:
            NotLoadedError: if nothing is in memory.
            OtherDataError: if a loaded state is one of other data or another order.
        """
        loaded, settings = self._require("for"), self.settings
        self._next = 0 if self._state is None else self._first_row(loaded, self._state)
        self._state = None
        starts = range(self._next, len(loaded.order), settings.batch_size)
        for start in share_of_process(starts):
            order = loaded.order[start : start + settings.batch_size]
            self._next = start + len(order)
            yield Batch.of(loaded.layout, loaded.rows, order, {"row": self._next})
        self.end_epoch()

    def advance(self, batch: Batch) -> None:
        """Count a batch as used that another process's copy of this dataset has yielded.

        A ``DataLoader`` hands on the batches of its processes in their order.
        """
        self._next = int(batch.position["row"])

    def end_epoch(self) -> None:
        """Count an epoch as ended that other processes' copies have yielded."""
        self._epoch += 1
        self._next = 0
        self._state = None

    @property
    def epoch(self) -> int:
        """Times that the samples in memory have been yielded to the end."""
        return self._epoch

    def state_dict(self) -> dict[str, Any]:
        """Return the position in plain values: files, shuffles, samples used, epoch.

        Raises:
            NotLoadedError: if nothing is in memory.
        """
        loaded = self._require("state_dict")
        return {
            "version": _VERSION,
            "kind": "memory",
            "files": loaded.files,
            "seed": self.settings.seed,
            "shuffles": [list(shuffle) for shuffle in loaded.shuffles],
            "size": len(loaded.order),
            "epoch": self._epoch,
            "row": self._next,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next ``for`` continue at the position of a state.

        Call it before the data is loaded and shuffled, so that the shuffles are drawn as
        they were.

        Raises:
            OtherDataError: if the state is one of another seed or kind of dataset.
        """
        require_same(state, "kind", "memory")
        require_same(state, "version", _VERSION)
        require_same(state, "seed", self.settings.seed)
        self.release_memory()
        self._state = dict(state)
        self._epoch = int(state["epoch"])
        if state["shuffles"]:
            self._num_shuffles = int(state["shuffles"][0][1])

    def _first_row(self, loaded: _Loaded, state: Mapping[str, Any]) -> int:
        """Return where a state goes on, in data that must be the same.

        Raises:
            OtherDataError: if it isn't.
        """
        require_same(state, "files", loaded.files)
        require_same(state, "shuffles", loaded.shuffles)
        require_same(state, "size", len(loaded.order))
        return int(state["row"])

    def _read(self, settings: DatasetSettings, files: list[str]) -> _Loaded:
        self._require_files(settings, files)
        store = Store(len(settings.layout))
        readers = Readers(
            files,
            range(len(files)),
            skip={},
            settings=settings,
            bad_lines=self._new_bad_lines(),
        )
        try:
            for block in readers:
                store.append_block(block)
        finally:
            readers.close()
        rows, order = store.finish()
        return _Loaded(files, settings.layout, rows, order)

    def _require_files(self, settings: DatasetSettings, files: list[str]) -> None:
        if files or not self._may_be_none:
            require_files(files, settings)

    def _require(self, function: str) -> _Loaded:
        if self._loaded is None:
            remedy = "nothing is in memory: call load_into_memory() first"
            raise NotLoadedError(function=function, remedy=remedy)
        return self._loaded

    def _note_shuffle(self, loaded: _Loaded, kind: str) -> int:
        number = self._num_shuffles
        self._num_shuffles += 1
        loaded.shuffles.append([kind, number])
        return number

    @staticmethod
    def _summed(size: int, fleet: Fleet | None) -> int:
        return size if fleet is None else int(fleet.util.all_reduce(size))


class _Preload:
    """A thread that reads files for later."""

    def __init__(
        self, dataset: InMemoryDataset, settings: DatasetSettings, files: list[str]
    ) -> None:
        self._result: _Loaded | BaseException | None = None
        self._work: Callable[[], _Loaded] = lambda: dataset._read(settings, files)  # noqa: SLF001 - its dataset
        self._thread = threading.Thread(
            target=self._run, name="paramfleet-preload", daemon=True
        )
        self._thread.start()

    def wait(self) -> _Loaded:
        """Return what was read.

        Raises:
            FleetError: what went wrong.
        """
        self._thread.join()
        assert self._result is not None, "the thread has ended"
        if isinstance(self._result, BaseException):
            raise self._result
        return self._result

    @property
    def is_whole(self) -> bool:
        """Whether all was read."""
        return isinstance(self._result, _Loaded)

    def _run(self) -> None:
        try:
            self._result = self._work()
        except BaseException as error:  # noqa: BLE001 - the end of a thread: wait() raises it
            self._result = error
