"""The sample files that PaddleRec ships, through readers as its users write them."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paramfleet.data.memory_dataset import InMemoryDataset
from paramfleet.data.parsing.slots import Slot
from paramfleet.data.queue_dataset import QueueDataset

DNN_READER = """
import sys

NAMES = ["click", "dense_feature", *map(str, range(1, 27))]
for line in sys.stdin:
    values = {name: [] for name in NAMES}
    for word in line.split():
        name, value = word.rsplit(":", 1)
        values[name].append(value)
    print(" ".join(f"{len(each)} {' '.join(each)}" for each in values.values()))
"""

FEASIGN_READER = """
import sys

names = sys.argv[1].split(",")
for line in sys.stdin:
    head, *words = line.split()
    values = {name: [] for name in names}
    for word in words:
        value, name = word.rsplit(":", 1)
        values[name].append(value)
    said = [f"1 {head.split(':')[0]}"]
    print(" ".join(said + [" ".join([str(len(each)), *each]) for each in values.values()]))
"""

DATASETS = [QueueDataset, InMemoryDataset]


def made(kind: Callable[[], Any], file: Path, **settings: Any) -> Any:
    dataset = kind()
    dataset.init(**settings)
    dataset.set_filelist([str(file)])
    if kind is InMemoryDataset:
        dataset.load_into_memory()
    return dataset


def samples_of(batches: Any) -> list[dict[str, list[Any]]]:
    """Return every sample's values by slot."""
    found = []
    for batch in batches:
        slots = {name: (each.values, each.offsets.tolist()) for name, each in batch.items()}
        found += [
            {n: values[at[i] : at[i + 1]].tolist() for n, (values, at) in slots.items()}
            for i in range(batch.size)
        ]
    return found


@pytest.mark.parametrize("kind", DATASETS)
def test_the_dnn_sample_loads(kind: Any, data_dir: Path, tmp_path: Path) -> None:
    file = data_dir / "tiny" / "paddlerec_dnn_slot_80.txt"
    (tmp_path / "reader.py").write_text(DNN_READER)
    slots = [Slot("click", dense=True), Slot("dense_feature", "float32", dense=True, width=13)]
    slots += [Slot(str(number)) for number in range(1, 27)]

    batches = list(
        made(
            kind,
            file,
            use_var=slots,
            batch_size=32,
            pipe_command=f"{sys.executable} {tmp_path / 'reader.py'}",
        )
    )

    expected = []
    for line in file.read_text().splitlines():
        sample: dict[str, list[Any]] = {slot.name: [] for slot in slots}
        for word in line.split():
            name, value = word.rsplit(":", 1)
            is_float = name == "dense_feature"
            sample[name].append(float(np.float32(value)) if is_float else int(value))
        expected.append(sample)
    assert samples_of(batches) == expected
    assert [batch.size for batch in batches] == [32, 32, 16]
    assert batches[0]["dense_feature"].dense().shape == (32, 13)


@pytest.mark.parametrize("kind", DATASETS)
def test_the_sample_of_270_slots_loads(kind: Any, data_dir: Path, tmp_path: Path) -> None:
    file = data_dir / "tiny" / "paddlerec_feasign_slot_10.txt"
    lines = [line.split() for line in file.read_text().splitlines()]
    pairs = [[word.rsplit(":", 1) for word in words[1:]] for words in lines]
    names = sorted({name for line in pairs for _, name in line})
    (tmp_path / "reader.py").write_text(FEASIGN_READER)

    batches = list(
        made(
            kind,
            file,
            use_var=[Slot("label", dense=True), *map(Slot, names)],
            batch_size=4,
            pipe_command=f"{sys.executable} {tmp_path / 'reader.py'} {','.join(names)}",
        )
    )

    found = samples_of(batches)
    assert len(found) == len(lines) == 10
    for sample, words, line in zip(found, lines, pairs, strict=True):
        assert sample.pop("label") == [int(words[0].split(":")[0])]
        for name, ids in sample.items():
            given = np.array([int(word) for word, slot in line if slot == name], np.uint64)
            assert ids == given.view(np.int64).tolist()
    assert min(each for sample in found for ids in sample.values() for each in ids) < 0
