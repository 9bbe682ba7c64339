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
