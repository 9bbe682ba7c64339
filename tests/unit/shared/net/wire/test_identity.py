"""A push keeps its name across the wire."""

from typing import Any

import pytest

from paramfleet_shared.net.wire.identity import PushIdentity
from paramfleet_shared.net.wire.message import MalformedMessageError


def test_an_identity_comes_back_as_it_was() -> None:
    identity = PushIdentity(worker=1, incarnation=2, table="user", sequence=3)

    assert PushIdentity.from_wire(identity.to_wire()) == identity


@pytest.mark.parametrize(
    "wire", [None, [], [1, 2, "t"], [1, 2, "t", -1], ["1", 2, "t", 3], [1, 2, b"t", 3]]
)
def test_anything_else_is_malformed(wire: Any) -> None:
    with pytest.raises(MalformedMessageError, match="push identity"):
        PushIdentity.from_wire(wire)
