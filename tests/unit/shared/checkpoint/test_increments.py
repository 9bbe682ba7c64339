"""Manifests of increments, whatever is in them: rows that were saved, or an error by name."""

import json
import random
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paramfleet_shared.checkpoint.increments import Base, Increment
from paramfleet_shared.checkpoint.layers import Layers, read_layers
from paramfleet_shared.checkpoint.manifest import (
    MANIFEST,
    CheckpointDamagedError,
    FilePart,
    Manifest,
    ManifestError,
    SavedTable,
    read_manifest,
    read_removed,
    write_manifest,
    write_part,
    write_removed,
)
from paramfleet_shared.settings.config import read_environment
from paramfleet_shared.tables.spec import TableSpec

CASES = int(read_environment().get("CHECKPOINT_FUZZ_CASES", "300"))
ROWS = TableSpec(name="rows", kind="sparse", dim=2)
FLAT = TableSpec(name="flat", kind="dense", size=3)


def written(folder: Path, ids: list[int], *, base: Path | None = None) -> Path:
    """Write a checkpoint whose rows have their ids' numbers, of an increment 100 more."""
    own = np.array(ids, np.int64)
    more = 0 if base is None else 100
    values = np.repeat(own[:, None].astype(np.float32) + more, 2, axis=1)
    rows = FilePart(ids=own, values=values, states=np.empty((len(own), 0), np.float32))
    flat = FilePart(values=np.zeros(3, np.float32), states=np.empty((0, 3), np.float32))
    files = (
        write_part(folder, "rows.safetensors", ROWS, rows),
        write_part(folder, "flat.safetensors", FLAT, flat),
    )
    increment = None
    if base is not None:
        gone = write_removed(folder, "gone.safetensors", "rows", np.array([1], np.int64))
        found = Base(save=read_manifest(base).save, folder=base.name)
        increment = Increment(base=found, removed=(gone,))
    tables = (SavedTable(spec=ROWS, version=1), SavedTable(spec=FLAT, version=1))
    write_manifest(folder, Manifest(tables=tables, files=files, increment=increment))
    return folder


@pytest.fixture
def newest(tmp_path: Path) -> Path:
    whole = written(tmp_path / "a", [0, 1, 2, 3])
    return written(tmp_path / "c", [7], base=written(tmp_path / "b", [2, 9], base=whole))


def rows_of(layers: Layers) -> dict[int, float]:
    found: dict[int, float] = {}
    for file in layers.files("rows"):
        part = file.read()
        assert part.ids is not None
        found |= dict(zip(part.ids.tolist(), part.values[:, 0].tolist(), strict=True))
    return found


EXPECTED = {0: 0.0, 2: 102.0, 3: 3.0, 7: 107.0, 9: 109.0}


def read(folder: Path) -> dict[int, float]:
    return rows_of(read_layers(folder, read_manifest(folder)))


def test_files_of_all_layers_have_numbers(newest: Path) -> None:
    layers = read_layers(newest, read_manifest(newest))
    assert rows_of(layers) == EXPECTED
    tables = layers.tables_of_files()
    assert tables == ["rows", "rows", "rows", "flat"]
    found = [layers.file(number) for number in range(len(tables))]
    assert [file.folder.name for file in found if file is not None] == ["c", "b", "a", "c"]
    assert layers.file(4) is None


def test_a_version_that_is_not_that_of_increments_is_refused(newest: Path) -> None:
    for version in (1, 3, "2"):
        edit(newest, lambda document, version=version: document.update(version=version))
        with pytest.raises(ManifestError):
            read_manifest(newest)


def test_ids_that_were_removed_are_proved(newest: Path) -> None:
    increment = read_manifest(newest).increment
    assert increment is not None
    (newest / "gone.safetensors").write_bytes(b"x" * increment.removed[0].bytes)
    with pytest.raises(CheckpointDamagedError):
        read_removed(newest, increment.removed[0])


def edit(folder: Path, change: Any) -> None:
    path = folder / MANIFEST
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


ODD: list[Any] = [
    None, 0, -1, 1.5, 2**63, 2**200, "", "a", "b", "../b", "c/../b", "/etc", "." * 300, [], {},
    [[]], True, "0" * 32, "f" * 32, "rows", "flat", "gone.safetensors", {"save": "0" * 32},
]  # fmt: skip


def altered(value: Any, chance: random.Random, depth: int = 0) -> Any:
    """Return a document of which something is another value."""
    if depth and chance.random() < 0.25:
        return chance.choice(ODD)
    if isinstance(value, dict) and value:
        key = chance.choice(sorted(value))
        if chance.random() < 0.15:
            return {name: each for name, each in value.items() if name != key}
        return {**value, key: altered(value[key], chance, depth + 1)}
    if isinstance(value, list) and value:
        place = chance.randrange(len(value))
        if chance.random() < 0.2:
            return [*value, value[place]]
        return [*value[:place], altered(value[place], chance, depth + 1), *value[place + 1 :]]
    return chance.choice(ODD)


def test_odd_manifests_of_a_chain_give_other_rows_or_an_error_by_name(newest: Path) -> None:
    chance = random.Random(1)
    folders = [newest.parent / name for name in "abc"]
    texts = {folder: (folder / MANIFEST).read_text() for folder in folders}
    identities = {name: json.loads(texts[newest.parent / name])["save"] for name in "abc"}
    refused = 0
    tracemalloc.start()
    for _ in range(CASES):
        folder = chance.choice(folders)
        document = json.loads(texts[folder])
        if chance.random() < 0.2:  # another base: perhaps itself, or one that builds on it
            name = chance.choice("abcd")
            base = {"save": identities.get(name, "0" * 32), "folder": name}
            document |= {"version": 2, "increment": {"base": base, "removed": []}}
        else:
            document = altered(document, chance)
        (folder / MANIFEST).write_text(json.dumps(document))
        try:
            read(newest)
        except (ManifestError, CheckpointDamagedError):
            refused += 1
        (folder / MANIFEST).write_text(texts[folder])
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert refused > CASES / 4
    assert most < 128 << 20
    assert read(newest) == EXPECTED


def test_a_link_in_place_of_a_base_is_refused(newest: Path) -> None:
    away = newest.parent / "away"
    (newest.parent / "a").rename(away)
    (newest.parent / "a").symlink_to(away)
    with pytest.raises(ManifestError, match="is a link"):
        read(newest)
    latest = newest.parent / "latest"
    latest.symlink_to(newest.name)
    (newest.parent / "a").unlink()
    away.rename(newest.parent / "a")
    assert read(latest) == EXPECTED
