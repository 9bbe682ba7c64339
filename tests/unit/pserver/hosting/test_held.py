"""Which copy of a group is gone on with, where a process has one of each of two terms."""

from typing import NamedTuple

import pytest

from paramfleet_pserver.hosting.following import expected_of
from paramfleet_pserver.hosting.held import inherited_copy
from paramfleet_shared.discovery.plan import GroupPlan, ProcessId

A, B, C = (ProcessId(index, 1) for index in range(3))


class Copy(NamedTuple):
    """One, of a term."""

    term: int


@pytest.mark.parametrize(
    ("terms", "since", "found"),
    [
        ([1], 1, 1),
        ([1], 2, None),  # it lacks what the owner of term 2 has reported
        ([1, 2], 1, 1),
        ([1, 3], 2, 3),  # the plans in between weren't seen
        ([None, 2], 1, 2),  # a later owner had all that the right copy has
        ([None, None], 0, None),
    ],
)
def test_no_copy_is_gone_on_with_that_is_older_than_the_named_one(
    terms: list[int | None], since: int, found: int | None
) -> None:
    copies = [None if term is None else Copy(term) for term in terms]
    got = inherited_copy(copies, since)
    assert (None if got is None else got.term) == found


def test_an_owner_never_follows_itself() -> None:
    plan = GroupPlan(owner=A, follower=B, target=C)
    assert expected_of(plan, A) == {B.text: "replica", C.text: "move"}
    assert expected_of(plan, B) == {C.text: "move"}
    both = GroupPlan(owner=A, follower=B, target=B)
    assert expected_of(both, A) == {B.text: "replica"}
    assert expected_of(GroupPlan(owner=A, follower=A, target=A), A) == {}
