"""Files of rows, and the files that a document lists."""

from typing import Any

import numpy as np
import pytest

from paramfleet_shared.files.listed import ListedFile
from paramfleet_shared.files.row_files import (
    are_finite,
    are_sorted,
    checked_rows,
    row_file_name,
)

IDS, ROWS = np.array([-3, 0, 9]), np.ones((3, 2), np.float32)


def test_rows_as_they_must_be_pass() -> None:
    ids, rows = checked_rows({"ids": IDS, "rows": ROWS}, (3, 2), verify=True)

    assert ids is IDS
    assert rows is ROWS


@pytest.mark.parametrize(
    ("ids", "rows", "said"),
    [
        (IDS[:2], ROWS, "other shapes"),
        (IDS, ROWS[:, :1], "other shapes"),
        (IDS.astype(np.int32), ROWS, "int64"),
        (IDS, ROWS.astype(np.float64), "float32"),
        (IDS[::-1], ROWS, "sorted"),
        (np.array([1, 1, 2]), ROWS, "each once"),
        (IDS, np.full_like(ROWS, -np.inf), "infinities"),
    ],
)
def test_others_are_refused(ids: Any, rows: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        checked_rows({"ids": ids, "rows": rows}, (3, 2), verify=True)


def test_numbers_are_looked_at_where_that_is_asked_for() -> None:
    checked_rows({"ids": IDS[::-1], "rows": ROWS * np.float32(np.nan)}, (3, 2), verify=False)


def test_what_lies_between_two_pieces_is_looked_at() -> None:
    ids = np.arange((1 << 20) + 5)
    assert are_sorted(ids)
    assert are_sorted(ids[:0])
    ids[1 << 20] = ids[(1 << 20) - 1]
    assert not are_sorted(ids)

    values = np.zeros((1 << 20) + 5, np.float32)
    assert are_finite(values)
    values[-1] = np.nan
    assert not are_finite(values)


def test_each_table_has_a_file_of_its_own_name() -> None:
    taken = {"dense.safetensors"}
    names = [row_file_name(table, taken) for table in ("a/b", "a_b", "A_B", "\u00e9" * 300)]

    assert names[:3] == [
        "rows.a_b.safetensors",
        "rows.a_b.2.safetensors",
        "rows.A_B.3.safetensors",
    ]
    for name in names:
        assert ListedFile.from_wire({"name": name, "bytes": 1, "sha256": ""}).name == name


@pytest.mark.parametrize(
    "wire",
    [
        {"name": "../a", "bytes": 1, "sha256": ""},
        {"name": ".a", "bytes": 1, "sha256": ""},
        {"name": "a/b", "bytes": 1, "sha256": ""},
        {"name": "a" * 300, "bytes": 1, "sha256": ""},
        {"name": 5, "bytes": 1, "sha256": ""},
        {"name": "a", "bytes": -1, "sha256": ""},
        {"name": "a", "bytes": True, "sha256": ""},
    ],
)
def test_a_listed_file_is_one_of_the_folder(wire: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"file name|bytes"):
        ListedFile.from_wire(wire)
