"""An export is written in bounded memory, from what a checkpoint's files really have."""

import shutil
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from paramfleet.session.checkpoint.exports import reading, writing
from paramfleet.session.checkpoint.exports.writing import PickedByPservers, write_rows
from paramfleet_shared.checkpoint.manifest import (
    CheckpointDamagedError,
    FilePart,
    Manifest,
    SavedTable,
    write_part,
)
from paramfleet_shared.deltas.merging import folding
from paramfleet_shared.files.tensorfile import read_tensors
from paramfleet_shared.tables.rows.layout import RowLayout
from paramfleet_shared.tables.spec import OptimizerSpec, TableSpec

SPECS = tuple(
    TableSpec(name=name, kind="sparse", dim=8, optimizer=OptimizerSpec(rule="adagrad"))
    for name in ("words", "users")
)


def checkpoint(folder: Path, *, rows: int, files: int = 4, seed: int = 1) -> Manifest:
    """Write tables of random ids, in the order of their shards as pservers have it."""
    numbers = np.random.default_rng(seed)
    saved = []
    for spec in SPECS:
        ids = numbers.permutation(np.arange(-rows // 2, rows - rows // 2, dtype=np.int64))
        width = RowLayout.of(spec).states.pitch
        for number, some in enumerate(np.array_split(ids, files)):
            values = np.repeat(some[:, None], spec.dim, axis=1).astype(np.float32)
            states = np.ones((len(some), width), np.float32)
            part = FilePart(values=values, states=states, ids=some)
            saved.append(write_part(folder, f"{spec.name}.{number}.safetensors", spec, part))
    tables = tuple(SavedTable(spec=spec, version=1) for spec in SPECS)
    return Manifest(tables=tables, files=tuple(saved))


def exported(folder: Path, manifest: Manifest, target: Path) -> None:
    target.mkdir()
    write_rows(folder, manifest, target, {}, PickedByPservers(folder, manifest))


def test_rows_come_sorted_and_each_is_that_of_its_id(tmp_path: Path) -> None:
    manifest = checkpoint(tmp_path / "parts", rows=1000)
    target = tmp_path / "export"
    target.mkdir()

    tables, held = write_rows(
        tmp_path / "parts",
        manifest,
        target,
        {},
        PickedByPservers(tmp_path / "parts", manifest),
    )

    assert [(each.name, each.rows) for each in tables] == [("words", 1000), ("users", 1000)]
    assert held == []
    for each in tables:
        path = target / each.file.name
        found = read_tensors(path, num_bytes=each.file.bytes, sha256=each.file.sha256).tensors
        np.testing.assert_array_equal(found["ids"], np.arange(-500, 500))
        np.testing.assert_array_equal(found["rows"][:, 3], np.arange(-500, 500))


@pytest.mark.slow
def test_an_export_takes_a_part_of_a_table_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "SPOOL_BYTES", 1 << 20)
    monkeypatch.setattr(reading, "PIECE_BYTES", 1 << 18)
    monkeypatch.setattr(folding, "PIECE_BYTES", 1 << 18)
    monkeypatch.setattr(folding.put_rows, "__kwdefaults__", {"piece_bytes": 1 << 18})
    rows = 400_000
    manifest = checkpoint(tmp_path / "parts", rows=rows)

    tracemalloc.start()
    try:
        exported(tmp_path / "parts", manifest, tmp_path / "export")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    table_bytes = rows * 40
    assert peak < 0.6 * table_bytes, f"{peak / table_bytes:.2f} tables"


def test_an_id_of_two_files_is_damage(tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    manifest = checkpoint(folder, rows=100)
    first, *others = manifest.files
    copy = replace(first, name="again.safetensors")
    shutil.copy(folder / first.name, folder / copy.name)
    manifest = replace(manifest, files=(first, copy, *others))

    with pytest.raises(CheckpointDamagedError, match="25 ids of table 'words' are there twice"):
        exported(folder, manifest, tmp_path / "export")


@pytest.mark.parametrize("rows", [24, 26])
def test_rows_are_counted_and_not_taken_from_the_manifest(tmp_path: Path, rows: int) -> None:
    folder = tmp_path / "parts"
    manifest = checkpoint(folder, rows=100)
    first, *others = manifest.files
    manifest = replace(manifest, files=(replace(first, rows=rows), *others))

    with pytest.raises(CheckpointDamagedError, match=first.name):
        exported(folder, manifest, tmp_path / "export")


def test_numbers_that_training_does_not_make_are_damage(tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    manifest = checkpoint(folder, rows=100)
    first, *others = manifest.files
    spec, width = SPECS[0], RowLayout.of(SPECS[0]).states.pitch
    values = np.full((25, spec.dim), np.nan, np.float32)
    part = FilePart(values=values, states=np.ones((25, width), np.float32), ids=np.arange(25))
    manifest = replace(manifest, files=(write_part(folder, first.name, spec, part), *others))

    with pytest.raises(CheckpointDamagedError, match=first.name):
        exported(folder, manifest, tmp_path / "export")
