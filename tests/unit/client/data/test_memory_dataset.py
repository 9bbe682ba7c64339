"""Files in memory: loaded, shuffled, yielded, and found again."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

from paramfleet.api.all_to_all import Exchange
from paramfleet.api.collectives import Util
from paramfleet.data.batch import Batch
from paramfleet.data.memory_dataset import InMemoryDataset, NotLoadedError
from paramfleet.data.parsing.bad_lines import BadLineError
from paramfleet.data.parsing.rows import Rows
from paramfleet.data.parsing.slots import Layout, Slot
from paramfleet.data.progress import OtherDataError
from paramfleet.data.reading.files import CannotReadFileError, EmptyFileListError
from paramfleet.data.shuffling import _from_message, _to_message
from paramfleet.session.session import Session
from paramfleet_shared.net.wire.message import MalformedMessageError, Message
from paramfleet_shared.settings.config import SettingError

SLOTS = [Slot("label", dense=True), Slot("price", "float32"), Slot("words")]

Made = Callable[..., InMemoryDataset]


def line_of(number: int) -> str:
    words = " ".join(str(number * 10 + each) for each in range(number % 4))
    return f"1 {number} 1 {number / 2} {number % 4} {words}".rstrip()


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Five files with samples 0 to 249."""
    for part in range(5):
        lines = [line_of(number) + "\n" for number in range(part * 50, part * 50 + 50)]
        (tmp_path / f"part-{part}").write_text("".join(lines))
    return [str(tmp_path / f"part-{part}") for part in range(5)]


@pytest.fixture
def made(files: list[str]) -> Made:
    def make(**given: Any) -> InMemoryDataset:
        dataset = InMemoryDataset()
        dataset.init(**{"use_var": SLOTS, "batch_size": 7, **given})
        dataset.set_filelist(files)
        return dataset

    return make


class Alone:
    """What ``import paramfleet as fleet`` is in a process without a job."""

    def __init__(self) -> None:
        session = Session()
        session.init()
        self.util = Util(
            gather=session.gather,
            barrier=session.worker_barrier,
            rank=session.worker_index,
            size=session.worker_num,
            exchange=Exchange(session).run,
        )


@pytest.fixture
def fleet() -> Alone:
    return Alone()


@pytest.fixture
def loaded(made: Made) -> Made:
    def make(**given: Any) -> InMemoryDataset:
        dataset = made(**given)
        dataset.load_into_memory()
        return dataset

    return make


def numbers_of(batches: Any) -> list[int]:
    return [number for batch in batches for number in batch["label"].values.tolist()]


def samples_of(batches: Any) -> dict[int, tuple[float, list[int]]]:
    """Return price and words of each label."""
    found = {}
    for batch in batches:
        words, offsets = batch["words"].values.tolist(), batch["words"].offsets.tolist()
        for at, label in enumerate(batch["label"].values.tolist()):
            price = batch["price"].values[at].item()
            found[label] = price, words[offsets[at] : offsets[at + 1]]
    return found


WHOLE = {n: (n / 2, [n * 10 + each for each in range(n % 4)]) for n in range(250)}


@pytest.mark.parametrize("thread_num", [1, 3])
@pytest.mark.parametrize("command", ["cat", "cat | cat"])
def test_samples_come_in_the_order_of_the_files(
    loaded: Made, thread_num: int, command: str
) -> None:
    dataset = loaded(thread_num=thread_num, pipe_command=command)

    assert numbers_of(dataset) == list(range(250))
    assert samples_of(dataset) == WHOLE
    assert dataset.epoch == 2
    assert dataset.get_memory_data_size() == 250
    assert dataset.get_shuffle_data_size() == 0


def test_memory_is_arrays_and_is_released(loaded: Made) -> None:
    dataset = loaded()
    num_words = sum(number % 4 for number in range(250))

    assert dataset.memory_bytes == 250 * (8 + 4 + 3 * 4 + 3 * 8) + 8 * num_words + 16
    dataset.release_memory()

    assert dataset.memory_bytes == dataset.get_memory_data_size() == 0
    with pytest.raises(NotLoadedError, match="load_into_memory"):
        next(iter(dataset))


@pytest.mark.parametrize("kind", ["local", "alone", "without", "load"])
def test_a_shuffle_keeps_every_sample(made: Made, fleet: Alone, kind: str) -> None:
    dataset = made()
    dataset.load_into_memory(is_shuffle=kind == "load")
    if kind == "local":
        dataset.local_shuffle()
    elif kind != "load":
        dataset.global_shuffle(fleet if kind == "alone" else None, thread_num=2)

    numbers = numbers_of(dataset)

    assert numbers != list(range(250))
    assert samples_of(dataset) == WHOLE
    assert dataset.get_shuffle_data_size(fleet) == dataset.get_memory_data_size(fleet) == 250


def test_shuffles_of_one_seed_are_the_same_and_each_is_another(loaded: Made) -> None:
    orders = []
    for seed in (1, 1, 2):
        dataset = loaded(seed=seed)
        dataset.local_shuffle()
        orders.append(numbers_of(dataset))
        dataset.load_into_memory(is_shuffle=True)
        orders.append(numbers_of(dataset))

    assert orders[0] == orders[2]
    assert orders[1] == orders[3]
    assert len({tuple(order) for order in orders}) == 4


def test_preloading_leaves_what_is_in_memory(loaded: Made, files: list[str]) -> None:
    dataset = loaded()
    dataset.set_filelist(files[:2])

    dataset.preload_into_memory(thread_num=2)
    before = numbers_of(dataset)
    with pytest.raises(NotLoadedError, match="wait_preload_done"):
        dataset.preload_into_memory()
    dataset.wait_preload_done()

    assert before == list(range(250))
    assert numbers_of(dataset) == list(range(100))
    with pytest.raises(NotLoadedError, match="preload_into_memory"):
        dataset.wait_preload_done()


def test_a_preload_that_fails_leaves_what_is_in_memory(
    loaded: Made, tmp_path: Path, files: list[str]
) -> None:
    dataset = loaded()
    (tmp_path / "part-3").write_text("1 x\n")

    dataset.preload_into_memory()
    with pytest.raises(BadLineError, match="part-3, line 1"):
        dataset.wait_preload_done()

    assert numbers_of(dataset) == list(range(250))


def test_a_load_that_fails_leaves_nothing(made: Made, tmp_path: Path) -> None:
    dataset = made()
    with (tmp_path / "part-3").open("a") as file:
        file.write("1 x\n")

    with pytest.raises(BadLineError, match="part-3, line 51"):
        dataset.load_into_memory()

    assert dataset.get_memory_data_size() == 0
    dataset.update_settings(on_bad_line="skip")
    dataset.load_into_memory()
    assert dataset.get_memory_data_size() == 250
    assert dataset.bad_lines == {str(tmp_path / "part-3"): 2}


def test_files_must_be_there(tmp_path: Path) -> None:
    dataset = InMemoryDataset()
    dataset.init(use_var=SLOTS)

    with pytest.raises(EmptyFileListError):
        dataset.load_into_memory()
    (tmp_path / "part").touch()
    dataset.set_filelist([str(tmp_path / "part")])
    (tmp_path / "part").unlink()
    with pytest.raises(CannotReadFileError):
        dataset.preload_into_memory()


class Worker:
    """What ``import paramfleet as fleet`` is in one of several workers."""

    def __init__(self, rank: int, *, workers: int) -> None:
        self.util = Alone().util
        self.util._rank, self.util._size = lambda: rank, lambda: workers


@pytest.mark.parametrize("workers", [1, 3, 8])
def test_a_worker_has_its_share_of_the_files_though_it_may_be_none(
    made: Made, files: list[str], workers: int
) -> None:
    found, dataset = [], made()
    for rank in range(workers):
        dataset.set_share(files, Worker(rank, workers=workers))
        dataset.load_into_memory()
        share = numbers_of(dataset)
        dataset.preload_into_memory()
        dataset.wait_preload_done()
        assert numbers_of(dataset) == share
        found += share

    assert found == list(range(250))
    dataset.set_filelist(files[:1])
    dataset.load_into_memory()
    assert numbers_of(dataset) == list(range(50))


def test_an_empty_file_is_no_sample(made: Made, fleet: Alone, tmp_path: Path) -> None:
    (tmp_path / "none").touch()
    dataset = made()
    dataset.set_filelist([str(tmp_path / "none")])

    dataset.load_into_memory(is_shuffle=True)
    dataset.global_shuffle(fleet)

    assert list(dataset) == []


def test_slots_are_shuffled_against_the_others(loaded: Made) -> None:
    dataset = loaded()

    dataset.slots_shuffle(["words"])
    first = samples_of(dataset)
    dataset.slots_shuffle(["label", "price"])
    second = samples_of(dataset)
    dataset.slots_shuffle([])

    assert {label: price for label, (price, _) in first.items()} == {
        label: price for label, (price, _) in WHOLE.items()
    }
    assert sorted(words for _, words in first.values()) == sorted(w for _, w in WHOLE.values())
    assert [first[n] for n in range(250)] != [WHOLE[n] for n in range(250)]
    assert all(price == label / 2 for label, (price, _) in second.items())
    assert [second[n] for n in range(250)] != [WHOLE[n] for n in range(250)]
    assert samples_of(dataset) == WHOLE
    with pytest.raises(SettingError, match="word"):
        dataset.slots_shuffle(["word"])


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_a_data_loader_brings_every_batch_in_order(loaded: Made, num_workers: int) -> None:
    dataset = loaded()

    loader = DataLoader(dataset, batch_size=None, num_workers=num_workers)

    assert numbers_of(loader) == list(range(250))


@pytest.mark.parametrize("used", [0, 1, 20, 36])
def test_a_loaded_state_goes_on_at_the_exact_sample(
    made: Made, fleet: Alone, used: int
) -> None:
    first = made()
    first.load_into_memory(is_shuffle=True)
    first.load_into_memory()
    first.local_shuffle()
    first.global_shuffle(fleet)
    whole = numbers_of(first)
    batches = iter(first)
    before = numbers_of([next(batches) for _ in range(used)])
    state = json.loads(json.dumps(first.state_dict()))

    second = made(thread_num=3, batch_size=5)
    second.load_state_dict(state)
    second.load_into_memory()
    second.local_shuffle()
    second.global_shuffle(fleet)

    assert before + numbers_of(second) == whole
    assert numbers_of(second) == whole
    assert second.epoch == 3


def test_a_data_loader_that_read_ahead_goes_on_behind_what_was_used(loaded: Made) -> None:
    first = loaded()
    loader = iter(DataLoader(first, batch_size=None, num_workers=2))
    before = []
    for _ in range(11):
        batch = next(loader)
        before += numbers_of([batch])
        first.advance(batch)

    second = loaded()
    second.load_state_dict(first.state_dict())
    second.load_into_memory()

    assert before + numbers_of(second) == list(range(250))


def test_a_state_of_other_data_is_refused(loaded: Made, files: list[str]) -> None:
    first = loaded()
    first.local_shuffle()
    state = first.state_dict()

    other = loaded()
    with pytest.raises(OtherDataError, match="seed"):
        loaded(seed=3).load_state_dict(state)
    other.load_state_dict(state)
    other.load_into_memory()
    with pytest.raises(OtherDataError, match="shuffles"):
        next(iter(other))
    other.load_state_dict(state)
    other.set_filelist(files[:4])
    other.load_into_memory(is_shuffle=True)
    with pytest.raises(OtherDataError, match="files"):
        next(iter(other))


def rows(counts: list[list[int]], ids: list[int], floats: list[float]) -> Rows:
    return Rows.of(
        np.array(counts, np.int32),
        np.array(ids, np.int64),
        np.array(floats, np.float32),
        Layout(tuple(SLOTS)).is_float,
    )


def test_rows_travel_as_they_are() -> None:
    sent = rows([[1, 1, 2], [1, 0, 0]], [1, 10, 11, 2], [0.5])

    came = _from_message(_to_message(sent), Layout(tuple(SLOTS)))

    batch = Batch.of(Layout(tuple(SLOTS)), came, np.array([1, 0]), {})
    assert samples_of([Batch.of(Layout(tuple(SLOTS)), came, np.array([0]), {})]) == {
        1: (0.5, [10, 11])
    }
    assert batch["words"].offsets.tolist() == [0, 0, 2]


BAD: list[tuple[str, Any]] = [
    ("counts", np.ones((1, 2), np.int32)),
    ("counts", np.ones((1, 3), np.int64)),
    ("counts", np.array([[-1, 1, 3]], np.int32)),
    ("counts", np.array([[1, 2, 1]], np.int32)),
    ("ids", np.ones(5, np.int64)),
    ("floats", None),
]


@pytest.mark.parametrize(("name", "tensor"), BAD)
def test_a_message_that_is_no_rows_is_refused(name: str, tensor: Any) -> None:
    tensors = dict(_to_message(rows([[1, 1, 1]], [1, 10], [0.5])).tensors)
    tensors.pop(name)
    if tensor is not None:
        tensors[name] = tensor

    with pytest.raises(MalformedMessageError):
        _from_message(Message(tensors=tensors), Layout(tuple(SLOTS)))


def test_slots_that_change_do_not_change_what_is_in_memory(loaded: Made) -> None:
    dataset = loaded()

    dataset.update_settings(use_var=[Slot("other")], batch_size=100)

    assert samples_of(dataset) == WHOLE
    assert [batch.size for batch in dataset] == [100, 100, 50]
