"""The fields of requests by members, which may hold anything."""

from typing import Any

import pytest

from paramfleet_coordinator.core.fields import RequestFields
from paramfleet_shared.discovery.plan import GroupPlan, ProcessId
from paramfleet_shared.net.wire.message import MalformedMessageError

KNOWN = GroupPlan(owner=ProcessId(0, 1), term=3, since_term=2, eligible=("1.1",), number=4)
WIRE = KNOWN.to_wire()


def groups(knows: Any) -> dict[int, GroupPlan]:
    return RequestFields({"knows": knows}, where="plan").groups("knows")


def test_what_is_known_of_groups_comes_as_it_was_said() -> None:
    assert groups({"5": WIRE}) == {5: KNOWN}
    assert groups(None) == groups({}) == {}


@pytest.mark.parametrize(
    "knows",
    [
        [WIRE],
        {"x": WIRE},
        {"0": None},
        {"0": {}},
        {"0": {**WIRE, "term": "x"}},
        {"0": {**WIRE, "term": -1}},
        {"0": {**WIRE, "number": 1 << 60}},
        {"0": {**WIRE, "term": float("inf")}},
        {"0": {**WIRE, "owner": "zero"}},
        {"0": {**WIRE, "owner": 3}},
        {"0": {**WIRE, "eligible": ["\x1b"]}},
        {"0": {**WIRE, "eligible": 3}},
        {"0": {**WIRE, "eligible": ["1.1"] * 1000}},
    ],
)
def test_anything_else_is_named(knows: Any) -> None:
    with pytest.raises(MalformedMessageError, match=r"plan\.knows"):
        groups(knows)


ABSENT = object()


def read(kind: str, value: Any = ABSENT, **rule: Any) -> Any:
    """Read a field, or one that is absent, as one of a kind."""
    fields = RequestFields({} if value is ABSENT else {"it": value}, where="join")
    return getattr(fields, kind)("it", **rule)


@pytest.mark.parametrize(
    ("kind", "value", "found"),
    [
        ("text", "", ""),
        ("text", "Zürich 1", "Zürich 1"),
        ("name", "rows_1", "rows_1"),
        ("optional_text", ABSENT, ""),
        ("optional_text", "x", "x"),
        ("integer", 0, 0),
        ("optional_integer", ABSENT, None),
        ("optional_integer", 7, 7),
        ("optional_flag", ABSENT, False),
        ("optional_flag", True, True),
        ("number", 2, 2.0),
        ("number", 0.5, 0.5),
        ("process", "3.2", ProcessId(3, 2)),
        ("copies", [], []),
        ("copies", ["1.2", "disk"], ["1.2", "disk"]),
        ("terms", ABSENT, {}),
        ("terms", {"4": 2, 5: "3"}, {4: 2, 5: 3}),
    ],
)
def test_a_field_is_what_was_said(kind: str, value: Any, found: Any) -> None:
    assert read(kind, value) == found


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("text", [ABSENT, None, 3, "a\nb", "x" * 10_000]),
        ("name", [ABSENT, "", 3, "../x", "a\x00"]),
        ("optional_text", [3, "a\x1b"]),
        ("integer", [ABSENT, -1, True, 1.0, "1"]),
        ("optional_integer", [-1, False, "1"]),
        ("optional_flag", [None, 1, "true"]),
        ("number", [ABSENT, -0.5, True, "1", float("nan")]),
        ("process", [ABSENT, "", "3", "a.b", 3]),
        ("copies", [ABSENT, "1.2", ["x"], [3], [None], ["1.2"] * 1000]),
        ("terms", [[1], {"x": 1}, {"1": -1}, {"1": "1" * 17}, {"²": 1}]),
    ],
)
def test_a_field_of_another_kind_is_named(kind: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(MalformedMessageError, match=r"join\.it"):
            read(kind, value)


def test_a_whole_number_may_have_a_greatest() -> None:
    assert read("optional_integer", 7, most=7) == 7
    with pytest.raises(MalformedMessageError, match="at most 7"):
        read("optional_integer", 8, most=7)


def test_pservers_alone_are_hosted_by_a_process() -> None:
    assert read("host_process", role="worker") == read("host_process", "", role="pserver") == ""
    assert read("host_process", "3.2", role="pserver") == "3.2"
    with pytest.raises(MalformedMessageError, match="empty for a worker"):
        read("host_process", "3.2", role="worker")
