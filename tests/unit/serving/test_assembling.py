"""Answers of several pservers become one change."""

from typing import Any

import numpy as np
import pytest

from paramfleet_serving.jobs.assembling import (
    Assembly,
    DenseVectors,
    TablesDifferError,
    check_same_tables,
)
from paramfleet_shared.net.wire.message import MalformedMessageError, Message
from paramfleet_shared.tables.spec import TableSpec

ROWS = TableSpec(name="rows", kind="sparse", dim=2)
DENSE = TableSpec(name="dense_0", kind="dense", size=6, parameters=(("a", (2, 2)), ("b", (2,))))
FLAT = TableSpec(name="dense_1", kind="dense", size=3)
SPECS = {spec.name: spec for spec in (ROWS, DENSE, FLAT)}


def answer(rows: dict[int, float], removed: list[int], dense: list[Any] = ()) -> Message:  # type: ignore[assignment]
    tensors: dict[str, np.ndarray] = {
        "0.ids": np.array([*rows], np.int64),
        "0.rows": np.array([[each, each] for each in rows.values()], np.float32).reshape(-1, 2),
        "0.removed": np.array(removed, np.int64),
    }
    about = []
    for index, (table, mark, start, values) in enumerate(dense):
        about.append({"table": table, "mark": mark, "start": start})
        tensors[f"dense.{index}"] = np.array(values, np.float32)
    return Message(fields={"parts": [{"table": "rows"}], "dense": about}, tensors=tensors)


def assembly() -> Assembly:
    return Assembly(SPECS, DenseVectors([DENSE, FLAT]))


def state(assembled: Assembly) -> tuple[dict[int, float], list[int]]:
    change = assembled.change(1.0).tables["rows"]
    assert (change.rows[:, 0] == change.rows[:, 1]).all()
    rows = zip(change.ids.tolist(), change.rows[:, 0].tolist(), strict=True)
    return dict(rows), sorted(change.removed.tolist())


def test_the_last_that_was_said_of_an_id_holds() -> None:
    made = assembly()
    made.take(answer({1: 1.0, 2: 1.0, 3: 1.0}, [8, 9]))
    made.take(answer({2: 2.0, 8: 2.0}, [3]))
    made.take(answer({8: 3.0}, [2]))

    assert state(made) == ({1: 1.0, 8: 3.0}, [2, 3, 9])


def test_random_answers_make_what_a_dict_does() -> None:
    random = np.random.default_rng(5)
    for _ in range(50):
        made, rows, gone = assembly(), dict[int, float](), set[int]()
        for _ in range(int(random.integers(1, 5))):
            ids = random.permutation(12)[: random.integers(0, 12)].tolist()
            cut = int(random.integers(0, len(ids) + 1))
            new = {each: float(random.integers(100)) for each in ids[:cut]}
            made.take(answer(new, ids[cut:]))
            rows |= new
            gone = (gone | set(ids[cut:])) - new.keys()
            rows = {each: row for each, row in rows.items() if each not in gone}
        assert state(made) == (rows, sorted(gone))


def test_dense_parts_become_parameters_by_name() -> None:
    dense = DenseVectors([DENSE, FLAT])
    made = Assembly(SPECS, dense)
    assert made.take(answer({}, [], [("dense_0", 7, 0, [1, 2, 3])])) == ({"dense_0": 7}, {})
    made.take(answer({}, [], [("dense_0", 4, 3, [4, 5, 6]), ("dense_1", 1, 0, [7, 8, 9])]))

    found = made.change(1.0).dense

    assert {name: value.tolist() for name, value in found.items()} == {
        "a": [[1, 2], [3, 4]],
        "b": [5, 6],
        "dense_1": [7, 8, 9],
    }
    later = Assembly(SPECS, dense)
    later.take(answer({}, [], [("dense_0", 8, 0, [0])]))
    assert later.change(1.0).dense["a"].tolist() == [[0, 2], [3, 4]], "the others' parts stay"
    assert found["a"].tolist() == [[1, 2], [3, 4]], "and what was given away"


@pytest.mark.parametrize(
    ("fields", "tensors"),
    [
        ({"parts": 1}, {}),
        ({"dense": None}, {}),
        ({"parts": [{"table": "dense_0"}]}, {}),
        ({"parts": [{"table": "no"}]}, {}),
        ({"parts": [7]}, {}),
        ({}, {"0.rows": np.zeros((1, 3), np.float32)}),
        ({}, {"0.rows": np.zeros((2, 2), np.float64)}),
        ({}, {"0.ids": np.zeros((2, 1), np.int64)}),
        ({}, {"0.removed": np.zeros(1, np.int32)}),
        ({"dense": [{"table": "dense_0", "mark": 1, "start": 4}]},
         {"dense.0": np.zeros(3, np.float32)}),
        ({"dense": [{"table": "dense_0", "mark": 1, "start": -1}]},
         {"dense.0": np.zeros(3, np.float32)}),
        ({"dense": [{"table": "rows", "mark": 1, "start": 0}]},
         {"dense.0": np.zeros(3, np.float32)}),
        ({"dense": [{"table": "dense_0", "mark": None, "start": 0}]},
         {"dense.0": np.zeros(3, np.float32)}),
        ({"dense": [{"table": "dense_0", "mark": 1, "start": 0}]}, {}),
    ],
)  # fmt: skip
def test_what_is_no_answer_is_refused(fields: dict[str, Any], tensors: dict[str, Any]) -> None:
    right = answer({1: 1.0, 2: 2.0}, [3])
    wrong = Message(fields={**right.fields, **fields}, tensors={**right.tensors, **tensors})
    with pytest.raises(MalformedMessageError):
        assembly().take(wrong)


def test_pservers_have_the_same_tables() -> None:
    assert check_same_tables([[ROWS, DENSE], [DENSE, ROWS]]) == (ROWS, DENSE)
    with pytest.raises(TablesDifferError, match="rows"):
        check_same_tables([[ROWS], []])
    with pytest.raises(TablesDifferError, match="rows"):
        check_same_tables([[ROWS], [TableSpec(name="rows", kind="sparse", dim=3)]])
