"""Files of a checkpoint are written while the next rows are copied."""

import re
from pathlib import Path

import numpy as np
import pytest

from paramfleet_pserver.checkpoint.writing import AT_ONCE, FileWriter
from paramfleet_shared.checkpoint.manifest import CheckpointWriteError, FilePart
from paramfleet_shared.files.tensorfile import read_tensors
from paramfleet_shared.tables.spec import TableSpec

ROWS = 50_000
SPEC = TableSpec(name="t", kind="sparse", dim=4)


def part_in(memory: np.ndarray, number: int) -> FilePart:
    """Fill memory with rows that have a number, as a part."""
    memory[:] = number
    ids, values = memory[: 8 * ROWS], memory[8 * ROWS :]
    return FilePart(
        ids=ids.view(np.int64),
        values=values.view(np.float32).reshape(ROWS, 4),
        states=np.empty((ROWS, 0), np.float32),
    )


async def test_memory_is_used_again_only_when_its_file_is_written(tmp_path: Path) -> None:
    files, addresses = FileWriter(tmp_path), set[int]()

    for number in range(9):
        memory = await files.memory(24 * ROWS)
        addresses.add(memory.ctypes.data)
        await files.write(f"{number}.safetensors", SPEC, part_in(memory, number))
    written = await files.end()

    assert [file.name for file in written] == [f"{number}.safetensors" for number in range(9)]
    assert len(addresses) == AT_ONCE
    for number, file in enumerate(written):
        found = read_tensors(tmp_path / file.name, num_bytes=file.bytes, sha256=file.sha256)
        assert all((array.view(np.uint8) == number).all() for array in found.tensors.values())


async def test_memory_that_is_too_small_for_a_wider_table_is_replaced(tmp_path: Path) -> None:
    files = FileWriter(tmp_path)

    sizes = [len(await files.memory(num_bytes)) for num_bytes in (10, 1 << 20, 10)]
    await files.settle()

    assert sizes == [10, 1 << 20, 10]


async def test_a_file_of_other_memory_may_come_between(tmp_path: Path) -> None:
    files = FileWriter(tmp_path)
    spec = TableSpec(name="flat", kind="dense", size=3)
    flat = FilePart(values=np.arange(3, dtype=np.float32), states=np.empty((0, 3), np.float32))

    await files.write("flat.safetensors", spec, flat)
    await files.write("0.safetensors", SPEC, part_in(await files.memory(24 * ROWS), 0))
    written = await files.end()

    assert [file.rows for file in written] == [3, ROWS]


async def test_what_cannot_be_written_ends_the_save_and_leaves_nothing_running(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "a file"
    folder.touch()
    files = FileWriter(folder)

    async def save() -> None:
        for number in range(AT_ONCE + 1):
            memory = await files.memory(24 * ROWS)
            await files.write(f"{number}.safetensors", SPEC, part_in(memory, number))

    with pytest.raises(CheckpointWriteError):
        await save()
    await files.settle()

    with pytest.raises(CheckpointWriteError):
        await files.end()


async def test_a_folder_that_was_removed_is_not_made_again_by_a_late_file(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "deep" / "c"
    files = FileWriter(folder)
    await files.begin(re.compile("nothing"))
    folder.rmdir()

    await files.write("0.safetensors", SPEC, part_in(await files.memory(24 * ROWS), 0))
    with pytest.raises(CheckpointWriteError):
        await files.end()
    assert not folder.exists()
