"""What a table is: rules of its fields, and its way over the wire."""

import math
from typing import Any

import msgpack
import pytest

from paramfleet_shared.errors import error_from_wire, error_to_wire
from paramfleet_shared.tables.spec import (
    InitializerSpec,
    OptimizerSpec,
    SavedTableMismatchError,
    TableMismatchError,
    TableSpec,
    TableSpecError,
)

FULL = TableSpec(
    name="clicks",
    kind="sparse",
    dim=16,
    num_shards=4,
    seed=3,
    initializer=InitializerSpec(kind="normal", mean=0.5, std=0.1),
    optimizer=OptimizerSpec(rule="adam", beta1=0.8),
)


def test_a_spec_survives_the_wire() -> None:
    packed = msgpack.packb(FULL.to_wire())

    assert TableSpec.from_wire(msgpack.unpackb(packed)) == FULL


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": ""}, "name"),
        ({"kind": "wide"}, "kind"),
        ({"dim": 0}, "dim"),
        ({"kind": "dense", "size": 5, "dim": 2}, "dim"),
        ({"size": 5}, "size"),
        ({"kind": "dense", "dim": 1, "size": -1}, "size"),
        ({"num_shards": 0}, "num_shards"),
        ({"num_shards": 65_537}, "num_shards"),
        ({"optimizer": {"rule": "sum", "weight_decay": 0.1}}, "optimizer.weight_decay"),
        ({"optimizer": {"rule": "momentum", "dampening": 0.1}}, "optimizer.dampening"),
        ({"optimizer": {"rule": "lion"}}, "optimizer.rule"),
        ({"optimizer": {"rule": "adam", "beta2": 1.0}}, "optimizer.beta2"),
        ({"optimizer": {"rule": "adam", "eps": math.nan}}, "optimizer.eps"),
        (
            {"optimizer": {"rule": "momentum", "momentum": 0.0, "nesterov": True}},
            "optimizer.nesterov",
        ),
        ({"initializer": {"kind": "orthogonal"}}, "initializer.kind"),
        ({"initializer": {"kind": "uniform", "low": 1.0, "high": 0.0}}, "initializer.low"),
        ({"initializer": {"kind": "normal", "std": -1.0}}, "initializer.std"),
        ({"colour": "red"}, "table"),
        ({"dim": "wide"}, "dim"),
        ({"dim": 2.0}, "dim"),
        ({"num_shards": True}, "num_shards"),
        ({"optimizer": 7}, "table"),
    ],
)
def test_a_field_that_breaks_its_rule_is_named(change: dict[str, Any], field: str) -> None:
    with pytest.raises(TableSpecError) as caught:
        TableSpec.from_wire({**FULL.to_wire(), **change})

    assert caught.value.field == field
    again = error_from_wire(error_to_wire(caught.value))
    assert isinstance(again, TableSpecError)
    assert str(again) == str(caught.value)


@pytest.mark.parametrize("wrong", [None, 1, 10**18, math.nan, "yes", [1], {}])
def test_a_flag_is_a_boolean(wrong: Any) -> None:
    optimizer = {"rule": "momentum", "nesterov": wrong}

    with pytest.raises(TableSpecError, match="must be a boolean") as caught:
        TableSpec.from_wire({**FULL.to_wire(), "optimizer": optimizer})

    assert caught.value.field == "optimizer.nesterov"


def test_a_spec_without_a_part_is_malformed() -> None:
    wire = FULL.to_wire()
    del wire["optimizer"]

    with pytest.raises(TableSpecError, match="malformed"):
        TableSpec.from_wire(wire)


def test_two_descriptions_of_one_table_must_agree() -> None:
    FULL.check_same(TableSpec.from_wire(FULL.to_wire()))
    other = TableSpec.from_wire({**FULL.to_wire(), "dim": 8})

    with pytest.raises(
        TableMismatchError, match="dim = 8, but it exists with dim = 16"
    ) as caught:
        FULL.check_same(other)

    assert caught.value.field == "dim"
    assert str(error_from_wire(error_to_wire(caught.value))) == str(caught.value)


@pytest.mark.parametrize(
    ("rule", "columns"), [("sum", 0), ("sgd", 0), ("momentum", 1), ("adagrad", 1), ("adam", 2)]
)
def test_a_rule_says_how_much_state_it_keeps(rule: Any, columns: int) -> None:
    assert OptimizerSpec(rule=rule).num_state_columns == columns


DENSE = TableSpec(
    name="dense_0", kind="dense", size=6, parameters=(("a.weight", (2, 2)), ("a.bias", (2,)))
)


def test_a_dense_table_names_its_parameters() -> None:
    assert TableSpec.from_wire(DENSE.to_wire()) == DENSE
    assert "parameters" not in FULL.to_wire(), "as tables of before have none"
    unnamed = TableSpec(name="dense_0", kind="dense", size=6)
    unnamed.check_same_rows(DENSE)
    other = TableSpec(name="dense_0", kind="dense", size=2, parameters=(("b", (2,)),))
    with pytest.raises(SavedTableMismatchError, match=r"'a\.weight' of the model"):
        DENSE.check_same_rows(other)
    with pytest.raises(SavedTableMismatchError, match="size = 2"):
        unnamed.check_same_rows(other)
    with pytest.raises(TableMismatchError, match="parameters"):
        unnamed.check_same(DENSE)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        (
            (("a.weight", (4, 2)), ("a.bias", (4,))),
            "parameter 'a.weight' has shape (2, 2) in the model, and (4, 2) in the checkpoint",
        ),
        (
            (("a.weight", (2, 2)), ("a.bias", (2,)), ("b", (1,))),
            "parameter 'b' of the checkpoint isn't in the model (in table 'dense_0')",
        ),
        (
            (("a.weight", (2, 2)),),
            "parameter 'a.bias' of the model isn't in the checkpoint",
        ),
    ],
)
def test_a_saved_table_of_another_size_names_the_parameter_that_differs(
    parameters: Any, words: str
) -> None:
    size = sum(math.prod(shape) for _, shape in parameters)
    saved = TableSpec(name="dense_0", kind="dense", size=size, parameters=parameters)

    with pytest.raises(SavedTableMismatchError) as caught:
        DENSE.check_same_rows(saved)

    assert str(caught.value).startswith(words)
    assert ("parameter group N" in str(caught.value)) == ("shape" not in words)
    again = error_from_wire(error_to_wire(caught.value))
    assert (type(again), str(again)) == (SavedTableMismatchError, str(caught.value))


@pytest.mark.parametrize(
    "parameters",
    [
        [["a", [7]]],
        [["", [6]]],
        [[1, [6]]],
        [["a", [6], 1]],
        ["a"],
        [["a", [-2, -3]]],
        [["a", [6.0]]],
        [["a", [1] * 65]],
        7,
    ],
)
def test_wrong_parameters_are_refused(parameters: Any) -> None:
    with pytest.raises(TableSpecError):
        TableSpec.from_wire({**DENSE.to_wire(), "parameters": parameters})
