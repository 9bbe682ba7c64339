"""The plan of groups, as it is written and read."""

from dataclasses import replace

import pytest

from paramfleet_shared.discovery.plan import DISK, GroupPlan, Plan, ProcessId


def test_a_process_is_read_as_it_is_written() -> None:
    process = ProcessId(3, 17)
    assert ProcessId.from_text(process.text) == process


@pytest.mark.parametrize(
    "text",
    ["", "1", "1.", ".1", "-1.2", " 1 . 2 ", "1_0.0_1", "1.2.3", "+1.2", "01.2", "1.2\n",
     "\u0661.2", "1." + "9" * 40],
)  # fmt: skip
def test_what_is_no_process_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"INDEX\.INCARNATION"):
        ProcessId.from_text(text)


def test_a_process_whose_copy_is_named_may_not_end() -> None:
    owner, other = ProcessId(0, 1), ProcessId(1, 1)
    group = GroupPlan(owner=owner, term=2, since_term=2)
    plan = Plan(groups=(group,), draining=(other,))
    assert plan.may_end(other)
    assert not plan.with_group(0, eligible=(other.text,)).may_end(other)
    assert not plan.with_group(0, inherited=(other.text,)).may_end(other)
    assert not plan.with_group(0, follower=other).may_end(other)
    replaced = plan.with_group(0, inherited=(other.text,), eligible=("2.1",))
    assert replaced.may_end(other)
    assert not Plan(groups=(group,)).may_end(other)


def test_others_live_that_do_not_give_up_what_they_have() -> None:
    first, second = ProcessId(0, 1), ProcessId(1, 2)
    assert Plan(processes=(0, 1), draining=(first,)).others_live()
    assert not Plan(processes=(0, 1), draining=(first, second)).others_live()
    assert not Plan(processes=(0,), draining=(first,)).others_live()


def test_an_owner_is_never_an_heir_of_its_own_group() -> None:
    owner, other = ProcessId(0, 1), ProcessId(1, 1)
    group = GroupPlan(owner=owner, eligible=(owner.text, other.text))
    assert group.heirs == (other.text,)
    assert GroupPlan(owner=owner, inherited=(owner.text,)).heirs == ()


def test_what_a_plan_says_of_a_group_survives_the_registry() -> None:
    group = GroupPlan(
        owner=ProcessId(0, 1), term=7, since_term=5, inherited=("1.1",), inherited_term=3,
        on_disk=True, is_new=True,
    )  # fmt: skip
    assert GroupPlan.from_wire(group.to_wire()) == group


OWNER, HEIR = ProcessId(0, 4), ProcessId(1, 2)
READ = GroupPlan(
    owner=OWNER, term=6, since_term=5, follower=HEIR, eligible=(HEIR.text,), number=3
)


def test_an_owner_knows_the_set_that_was_written_since_the_plan_it_has_read() -> None:
    known = READ.as_written(OWNER, 6, {DISK, "2.1"}, number=4)

    assert (known.eligible, known.number) == (("2.1",), 4)
    assert (known.term, known.disk_term) == (6, 5), "its disk has all since its first term"
    assert READ.as_written(OWNER, 6, {HEIR.text}, number=4).disk_term == 0


def test_a_plan_that_is_as_new_as_what_an_owner_knows_stays() -> None:
    for term, number in ((6, 0), (6, 3), (6, 2), (5, 9)):
        assert READ.as_written(OWNER, term, {"2.1"}, number=number) == READ


def test_a_new_owner_knows_what_was_written_for_it() -> None:
    inheriting = replace(READ, eligible=(), number=0, inherited=(OWNER.text,), disk_term=5)
    known = inheriting.as_written(HEIR, 8, {DISK}, number=1)

    assert (known.owner, known.term, known.since_term) == (HEIR, 8, 8)
    assert (known.heirs, known.disk_term) == ((), 8)


def test_a_group_with_a_set_of_copies_is_no_new_one() -> None:
    new = GroupPlan(owner=OWNER, term=1, since_term=1, on_disk=True, is_new=True)

    assert not new.as_written(OWNER, 1, {DISK}, number=1).is_new
    assert new.as_written(OWNER, 1, (), number=0).is_new
