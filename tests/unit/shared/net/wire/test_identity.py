"""A change keeps its name across the wire."""

from paramfleet_shared.net.wire.identity import ChangeIdentity


def test_an_identity_is_part_of_a_header() -> None:
    identity = ChangeIdentity(worker=1, incarnation=2, sequence=3)

    assert identity.fields() == {"rank": 1, "incarnation": 2, "sequence": 3}
    assert ChangeIdentity.of({**identity.fields(), "step": 4}) == identity
