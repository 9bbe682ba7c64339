"""A checkpoint names its columns of state, and a table takes those that it has."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from paramfleet_shared.checkpoint.columns import ColumnsDiffer
from paramfleet_shared.checkpoint.manifest import (
    FilePart,
    Manifest,
    ManifestError,
    SavedTable,
    read_manifest,
    read_part,
    write_manifest,
    write_part,
)
from paramfleet_shared.tables.dense import DenseRange
from paramfleet_shared.tables.sparse import SparseShard
from paramfleet_shared.tables.spec import OptimizerSpec, TableSpec

FORMER = Path(__file__).parent / "former"
"""What the version before columns were named has written."""

ROWS = TableSpec(name="rows", kind="sparse", dim=2, optimizer=OptimizerSpec(rule="adam"))
FLAT = replace(ROWS, name="flat", kind="dense", dim=1, size=3)


def floats(*shape: int) -> NDArray[np.float32]:
    return 1 + np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def saved(folder: Path, spec: TableSpec, states: NDArray[np.float32], columns: Any) -> Manifest:
    """Write a table of three rows whose states have other columns, and read its manifest."""
    ids = np.arange(3) if spec.kind == "sparse" else None
    values = floats(3, 2) if spec.kind == "sparse" else floats(3)
    file = write_part(folder, "a", spec, FilePart(values=values, states=states, ids=ids))
    other = replace(file, columns=columns)
    write_manifest(folder, Manifest(tables=(SavedTable(spec=spec, version=1),), files=(other,)))
    return read_manifest(folder)


def test_a_manifest_names_the_columns_of_each_file(tmp_path: Path) -> None:
    for spec, width in ((ROWS, 2), (FLAT, 1)):
        states = floats(3, 4) if spec is ROWS else floats(2, 3)
        folder = tmp_path / spec.name
        ids = np.arange(3) if spec is ROWS else None
        part = FilePart(
            values=floats(3, 2) if spec is ROWS else floats(3), states=states, ids=ids
        )
        file = write_part(folder, "a", spec, part)
        tables = (SavedTable(spec=spec, version=1),)
        write_manifest(folder, Manifest(tables=tables, files=(file,)))

        document = json.loads((folder / "manifest.json").read_text())
        manifest = read_manifest(folder)

        assert document["files"][0]["columns"] == [["exp_avg", width], ["exp_avg_sq", width]]
        assert manifest.files == (file,)
        assert manifest.columns_that_differ() == []


def test_a_table_takes_its_columns_by_name_and_begins_those_anew_that_lack(
    tmp_path: Path,
) -> None:
    states = floats(3, 3)
    manifest = saved(tmp_path, ROWS, states, (("shows", 1), ("exp_avg_sq", 2)))

    part = read_part(tmp_path, manifest.files[0], ROWS)

    assert part.states[:, :2].tolist() == [[0.0, 0.0]] * 3
    np.testing.assert_array_equal(part.states[:, 2:], states[:, 1:])
    assert manifest.columns_that_differ() == [ColumnsDiffer("rows", ("exp_avg",), ("shows",))]


def test_columns_that_were_not_saved_begin_as_in_a_new_row(tmp_path: Path) -> None:
    adagrad = OptimizerSpec(rule="adagrad", initial_accumulator_value=0.5)
    spec = replace(ROWS, optimizer=adagrad)
    manifest = saved(tmp_path, spec, floats(3, 0), ())

    assert read_part(tmp_path, manifest.files[0], spec).states.tolist() == [[0.5, 0.5]] * 3
    assert manifest.columns_that_differ() == [ColumnsDiffer("rows", ("sum",), ())]


def test_a_dense_table_takes_its_columns_by_name(tmp_path: Path) -> None:
    states = floats(2, 3)
    manifest = saved(tmp_path, FLAT, states, (("exp_avg_sq", 1), ("shows", 1)))

    part = read_part(tmp_path, manifest.files[0], FLAT)

    assert part.states.tolist() == [[0.0] * 3, states[0].tolist()]
    assert manifest.columns_that_differ() == [ColumnsDiffer("flat", ("exp_avg",), ("shows",))]


def test_columns_in_another_order_are_the_same(tmp_path: Path) -> None:
    states = floats(3, 4)
    manifest = saved(tmp_path, ROWS, states, (("exp_avg_sq", 2), ("exp_avg", 2)))

    part = read_part(tmp_path, manifest.files[0], ROWS)

    np.testing.assert_array_equal(part.states, states[:, [2, 3, 0, 1]])
    assert manifest.columns_that_differ() == []


@pytest.mark.parametrize(
    ("columns", "rule"),
    [
        (
            (("exp_avg", 2), ("exp_avg_sq", 1)),
            "column 'exp_avg_sq' of table 'rows' has 1 numbers",
        ),
        ((("exp_avg", 2), ("exp_avg", 2)), "a column is named twice"),
        ((("exp_avg", 2), ("exp_avg_sq", -2)), "width = -2 is no whole number"),
        ((("exp_avg", 2), ("exp_avg_sq",)), "is malformed"),
        (7, "is malformed"),
    ],
)
def test_columns_that_a_table_cannot_take_are_refused_by_name(
    tmp_path: Path, columns: Any, rule: str
) -> None:
    with pytest.raises(ManifestError, match=rule):
        saved(tmp_path, ROWS, floats(3, 3), columns)


def expected(spec: TableSpec) -> tuple[Any, ...]:
    """Return what a table of the former checkpoint was trained to, here and now."""
    if spec.kind == "dense":
        dense = DenseRange(spec, 0, spec.size)
        for step in (1, 2):
            values = np.random.default_rng(step).standard_normal(spec.size)
            dense.push(values.astype(np.float32), lr=0.1, step=step)
        return None, dense.values, dense.states
    shard = SparseShard(spec, max_rows=9)
    for step in (1, 2):
        grads = np.random.default_rng(step).standard_normal((5, 3), np.float32)
        shard.push(np.array([4, -7, 2**40, 0, 11]), grads, lr=0.1, step=step, unique=True)
    return shard.export(0, 9)


def test_a_checkpoint_of_before_columns_were_named_is_read() -> None:
    manifest = read_manifest(FORMER)

    rules = {table.spec.name: table.spec.optimizer.rule for table in manifest.tables}
    assert rules == {
        "rows of adam": "adam",
        "rows of rowwise_adagrad": "rowwise_adagrad",
        "rows of sgd": "sgd",
        "dense": "adagrad",
    }
    assert "columns" not in (FORMER / "manifest.json").read_text()
    assert manifest.columns_that_differ() == []
    for table, file in zip(manifest.tables, manifest.files, strict=True):
        part = read_part(FORMER, file, table.spec)
        for got, wanted in zip(
            (part.ids, part.values, part.states), expected(table.spec), strict=True
        ):
            np.testing.assert_array_equal(got, wanted)
