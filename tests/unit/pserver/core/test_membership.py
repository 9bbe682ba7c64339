"""Who takes part in which step."""

import pytest

from paramfleet_pserver.core.membership import StepMembers
from paramfleet_shared.errors.served import NotAMemberError
from paramfleet_shared.values.ids import Rank, Step


def test_every_worker_takes_part_until_it_leaves() -> None:
    members = StepMembers(num_workers=3)

    members.leave(Rank(1), Step(2))

    assert members.of(Step(1)) == (0, 1, 2)
    assert members.of(Step(2)) == (0, 2)


def test_the_earliest_leave_counts_in_any_order() -> None:
    members = StepMembers(num_workers=2)

    members.leave(Rank(0), Step(5))
    members.leave(Rank(0), Step(3))
    members.leave(Rank(0), Step(4))

    assert members.of(Step(3)) == (1,)
    assert members.of(Step(2)) == (0, 1)


@pytest.mark.parametrize("rank", [-1, 2])
def test_a_rank_outside_the_job_is_refused(rank: int) -> None:
    members = StepMembers(num_workers=2)

    with pytest.raises(NotAMemberError) as caught:
        members.expect(Rank(rank), Step(0))
    assert (caught.value.rank, caught.value.step, caught.value.num_workers) == (rank, 0, 2)
    with pytest.raises(NotAMemberError):
        members.leave(Rank(rank), Step(0))


def test_a_worker_that_left_is_refused_from_then_on() -> None:
    members = StepMembers(num_workers=2)
    members.leave(Rank(1), Step(1))

    members.expect(Rank(1), Step(0))
    with pytest.raises(NotAMemberError):
        members.expect(Rank(1), Step(1))
