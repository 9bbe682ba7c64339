"""A coordinator that is started again, with a registry that has older data than processes."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from paramfleet_coordinator.core.groups.choosing import Process
from paramfleet_coordinator.core.groups.errors import SettlingError
from paramfleet_coordinator.core.groups.planner import Planner, PlanRules
from paramfleet_shared.discovery.plan import DISK, GroupPlan, Plan, ProcessId

A, B, C = (ProcessId(index, 1) for index in range(3))
LEASE_S = 4.0
RULES = PlanRules(start_processes=2, replicas=1)
OWNED = GroupPlan(owner=A, term=1, since_term=1, follower=B, eligible=(B.text,), number=1)
"""As an older registry has it: process B has a copy."""

REMOVED = replace(OWNED, follower=C, eligible=(C.text,), number=2)
"""As it was written since: B's copy isn't counted any more, and lacks what was reported."""

OTHER = GroupPlan(owner=B, term=1, since_term=1, follower=A, eligible=(A.text,), number=1)
OLD = Plan(version=7, groups=(OWNED, OTHER), processes=(0, 1, 2))
NEW = replace(OLD, version=9, groups=(REMOVED, OTHER))


def processes(*, dead: Iterable[ProcessId] = ()) -> list[Process]:
    return [Process(id=each, host="h", alive=each not in set(dead)) for each in (A, B, C)]


def again(plan: Plan) -> Planner:
    """Return what a coordinator decides with that has just been started again."""
    planner = Planner(2, rules=RULES)
    planner.resume(plan)
    planner.settle(lease_s=LEASE_S)
    assert planner.decide(processes(), now=10.0) == []
    return planner


def known(plan: Plan) -> dict[int, GroupPlan]:
    return dict(enumerate(plan.groups))


def test_a_copy_that_was_removed_since_is_no_heir() -> None:
    planner = again(OLD)
    planner.note_known(9, {0: REMOVED})

    assert planner.decide(processes(dead=[A]), now=10.0 + LEASE_S - 0.1) == []
    assert planner.plan == OLD, "nothing is decided before all have spoken"
    events = planner.decide(processes(dead=[A]), now=10.0 + LEASE_S)

    assert planner.plan.of(0).heir == C
    assert "group.settled" in [each.event for each in events]


def test_who_has_read_of_a_set_says_so_for_an_owner_that_is_dead() -> None:
    planner = again(OLD)
    planner.note_known(7, known(OLD))
    planner.note_known(9, known(NEW))
    planner.note_known(7, known(OLD))

    planner.decide(processes(dead=[A]), now=10.0 + LEASE_S)

    assert planner.plan.of(0).heir == C
    assert planner.plan.of(1).eligible == OTHER.eligible


def test_the_registry_holds_where_nobody_knows_better() -> None:
    planner = again(NEW)
    planner.note_known(9, known(NEW))
    planner.note_known(7, known(OLD))

    events = planner.decide(processes(), now=10.0 + LEASE_S)

    assert planner.plan == NEW
    assert events == []


def test_a_greater_term_holds_whatever_the_number_of_an_older_one_is() -> None:
    later = replace(OWNED, owner=C, term=2, since_term=2, follower=B, eligible=(), number=0)
    later = replace(later, inherited=(A.text,))
    planner = again(replace(OLD, groups=(replace(OWNED, number=30), OTHER)))
    planner.note_known(9, {0: later})

    planner.decide(processes(), now=10.0 + LEASE_S)

    assert (planner.plan.of(0).owner, planner.plan.of(0).heirs) == (C, (A.text,))


def test_an_owner_that_went_on_since_inherits_the_newest_set() -> None:
    planner = again(OLD)
    assert planner.note_owner(0, C, 2) == []
    planner.note_known(9, {0: REMOVED})

    planner.decide(processes(), now=10.0 + LEASE_S)

    own = planner.plan.of(0)
    assert (own.owner, own.term, own.heirs) == (C, 2, ())


def test_nothing_is_given_or_written_before_all_have_spoken() -> None:
    planner = again(OLD)

    with pytest.raises(SettlingError, match="group 0"):
        planner.set_eligible(0, 1, [B.text, DISK], number=2, by=A)
    with pytest.raises(SettlingError):
        planner.require_owner(0, A, succeeds=1)
    assert planner.is_survivable(0, processes(dead=[A, B]))
    planner.decide(processes(), now=10.0 + LEASE_S)

    planner.set_eligible(0, 1, [B.text, DISK], number=2, by=A)
    planner.require_owner(0, A, succeeds=1)
    assert planner.plan.of(0).eligible == (B.text,)


def test_processes_read_the_plan_that_is_made_of_what_they_know() -> None:
    planner = again(OLD)
    planner.note_known(9, {0: REMOVED})
    planner.decide(processes(), now=10.0 + LEASE_S)

    assert planner.plan.version > 9


def test_a_process_that_speaks_later_reads_the_plan_and_does_not_change_it() -> None:
    planner = again(OLD)
    planner.decide(processes(), now=10.0 + LEASE_S)
    before = planner.plan

    planner.note_known(before.version, {0: REMOVED})
    assert planner.plan == before
    planner.note_known(before.version + 5, {0: REMOVED})

    assert planner.plan == replace(before, version=before.version + 6)


def test_a_registry_that_has_no_plan_gives_no_group_to_another() -> None:
    planner = Planner(2, rules=RULES)
    planner.settle(lease_s=LEASE_S)
    assert planner.decide(processes(), now=10.0) == []
    planner.note_known(9, known(NEW))

    planner.decide(processes(), now=10.0 + LEASE_S)

    assert [each.owner for each in planner.plan.groups] == [A, B]
    assert planner.plan.of(0).eligible == (C.text,)
