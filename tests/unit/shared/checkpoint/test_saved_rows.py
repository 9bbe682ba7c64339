"""A script reads the rows of a checkpoint, whatever wrote it."""

from pathlib import Path

import numpy as np
import pytest
import torch

import paramfleet as fleet
from paramfleet.session.checkpoint.saving import Saving
from paramfleet.session.session import Session
from paramfleet_shared.checkpoint.manifest import (
    CheckpointDamagedError,
    FilePart,
    Manifest,
    ManifestError,
    SavedTable,
    write_manifest,
    write_part,
)
from paramfleet_shared.checkpoint.saved_rows import NoSuchTableError
from paramfleet_shared.tables.spec import OptimizerSpec, TableSpec

SPEC = TableSpec(name="words", kind="sparse", dim=2, optimizer=OptimizerSpec(rule="adagrad"))


def write(folder: Path, *parts: list[int]) -> None:
    files = []
    for number, ids in enumerate(parts):
        rows = np.array([[each, -each] for each in ids], np.float32).reshape(-1, 2)
        part = FilePart(ids=np.array(ids, np.int64), values=rows, states=np.ones_like(rows))
        files.append(write_part(folder, f"part{number}.safetensors", SPEC, part))
    table = SavedTable(spec=SPEC, version=1)
    write_manifest(folder, Manifest(tables=(table,), files=tuple(files)))


def test_rows_of_all_files_are_sorted_by_id(tmp_path: Path) -> None:
    write(tmp_path, [7, 1], [3], [])

    found = fleet.load_rows(tmp_path, "words")

    np.testing.assert_array_equal(found.ids, np.array([1, 3, 7], np.int64))
    np.testing.assert_array_equal(found.rows, np.array([[1, -1], [3, -3], [7, -7]], np.float32))


def test_what_a_model_trained_is_found_by_the_name_of_its_module(tmp_path: Path) -> None:
    session = Session()
    session.init()
    model = session.distributed_model(torch.nn.ModuleDict({"words": fleet.nn.Embedding(0, 3)}))
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    wrapped = session.distributed_optimizer(optimizer)
    session.init_worker()
    trained = model["words"](torch.tensor([5, 2, 5]))
    wrapped.minimize(trained.sum())
    Saving(session).save_persistables(tmp_path / "saved")
    now = model.eval()["words"](torch.tensor([2, 5])).detach().numpy()

    found = fleet.load_rows(tmp_path / "saved", "words")

    assert found.ids.tolist() == [2, 5]
    np.testing.assert_array_equal(found.rows, now)


def test_what_is_no_table_of_a_checkpoint_is_named(tmp_path: Path) -> None:
    write(tmp_path / "saved", [1])

    with pytest.raises(NoSuchTableError, match="did you mean 'words'"):
        fleet.load_rows(tmp_path / "saved", "word")
    with pytest.raises(ManifestError, match=r"manifest\.json"):
        fleet.load_rows(tmp_path, "words")


def test_an_id_that_two_files_have_is_damage_and_both_are_named(tmp_path: Path) -> None:
    write(tmp_path, [9, 1], [], [5, 4, 1])

    with pytest.raises(CheckpointDamagedError) as caught:
        fleet.load_rows(tmp_path, "words")

    assert caught.value.path == str(tmp_path / "part2.safetensors")
    assert "id 1 of table 'words' is in part0.safetensors, too" in str(caught.value)


def test_of_ids_that_are_in_one_file_each_nothing_is_said(tmp_path: Path) -> None:
    write(tmp_path, [-3, 1], [2**63 - 1, 0], [-(2**63)])

    found = fleet.load_rows(tmp_path, "words")

    assert found.ids.tolist() == [-(2**63), -3, 0, 1, 2**63 - 1]
