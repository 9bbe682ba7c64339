"""A manifest names the parameters of its dense tables, or is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from paramfleet_shared.checkpoint.manifest import (
    Manifest,
    ManifestError,
    SavedTable,
    read_manifest,
    write_manifest,
)
from paramfleet_shared.checkpoint.saved_parameters import SavedParameter
from paramfleet_shared.tables.spec import TableSpec

TABLES = tuple(
    SavedTable(spec=spec, version=3)
    for spec in (
        TableSpec(name="dense_0", kind="dense", size=7),
        TableSpec(name="dense_2", kind="dense", size=4),
        TableSpec(name="rows", kind="sparse", dim=2),
    )
)
PARAMETERS = {
    "dense_0": (SavedParameter("a.weight", (2, 3)), SavedParameter("scale", ())),
    "dense_2": (SavedParameter("none", (0, 3)), SavedParameter("b.bias", (4,))),
}


def written(folder: Path, **parameters: Any) -> dict[str, Any]:
    write_manifest(folder, Manifest(tables=TABLES, files=(), parameters=parameters))
    document: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
    return document


def test_the_parameters_of_dense_tables_come_back_in_their_order(tmp_path: Path) -> None:
    written(tmp_path, **PARAMETERS)

    assert read_manifest(tmp_path).parameters == PARAMETERS


def test_a_table_may_say_nothing_of_its_parameters(tmp_path: Path) -> None:
    document = written(tmp_path, dense_2=PARAMETERS["dense_2"])
    assert list(document["parameters"]) == ["dense_2"]
    assert read_manifest(tmp_path).parameters == {"dense_2": PARAMETERS["dense_2"]}

    document = written(tmp_path)
    assert "parameters" not in document  # as in a manifest of a former version
    assert read_manifest(tmp_path).parameters == {}


FIRST, SECOND = (each.to_wire() for each in PARAMETERS["dense_0"])


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        [],
        "dense_0",
        {"dense_0": None},
        {"dense_0": {}},
        {"dense_0": "ab"},
        {"dense_0": [None, SECOND]},
        {"dense_0": ["ab"]},
        {"dense_0": [["a.weight", [7]]]},
        {"dense_0": [{"name": "a"}]},
        {"dense_0": [{"shape": [7]}]},
        {"dense_0": [{"name": "", "shape": [7]}]},
        {"dense_0": [{"name": 3, "shape": [7]}]},
        {"dense_0": [{"name": ["a"], "shape": [7]}]},
        {"dense_0": [{"name": "a", "shape": 7}]},
        {"dense_0": [{"name": "a", "shape": "7"}]},
        {"dense_0": [{"name": "a", "shape": {"7": 1}}]},
        {"dense_0": [{"name": "a", "shape": [7.0]}]},
        {"dense_0": [{"name": "a", "shape": [True, 7]}]},
        {"dense_0": [{"name": "a", "shape": [-1, -7]}]},
        {"dense_0": [{"name": "a", "shape": [2**54, 0]}, FIRST, SECOND]},
        {"dense_0": [{"name": "a", "shape": [2**53] * 64}]},
        {"dense_0": [{"name": "a", "shape": [1] * 64 + [7]}]},
        {"dense_0": []},
        {"dense_0": [FIRST]},
        {"dense_0": [FIRST, SECOND, SECOND | {"name": "more"}]},
        {"dense_0": [FIRST, SECOND | {"name": "a.weight"}]},
        {"dense_0": [FIRST, SECOND], "dense_2": [{"name": "scale", "shape": [4]}]},
        {"dense_1": [FIRST, SECOND]},
        {"rows": []},
    ],
)
def test_parameters_that_break_a_rule_are_refused_by_the_manifest_s_path(
    tmp_path: Path, wrong: Any
) -> None:
    document = written(tmp_path)
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps(document | {"parameters": wrong}))

    with pytest.raises(ManifestError) as caught:
        read_manifest(tmp_path)

    assert caught.value.path == str(path)
    assert len(str(caught.value)) < 2000


def test_numbers_of_a_manifest_can_not_make_its_reading_slow(tmp_path: Path) -> None:
    many = [{"name": str(n), "shape": [2**53] * 64} for n in range(2000)]
    document = written(tmp_path)
    (tmp_path / "manifest.json").write_text(
        json.dumps(document | {"parameters": {"dense_0": many}})
    )

    with pytest.raises(ManifestError, match="a whole number of 3403 bits"):
        read_manifest(tmp_path)
