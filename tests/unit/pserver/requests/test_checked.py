"""What comes off the wire is judged before it has an effect."""

from typing import Any

import pytest

from paramfleet_pserver.requests.checked import declare_request
from paramfleet_pserver.requests.fields import Fields
from paramfleet_shared.net.wire.message import MalformedMessageError, Message
from paramfleet_shared.tables.spec import TableSpec, TableSpecError

GOOD = {
    "tables": [TableSpec(name="t", kind="sparse").to_wire()],
    "mode": "geo",
    "worker_num": 2,
    "max_staleness": None,
    "rank": 1,
    "incarnation": 3,
}


def test_a_declaration_is_read_as_it_was_meant() -> None:
    declared = declare_request(Message(fields=GOOD))

    assert [spec.name for spec in declared.specs] == ["t"]
    assert (declared.mode, declared.worker_num, declared.max_staleness) == ("geo", 2, None)
    assert (declared.rank, declared.incarnation, declared.wire) == (1, 3, "float32")
    narrow = declare_request(Message(fields={**GOOD, "wire_dtype": "bfloat16"}))
    assert narrow.wire == "bfloat16"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("mode", "bulk"),
        ("mode", None),
        ("worker_num", 0),
        ("worker_num", 2.0),
        ("max_staleness", -1),
        ("rank", -1),
        ("incarnation", True),
        ("incarnation", 1 << 63),
        ("rank", float("nan")),
        ("worker_num", (1 << 64) - 1),
        ("worker_num", 65_537),
        ("wire_dtype", "float61"),
        ("tables", {}),
        ("tables", [3]),
    ],
)
def test_a_declaration_with_a_wrong_field_names_it(field: str, value: Any) -> None:
    with pytest.raises(MalformedMessageError) as caught:
        declare_request(Message(fields={**GOOD, field: value}))
    assert field in caught.value.where


def test_a_table_described_wrongly_is_refused() -> None:
    wrong = {**GOOD["tables"][0], "dim": 0}  # type: ignore[index]  # plain values

    with pytest.raises(TableSpecError):
        declare_request(Message(fields={**GOOD, "tables": [wrong]}))


@pytest.mark.parametrize("field", ["dim", "size", "num_shards", "seed"])
@pytest.mark.parametrize("value", [1 << 63, -(1 << 63) - 1, 1.0, float("nan"), True, "8"])
def test_a_size_of_a_table_that_is_no_whole_number_is_named(field: str, value: Any) -> None:
    wrong = {**GOOD["tables"][0], field: value}  # type: ignore[index]  # plain values

    with pytest.raises(MalformedMessageError, match=f"'{field}'"):
        declare_request(Message(fields={**GOOD, "tables": [wrong]}))


def test_fields_are_read_with_their_types() -> None:
    fields = Fields({"n": 2, "x": 0.5, "b": True, "s": "word"}, where="test")

    assert fields.integer("n") == fields.optional_integer("n") == 2
    assert fields.optional_integer("absent") is None
    assert (fields.number("x"), fields.number("n")) == (0.5, 2.0)
    assert (fields.flag("b"), fields.flag("absent")) == (True, False)
    assert fields.text("s") == "word"
    for read in (fields.integer, fields.flag, fields.number):
        with pytest.raises(MalformedMessageError):
            read("s")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_is_not_finite_is_refused_by_name(value: float) -> None:
    with pytest.raises(MalformedMessageError, match="field 'lr' must be a finite number"):
        Fields({"lr": value}, where="push").number("lr")


def test_a_message_has_so_many_parts_and_no_more() -> None:
    with pytest.raises(MalformedMessageError, match="has 4097 parts, and may have 4096"):
        Fields({"parts": [{}] * 4097}, where="pull").parts("parts")
