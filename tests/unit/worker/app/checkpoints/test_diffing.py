"""Two checkpoints are compared by table, whatever numbers of servers wrote them."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from paramfleet_shared.checkpoint.manifest import CheckpointDamagedError, ManifestError
from paramfleet_shared.tables.spec import InitializerSpec, OptimizerSpec
from paramfleet_worker.app.checkpoints import diffing, mapped
from paramfleet_worker.app.checkpoints.diffing import diff

Write = Callable[..., Path]


@pytest.fixture(params=[1 << 30, 8 * 24], ids=["at once", "in slices"], autouse=True)
def slice_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diffing, "_SLICE_BYTES", request.param)
    if request.param < 1 << 20:
        monkeypatch.setattr(diffing, "_VALUES", 3)
        monkeypatch.setattr(mapped, "PIECE_BYTES", 3 * 24)


@pytest.mark.parametrize("servers", [1, 2, 3])
def test_checkpoints_of_other_numbers_of_servers_and_steps_are_equal(
    write: Write, servers: int
) -> None:
    a, b = write("a"), write("b", servers=servers, steps=9)

    found = diff(a, b)

    assert found.equal
    assert found.steps == (7, 9)
    assert [table.to_line() for table in found.tables] == [
        "ads: equal, 40 rows",
        "dense_0: equal, 11 values",
    ]


def test_rows_of_one_only_are_counted(write: Write) -> None:
    found = diff(write("a", ids=range(5, 40)), write("b", ids=range(43), servers=3))

    ads, dense = found.tables
    assert not found.equal
    assert (ads.changes.only_in_a, ads.changes.only_in_b) == (0, 8)
    assert ads.to_line() == "ads: 8 rows only in B"
    assert (ads.rows_a, ads.rows_b) == (35, 43)
    assert dense.equal


def test_options_that_differ_are_named(write: Write) -> None:
    other = OptimizerSpec(rule="adagrad", eps=1e-3)
    b = write("b", optimizer=other, initializer=InitializerSpec(kind="constant", value=2.0))

    ads, dense = diff(write("a"), b).tables

    assert ads.options["optimizer.eps"][1] == 1e-3
    assert ads.options["initializer.kind"] == ["zeros", "constant"]
    assert not ads.changes.any
    assert list(dense.options) == ["optimizer.eps"]
    assert "initializer.kind is 'zeros' in A, 'constant' in B" in ads.to_line()


def renamed(folder: Path, old: str, new: str) -> None:
    path = folder / "manifest.json"
    path.write_text(path.read_text().replace(f'"{old}"', f'"{new}"'))


def test_a_table_of_one_only_is_named(write: Write) -> None:
    a, b = write("a"), write("b")
    renamed(b, "ads", "shops")

    ads, dense, shops = diff(a, b).tables

    assert (ads.missing_in, ads.rows_a, ads.rows_b) == ("B", 40, 0)
    assert shops.to_line() == "shops: A has no such sparse table"
    assert dense.equal


def test_buffers_that_differ_are_named(write: Write) -> None:
    a, b = write("a"), write("b")
    renamed(b, "float32", "float64")
    path = b / "manifest.json"
    document = json.loads(path.read_text())
    for table in document["tables"]:
        table["storage"] = "float32"
    path.write_text(json.dumps(document))

    found = diff(a, b)

    assert found.buffers == ("norm.mean",)
    assert not found.equal


def test_a_damaged_file_is_no_difference(write: Write) -> None:
    a, b = write("a"), write("b")
    next(b.glob("dense*")).write_bytes(b"")

    with pytest.raises(CheckpointDamagedError, match="dense_0"):
        diff(a, b)


def test_what_is_no_checkpoint_is_named(write: Write, tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="nothing"):
        diff(write("a"), tmp_path / "nothing")
