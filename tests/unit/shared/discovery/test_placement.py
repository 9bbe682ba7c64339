"""Which pserver has which shards, in which term, and as the registry keeps it."""

from typing import Any

import pytest

from paramfleet_shared.discovery.placement import Placement

TWO = Placement(endpoints=("a:1", "b:1"), num_shards=8, terms=(1, 4))


def test_a_placement_travels_with_its_terms() -> None:
    assert Placement.from_wire(TWO.to_wire()) == TWO


def test_a_placement_without_terms_has_zeros() -> None:
    wire: dict[str, Any] = {"endpoints": ["a:1", "b:1"], "num_shards": 8, "epoch": 3}

    old = Placement.from_wire(wire)

    assert old.terms == ()
    assert [old.term_of(server) for server in range(2)] == [0, 0]
    assert [TWO.term_of(server) for server in range(2)] == [1, 4]


@pytest.mark.parametrize(
    ("before", "terms"),
    [(TWO, (1, 7)), (Placement(endpoints=("a:1", "b:1"), num_shards=8), (0, 7))],
)
def test_one_server_is_replaced_and_the_others_stay(
    before: Placement, terms: tuple[int, ...]
) -> None:
    after = before.with_server(1, endpoint="c:1", term=7)

    assert after.endpoints == ("a:1", "c:1")
    assert after.terms == terms
    assert after.epoch == before.epoch + 1
    assert after.shards_of(1) == before.shards_of(1)
