"""From files to batches: the reader's samples, stacked, and shared among the workers."""

import itertools
import logging
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

import paramfleet as fleet
from paramfleet.data.batch import Batch as SlotBatch
from paramfleet.data.batch import SlotValues
from paramfleet.data.memory_dataset import InMemoryDataset
from paramfleet.data.parsing.slots import Slot
from paramfleet.data.queue_dataset import QueueDataset
from paramfleet.data.reading.files import list_folder, located, split_files
from paramfleet.runner.config.configuration import Config
from paramfleet.runner.config.errors import ConfigError, ModelFolderError
from paramfleet.runner.folders import load_reader
from paramfleet.runner.models.layers import NO_ID
from paramfleet.runner.models.model import Model
from paramfleet_shared.errors import ContractError
from paramfleet_shared.values.texts import shown

__all__ = [
    "Batch",
    "SampleError",
    "dataset_settings",
    "fields_of",
    "list_files",
    "open_batches",
    "stack",
    "test_share",
    "train_batches",
    "train_share",
]

log = logging.getLogger(__name__)

T = TypeVar("T")

Batch = tuple[torch.Tensor, ...]
"""A tensor [B, width] for each field of a sample."""

_cut: set[str] = set()
"""Slots of which the log says that values are cut: once a process."""

_CUT = "leave out the slot's width: then all values are there"


class SlotError(ContractError):
    """A slot of a line has a value that the runner can't keep."""

    code = "contract.slot"
    slot: str
    rule: str
    sentence = "slot {slot}: {rule}"


class SampleError(ContractError):
    """Samples of a reader don't fit together."""

    code = "contract.sample"
    field: int
    rule: str
    sentence = "the reader's samples, field {field}: {rule}"


def list_files(config: Config[Any], key: str) -> list[str]:
    """Return the files of ``runner.<key>``, by name: those of a folder, or the one.

    Raises:
        ConfigError: if the key is empty, or there is no file.
        CannotReadFileError: if a remote folder can't be listed.
    """
    name = getattr(config.runner, key)
    where, full = str(config.path), f"runner.{key}"
    if not name:
        raise ConfigError(where=where, key=full, value="", rule="must be given")
    address = located(name, config.runner)
    if "://" in address:
        files = list_folder(address, config.runner)
        if not files:
            rule = f"the folder {address} has no files"
            raise ConfigError(where=where, key=full, value=shown(name), rule=rule)
        return files
    path = config.path_of(name)
    if path.is_file():
        return [str(path)]
    if not path.is_dir():
        rule = f"there is no file or folder {path}"
        raise ConfigError(where=where, key=full, value=shown(name), rule=rule)
    shown_names = sorted(p for p in path.iterdir() if p.name[0] != ".")
    files = [str(p) for p in shown_names if p.is_file()]
    if files and (folders := [p.name for p in shown_names if p.is_dir()]):
        facts = {"folders": folders, "reason": f"{full} has the files of one folder"}
        log.warning("worker.folders_not_read", extra=facts)
    if not files:
        rule = f"the folder {path} has no files"
        raise ConfigError(where=where, key=full, value=shown(name), rule=rule)
    return files


def open_batches(model: Model[Any], files: Sequence[str], *, test: bool) -> Iterable[Batch]:
    """Return the batches of some files; each iteration reads them anew.

    Args:
        model: Its configuration says which reader, and the size of a batch.
        files: What to read.
        test: Whether they are for scoring.

    Raises:
        ModelFolderError: if the reader can't be found, or the model has no slots for it.
    """
    config, runner = model.config, model.config.runner
    kind = (runner.infer_reader_type if test else None) or runner.reader_type
    size = (runner.infer_batch_size if test else 0) or runner.train_batch_size
    reference = (runner.infer_reader_path if test else "") or runner.train_reader_path
    names = list(files)
    if kind in {"QueueDataset", "InmemoryDataset", "InMemoryDataset"}:
        threads = (runner.infer_thread_num if test else 0) or runner.thread_num
        if kind != "QueueDataset" and not test:
            return _Shuffled(model, names, size=size, threads=threads)
        return _Slots(model, names, QueueDataset(), size=size, threads=threads)
    reader = load_reader(config, reference)
    config = _for_reader(config, test=test)
    if kind == "DataLoader" and hasattr(reader, "batches"):
        rule = "its reader makes whole batches: reader_type must be RecDataset"
        raise ModelFolderError(path=str(config.modules / reference), rule=rule)
    if kind == "DataLoader":
        samples = _FilesOfProcess(reader, names, config)
        return torch.utils.data.DataLoader(
            samples,
            batch_size=size,
            num_workers=runner.num_workers,
            collate_fn=partial(stack, pads_ids=model.pads_ids),
        )
    return _Batches(reader, names, config, size, model.pads_ids)


def _for_reader(config: Config[Any], *, test: bool) -> Config[Any]:
    """Return the configuration for a reader: it shares files only if the runner doesn't.

    PaddleRec's readers share them among the workers where ``use_fleet`` is true.
    """
    runner = config.runner
    if not (test or runner.split_file_list or runner.split_batches):
        return config
    return replace(config, runner=replace(runner, use_fleet=False))


def train_share(config: Config[Any], files: list[str]) -> list[str]:
    """Return this worker's files.

    Raises:
        TooFewFilesError: if there are fewer files than workers to split them among.
    """
    if not config.runner.split_file_list:
        return files
    return split_files(files, fleet.worker_index(), fleet.worker_num())


def train_batches(config: Config[Any], batches: Iterable[Batch]) -> Iterator[Batch]:
    """Yield this worker's share of the training batches; a part of one may have no rows."""
    rank, workers = fleet.worker_index(), fleet.worker_num()
    if not config.runner.split_batches:
        yield from batches
    elif config.runner.shares_steps:
        for batch in batches:
            yield tuple(torch.tensor_split(field, workers)[rank] for field in batch)
    else:
        yield from itertools.islice(batches, rank, None, workers)


def test_share(batches: Iterable[T]) -> Iterator[T]:
    """Yield the batches that this worker scores: of n workers, every n-th."""
    return itertools.islice(batches, fleet.worker_index(), None, fleet.worker_num())


def stack(samples: Sequence[Sequence[Any]], *, pads_ids: bool = False) -> Batch:
    """Return samples as a batch: whole numbers int64, others float32, each [B, width].

    Args:
        samples: Those of a reader.
        pads_ids: Whether a field of ids, [ids] or [slots, ids], may have another number of ids
            in each sample: it is padded with ``NO_ID``, and [B, slots * most].

    Raises:
        SampleError: if samples have different fields, or fields different widths.
    """
    widths = {len(sample) for sample in samples}
    if len(widths) > 1:
        rule = f"samples have {sorted(widths)} fields; each must have the same"
        raise SampleError(field=min(widths), rule=rule)
    return tuple(
        _field(index, values, pads_ids=pads_ids)
        for index, values in enumerate(zip(*samples, strict=True))
    )


def _field(index: int, values: Sequence[Any], *, pads_ids: bool) -> torch.Tensor:
    try:
        array = np.array(values)
    except ValueError as error:
        padded = _padded_ids(values) if pads_ids else None
        if padded is not None:
            return torch.from_numpy(padded)
        rule = "its width differs from sample to sample; pad it"
        raise SampleError(field=index, rule=rule) from error
    if array.dtype.kind in "biu":
        array = array.astype(np.int64)
    elif array.dtype.kind == "f":
        array = array.astype(np.float32)
    else:
        rule = f"must be numbers, not {array.dtype}"
        raise SampleError(field=index, rule=rule)
    return torch.from_numpy(array.reshape(len(values), -1))


def _padded_ids(values: Sequence[Any]) -> NDArray[np.int64] | None:
    """Return ids of samples, [ids] or [slots, ids] each, as int64 [B, slots * most].

    None if they aren't whole numbers, or the slots differ in number.
    """
    samples = [np.asarray(value) for value in values]
    if any(each.size and each.dtype.kind not in "iu" for each in samples):
        return None
    if all(each.ndim == 1 for each in samples):
        samples = [each[None, :] for each in samples]
    samples = [each[:, None] if each.ndim == 1 else each for each in samples]
    if any(each.ndim != 2 for each in samples) or len({len(each) for each in samples}) > 1:
        return None
    most = max(each.shape[1] for each in samples)
    padded = np.full((len(samples), len(samples[0]), most), NO_ID, np.int64)
    for sample, ids in zip(padded, samples, strict=True):
        sample[:, : ids.shape[1]] = ids
    return padded.reshape(len(samples), -1)


def pipe_command(config: Config[Any]) -> str:
    """Return the command for the shell, run in the model's folder by this Python.

    A Python script gets the YAML and a folder of helpers as arguments, as from PaddleRec. Some
    of PaddleRec's files name it from the repository's folder: it is looked for by its own name
    in the model's folder, too.
    """
    command = config.runner.pipe_command.strip()
    if command == "cat":
        return command
    scripts = [word for word in command.split() if word.endswith(".py")]
    for script in scripts:
        command = command.replace(script, _script(script, config.modules))
    if scripts:
        helpers = Path(__file__).parent / "pipe_helpers"
        command += f" {shlex.quote(str(config.path))} {shlex.quote(str(helpers))}"
    path = shlex.quote(str(Path(sys.executable).parent))
    folder = shlex.quote(str(config.modules))
    return f"cd {folder} && export PATH={path}:$PATH && {command}"


def _script(name: str, folder: Path) -> str:
    """Return how a script that a command names is found from a folder."""
    if (folder / name).is_file():
        return name
    if Path(name).is_file():
        return str(Path(name).absolute())
    return Path(name).name if (folder / Path(name).name).is_file() else name


@dataclass(frozen=True)
class _Batches:
    """Batches of what a reader's class yields; one that has ``batches`` makes them itself."""

    reader: type[Any]
    files: list[str]
    config: Config[Any]
    size: int
    pads_ids: bool

    def __iter__(self) -> Iterator[Batch]:
        if hasattr(self.reader, "batches"):
            yield from self._whole.batches(self.size)
            return
        samples = iter(self.reader(self.files, self.config))
        while chosen := list(itertools.islice(samples, self.size)):
            yield stack(chosen, pads_ids=self.pads_ids)

    @cached_property
    def _whole(self) -> Any:
        """The reader that makes batches itself: one for all epochs."""
        return self.reader(self.files, self.config)


def dataset_settings(model: Model[Any], **settings: Any) -> dict[str, Any]:
    """Return the settings of a dataset of text by slots; those given go before."""
    config, runner = model.config, model.config.runner
    shared = {
        "use_var": model.create_slots(),
        "pipe_command": pipe_command(config),
        "fs_name": runner.fs_name,
        "fs_ugi": runner.fs_ugi,
        "on_bad_line": runner.on_bad_line,
        "quarantine_dir": config.path_of(runner.quarantine_dir),
        "pipe_timeout_s": runner.pipe_timeout_s,
        "seed": runner.seed,
    }
    return shared | settings


def fields_of(batch: SlotBatch, slots: Sequence[Slot]) -> Batch:
    """Return a batch of text by slots as the model takes it, a tensor [B, width] a slot."""
    return tuple(_values_of(slot, batch[slot.name]) for slot in slots)


def _values_of(slot: Slot, values: SlotValues) -> torch.Tensor:
    """Return a slot of a batch, [B, width].

    Raises:
        SlotError: if an id of the data is the one that stands for none.
    """
    if slot.dense:
        return values.dense()
    counts = values.counts
    most = max(1, int(counts.max())) if len(counts) else 1
    if slot.width is not None:
        if most > slot.width and slot.name not in _cut:
            _cut.add(slot.name)
            facts = {"slot": slot.name, "width": slot.width, "values": most, "remedy": _CUT}
            log.warning("worker.slot_values_cut", extra=facts)
        return values.padded(slot.width)
    if len(values.values) == len(counts) * most:  # no example has fewer
        return values.values.view(-1, most)
    if slot.dtype == "float32":
        return values.padded(most)
    if (values.values == NO_ID).any():
        raise SlotError(slot=slot.name, rule=f"{NO_ID} is no id: it stands for none")
    return values.padded(most, fill=NO_ID)


class _Slots:
    """Batches of MultiSlot text, a tensor a slot.

    Args:
        model: Says the slots.
        files: Paths.
        dataset: Reads them.
        size: Samples of a batch.
        threads: Files read at a time.
    """

    def __init__(
        self,
        model: Model[Any],
        files: Sequence[str],
        dataset: QueueDataset | InMemoryDataset,
        *,
        size: int,
        threads: int,
    ) -> None:
        self._slots = model.create_slots()
        self._dataset = dataset
        dataset.init(**dataset_settings(model, batch_size=size, thread_num=threads))
        dataset.set_filelist(files)

    def __iter__(self) -> Iterator[Batch]:
        for batch in self._dataset:
            yield fields_of(batch, self._slots)

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the files, or in memory.

        Raises:
            NotLoadedError: if the samples belong in memory and aren't there.
        """
        return self._dataset.state_dict()

    def load_state_dict(self, state: Mapping[str, Any], *, inside: bool) -> None:
        """Let the next iteration go on where a state was taken.

        Args:
            state: It.
            inside: Whether it was taken inside an epoch.

        Raises:
            OtherDataError: if it is one of other data.
        """
        del inside
        self._dataset.load_state_dict(state)

    def reshard(
        self, states: Sequence[Mapping[str, Any]], rank: int, size: int
    ) -> dict[str, Any] | None:
        """Return the position after workers of another number; None if there is none.

        Raises:
            OtherDataError: if a state is one of other data.
        """
        if isinstance(self._dataset, InMemoryDataset):
            return None
        return self._dataset.reshard(states, rank, size)


class _Shuffled(_Slots):
    """The same from memory: read once, and in another order in each epoch.

    Args:
        model: Says the slots.
        files: Paths.
        size: Samples of a batch.
        threads: Files read at a time.
    """

    def __init__(
        self, model: Model[Any], files: Sequence[str], *, size: int, threads: int
    ) -> None:
        self._memory = InMemoryDataset()
        super().__init__(model, files, self._memory, size=size, threads=threads)
        self._among_workers = not model.config.runner.split_batches
        self._is_loaded = False
        self._shuffles_before = 0
        """Of the epochs before a loaded position, and of its own."""

    @override
    def __iter__(self) -> Iterator[Batch]:
        if not self._is_loaded:
            self._memory.load_into_memory()
            if self._among_workers:
                self._memory.global_shuffle(fleet)
        self._is_loaded = True
        for _ in range(self._shuffles_before or 1):
            self._memory.local_shuffle()
        self._shuffles_before = 0
        yield from super().__iter__()

    @override
    def load_state_dict(self, state: Mapping[str, Any], *, inside: bool) -> None:
        """Let the next iteration go on where a state was taken.

        The data is loaded and shuffled again as often as it was, for the order of each epoch
        is made of the one before.
        """
        shuffles = list(state["shuffles"])
        if not inside:  # the epoch's own is still to come
            following = shuffles[-1][1] + 1 if shuffles else 0
            shuffles.append(["local", following])
        self._memory.load_state_dict({**state, "shuffles": shuffles})
        self._shuffles_before = sum(kind == "local" for kind, _ in shuffles)
        self._is_loaded = False


class _FilesOfProcess(torch.utils.data.IterableDataset[Any]):
    """The samples of those files that belong to this process of a DataLoader."""

    def __init__(self, reader: type[Any], files: list[str], config: Config[Any]) -> None:
        self._reader = reader
        self._files = files
        self._config = config

    @override
    def __iter__(self) -> Iterator[Any]:
        process = torch.utils.data.get_worker_info()
        step = slice(None) if process is None else slice(process.id, None, process.num_workers)
        files = self._files[step]
        return iter(self._reader(files, self._config)) if files else iter(())
