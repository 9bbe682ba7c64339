"""The plan of groups: who hosts, follows and gets which."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from paramfleet_coordinator.core.groups.choosing import Process
from paramfleet_coordinator.core.groups.errors import (
    NotPlannedError,
    ScaleRefusedError,
    StaleProposalError,
    StaleTermError,
)
from paramfleet_coordinator.core.groups.planner import SURPLUS_S, Planner, PlanRules
from paramfleet_shared.discovery.plan import DISK, Plan, ProcessId

A, B, C, D = (ProcessId(index, 1) for index in range(4))


def processes(*ids: ProcessId, dead: Iterable[ProcessId] = ()) -> list[Process]:
    return [Process(id=each, host="h", alive=each not in set(dead)) for each in ids]


def begin(planner: Planner, *, term: int = 1) -> None:
    """Let all owners join."""
    for group, own in enumerate(planner.plan.groups):
        assert own.owner is not None
        planner.require_owner(group, own.owner, succeeds=own.term)
        planner.note_owner(group, own.owner, term)


def started(*, groups: int = 4, replicas: int = 0) -> Planner:
    planner = Planner(groups, rules=PlanRules(start_processes=2, replicas=replicas))
    planner.decide(processes(A, B), now=0.0)
    begin(planner)
    return planner


def propose(planner: Planner, group: int, term: int, copies: list[str]) -> None:
    """Propose copies as the owner, under the next number."""
    own = planner.plan.of(group)
    assert own.owner is not None
    planner.set_eligible(group, term, copies, number=own.number + 1, by=own.owner)


def propose_as(planner: Planner, group: int, process: ProcessId, copies: list[str]) -> None:
    """Propose copies as a process that may not be the owner any more."""
    own = planner.plan.of(group)
    planner.set_eligible(group, own.term, copies, number=own.number + 1, by=process)


def protect(planner: Planner) -> None:
    """Let all followers be registered."""
    for group, own in enumerate(planner.plan.groups):
        assert own.follower is not None
        propose(planner, group, own.term, [own.follower.text])


def finish_moves(planner: Planner, *ids: ProcessId, now: float = 1.0) -> list[tuple[int, int]]:
    """Carry moves out until there is none; return (group, process index) of each."""
    moved: list[tuple[int, int]] = []
    for _ in range(50):
        planner.decide(processes(*ids), now=now)
        group = planner.moving
        if group is None:
            return moved
        own = planner.plan.of(group)
        assert own.target is not None
        moved.append((group, own.target.index))
        planner.require_owner(group, own.target, succeeds=own.term)
        planner.note_owner(group, own.target, own.term + 1)
    pytest.fail("the plan doesn't settle")


def test_groups_are_given_out_when_enough_processes_have_come() -> None:
    planner = Planner(4, rules=PlanRules(start_processes=2))
    planner.decide(processes(A), now=0.0)
    assert {each.owner for each in planner.plan.groups} == {None}
    planner.decide(processes(A, B), now=1.0)
    assert [each.owner for each in planner.plan.groups] == [A, A, B, B]


def test_a_process_that_dies_before_its_group_has_begun_is_replaced() -> None:
    planner = Planner(2, rules=PlanRules(start_processes=2))
    planner.decide(processes(A, B), now=0.0)
    later = ProcessId(1, 2)
    planner.decide(processes(A, B, later, dead=[B]), now=1.0)
    assert [each.owner for each in planner.plan.groups] == [A, later]


def test_a_new_process_gets_groups_one_at_a_time() -> None:
    planner = started()
    assert finish_moves(planner, A, B) == []
    assert finish_moves(planner, A, B, C) == [(3, 2)]
    assert finish_moves(planner, A, B, C, D) == [(1, 3)]
    assert [each.owner for each in planner.plan.groups] == [A, D, B, C]
    assert planner.moves == 2


def test_nothing_moves_before_a_group_has_its_follower() -> None:
    planner = started(replicas=1)
    planner.decide(processes(A, B, C), now=1.0)
    assert planner.moving is None
    protect(planner)
    planner.decide(processes(A, B, C), now=2.0)
    assert planner.moving is not None


def test_a_move_whose_target_dies_is_given_up() -> None:
    planner = started()
    planner.decide(processes(A, B, C), now=1.0)
    group = planner.moving
    assert group is not None
    planner.decide(processes(A, B, C, dead=[C]), now=2.0)
    assert planner.moving is None
    with pytest.raises(NotPlannedError, match=f"group {group} isn't planned"):
        planner.require_owner(group, C, succeeds=1)


def test_a_move_that_its_target_cancels_is_tried_again_later() -> None:
    planner = started()
    planner.decide(processes(A, B, C), now=1.0)
    group = planner.moving
    assert group is not None
    planner.cancel_move(group, C, now=1.0)
    planner.decide(processes(A, B, C), now=2.0)
    assert planner.moving is None
    planner.decide(processes(A, B, C), now=6.5)
    assert planner.moving == group


def test_a_move_that_takes_too_long_is_given_up() -> None:
    planner = started()
    planner.decide(processes(A, B, C), now=1.0)
    events = planner.decide(processes(A, B, C), now=200.0)
    assert [each.event for each in events] == ["group.stays"]
    assert planner.moving is None


def test_a_draining_process_gives_up_all_and_may_end() -> None:
    planner = started(replicas=1)
    protect(planner)
    planner.drain(B)
    for _ in range(20):
        planner.decide(processes(A, B, C), now=1.0)
        group = planner.moving
        if group is not None:
            own = planner.plan.of(group)
            assert own.target is not None
            planner.note_owner(group, own.target, own.term + 1)
        planner.decide(processes(A, B, C), now=1.0)
        protect(planner)
    assert planner.plan.may_end(B)
    assert {each.owner for each in planner.plan.groups} == {A, C}


def test_scaling_drains_the_highest_and_takes_them_back() -> None:
    planner = started()
    finish_moves(planner, A, B, C, D)
    planner.scale(2, processes(A, B, C, D))
    assert list(planner.plan.draining) == [C, D]
    finish_moves(planner, A, B, C, D)
    assert planner.plan.may_end(C)
    assert planner.plan.may_end(D)
    planner.scale(3, processes(A, B, C, D))
    assert list(planner.plan.draining) == [D]
    finish_moves(planner, A, B, C, D)
    assert planner.plan.owned(C)


def test_a_process_that_comes_back_beyond_those_wanted_is_drained() -> None:
    planner = started()
    finish_moves(planner, A, B, C)
    planner.scale(2, processes(A, B, C, dead=[A]))
    assert list(planner.plan.draining) == []
    back = ProcessId(A.index, 2)

    for now in (2.0, 2.0 + SURPLUS_S - 1):
        planner.decide(processes(back, B, C), now=now)
        assert list(planner.plan.draining) == []
    planner.decide(processes(back, B, C), now=2.0 + SURPLUS_S)

    assert list(planner.plan.draining) == [C]


def test_a_dead_process_that_still_counts_as_alive_is_no_surplus() -> None:
    planner = started()
    planner.scale(2, processes(A, B))
    for now in (1.0, 100.0):
        planner.decide(processes(A, B, ProcessId(B.index, 2)), now=now)
    for now in (101.0, 105.0):
        planner.decide(processes(A, B, C), now=now)
    planner.decide(processes(A, C), now=106.0)
    planner.decide(processes(A, B, C), now=107.0)

    assert list(planner.plan.draining) == []


@pytest.mark.parametrize(("wanted", "says"), [(0, "at least one"), (5, "--server_num=2:5")])
def test_a_number_that_cannot_be_is_refused_with_what_to_set(wanted: int, says: str) -> None:
    planner = started()
    before = planner.plan
    with pytest.raises(ScaleRefusedError, match=says):
        planner.scale(wanted, processes(A, B))
    assert planner.plan == before


def test_a_registered_follower_takes_over_from_a_dead_owner() -> None:
    planner = started(groups=2, replicas=1)
    planner.decide(processes(A, B), now=0.0)
    protect(planner)
    events = planner.decide(processes(A, B, dead=[B]), now=1.0)
    assert "group.takeover" in [each.event for each in events]
    assert planner.plan.of(1).heir == A
    assert planner.is_survivable(1, processes(A, B, dead=[B]))
    with pytest.raises(NotPlannedError):
        planner.require_owner(1, B, succeeds=1)  # it may come back, and has lost the group
    with pytest.raises(StaleTermError):
        propose(planner, 1, 1, [])
    planner.require_owner(1, A, succeeds=1)
    (event,) = planner.note_owner(1, A, 2)
    assert event.event == "group.taken_over"
    own = planner.plan.of(1)
    assert (own.owner, own.term, own.heir, own.eligible) == (A, 2, None, ())


def test_a_follower_that_is_not_registered_takes_nothing_over() -> None:
    planner = started(groups=2, replicas=1)
    planner.decide(processes(A, B), now=0.0)
    planner.decide(processes(A, B, dead=[B]), now=1.0)
    assert planner.plan.of(1).heir is None
    assert not planner.is_survivable(1, processes(A, B, dead=[B]))


def test_a_disk_that_has_all_is_gone_on_from() -> None:
    planner = started(groups=2)
    propose(planner, 1, 1, [DISK])
    later = ProcessId(1, 2)
    stale = [
        *processes(A, B, dead=[B]),
        Process(id=later, holds={0: 1, 1: 0}),
    ]
    planner.decide(stale, now=1.0)
    assert planner.plan.of(1).owner == B
    planner.decide([*stale[:2], Process(id=later, holds={1: 1})], now=2.0)
    assert planner.plan.of(1).owner == later
    planner.require_owner(1, later, succeeds=1)


def test_a_follower_is_on_another_host_where_there_is_one() -> None:
    planner = Planner(1, rules=PlanRules(start_processes=1, replicas=1))
    here, near, far = Process(id=A, host="x"), Process(id=B, host="x"), Process(id=C, host="y")
    planner.decide([here], now=0.0)
    planner.decide([here, near, far], now=0.0)
    assert planner.plan.of(0).follower == C


def test_a_group_that_nobody_follows_is_named_unprotected_after_the_grace() -> None:
    planner = started(groups=2, replicas=1)
    planner.decide(processes(A, B), now=0.0)
    protect(planner)
    planner.note_owner(1, A, 2)
    assert not [
        each
        for each in planner.decide(processes(A), now=1.0)
        if each.event == "group.unprotected"
    ]
    events = planner.decide(processes(A), now=11.5)
    assert planner.unprotected == [0, 1]
    assert [each.event for each in events] == ["group.unprotected"] * 2
    planner.decide(processes(A, C), now=12.0)
    protect(planner)
    events = planner.decide(processes(A, C), now=12.5)
    assert "group.protected" in [each.event for each in events]
    assert planner.unprotected == []


def test_an_owner_may_go_on_under_a_new_term() -> None:
    planner = started()
    planner.decide(processes(A, B, C), now=1.0)
    group = planner.moving
    assert group is not None
    owner = planner.plan.of(group).owner
    assert owner is not None
    planner.require_owner(group, owner, succeeds=1)
    (event,) = planner.note_owner(group, owner, 2)
    assert event.event == "group.back"
    with pytest.raises(NotPlannedError):
        planner.require_owner(group, C, succeeds=1)


def test_a_plan_survives_its_way_through_the_registry() -> None:
    planner = started(replicas=1)
    planner.decide(processes(A, B, C), now=1.0)
    protect(planner)
    planner.drain(B)
    assert Plan.from_wire(planner.plan.to_wire()) == planner.plan
    other = Planner(4, rules=PlanRules(start_processes=2, replicas=1))
    other.resume(planner.plan)
    assert other.plan == planner.plan


def moved(planner: Planner, group: int) -> None:
    """Let a group move to whom the plan names."""
    own = planner.plan.of(group)
    assert own.target is not None
    planner.require_owner(group, own.target, succeeds=own.term)
    planner.note_owner(group, own.target, own.term + 1)


def test_copies_of_the_former_owner_stay_until_the_new_one_has_its_own() -> None:
    planner = started(groups=2, replicas=1)
    propose(planner, 0, 1, [B.text, DISK])
    propose(planner, 1, 1, [A.text])
    planner.drain(A)
    planner.decide(processes(A, B, C), now=1.0)
    assert planner.moving == 0
    moved(planner, 0)
    own = planner.plan.of(0)
    assert own.owner == C
    assert (own.heirs, own.disk_term) == ((B.text,), 1)
    planner.decide(processes(A, B, C, dead=[C]), now=2.0)
    assert planner.plan.of(0).heir == B


def test_an_owner_that_goes_on_under_a_new_term_keeps_its_copies() -> None:
    planner = started(groups=2, replicas=1)
    propose(planner, 0, 1, [B.text, DISK])
    planner.note_owner(0, A, 2, on_disk=True)
    own = planner.plan.of(0)
    assert (own.eligible, own.inherited, own.disk_term) == ((B.text,), (), 1)
    propose(planner, 0, 2, [B.text])
    planner.note_owner(0, A, 3, on_disk=True)
    assert planner.plan.of(0).disk_term == 0  # it has a disk, which isn't a copy
    propose(planner, 0, 3, [B.text, DISK])
    assert planner.plan.of(0).disk_term == 1  # that is what its disk says


def test_a_disk_of_an_older_term_is_over_once_the_successor_has_its_own_copies() -> None:
    planner = started(groups=2, replicas=1)
    propose(planner, 1, 1, [A.text, DISK])
    planner.decide(processes(A, B, C, dead=[B]), now=1.0)
    planner.note_owner(1, A, 2, on_disk=True)
    assert planner.plan.of(1).disk_term == 1  # until there are others
    planner.decide(processes(A, B, C, dead=[B]), now=2.0)  # C follows
    propose(planner, 1, 2, [C.text])
    later = Process(id=ProcessId(1, 2), holds={1: 1})
    dead = [A, B, C]
    planner.decide([*processes(A, B, C, dead=dead), later], now=2.0)
    assert planner.plan.of(1).owner == A


def test_copies_stay_until_who_recovers_the_group_owns_it() -> None:
    planner = started(groups=2, replicas=1)
    propose(planner, 1, 1, [A.text, DISK])
    later = Process(id=ProcessId(1, 2), holds={1: 1})
    planner.decide([*processes(A, B, dead=[A, B]), later], now=1.0)
    assert planner.plan.of(1).owner == later.id
    planner.decide([*processes(A, B, dead=[B]), Process(id=later.id, alive=False)], now=2.0)
    assert planner.plan.of(1).heir == A  # it was only silent
    planner = started(groups=2, replicas=1)
    propose(planner, 1, 1, [A.text, DISK])
    planner.decide([*processes(A, B, dead=[A, B]), later], now=1.0)
    planner.note_owner(1, later.id, 2, on_disk=True)
    own = planner.plan.of(1)
    assert (own.heirs, own.disk_term) == ((), 1)  # its disk is the one that is named
    propose(planner, 1, 2, [DISK])
    assert planner.plan.of(1).disk_term == 2


def test_an_owner_that_ends_before_its_disk_knows_its_term_is_replaced_from_that_disk() -> None:
    planner = started(groups=2)
    propose(planner, 1, 1, [DISK])
    for life in (2, 3):  # the disk says what it has said: no owner has come to write its term
        later = Process(id=ProcessId(1, life), holds={1: 1})
        planner.decide([*processes(A, B, dead=[B]), later], now=float(life))
        assert planner.plan.of(1).owner == later.id
        planner.note_owner(1, later.id, life, on_disk=True)


def on_disks(*, replicas: int = 1) -> Planner:
    """Return the plan of two groups that have begun, whose owners have disks."""
    planner = Planner(2, rules=PlanRules(start_processes=2, replicas=replicas))
    planner.decide(processes(A, B), now=0.0)
    planner.note_owner(0, A, 1, on_disk=True)
    planner.note_owner(1, B, 1, on_disk=True)
    return planner


def test_a_group_is_begun_anew_while_nothing_of_it_was_reported_durable() -> None:
    planner = on_disks()
    assert planner.is_survivable(1, processes(A, B, dead=[B]))
    (event,) = planner.decide(processes(A, B, dead=[B]), now=1.0)[:1]
    assert event.event == "group.begins_anew"
    assert planner.plan.of(1).owner == A
    planner.require_owner(1, A, succeeds=1)
    with pytest.raises(NotPlannedError):
        propose_as(planner, 1, B, [DISK])  # it was only silent: nothing of it counts
    planner.note_owner(1, A, 2, on_disk=True)
    own = planner.plan.of(1)
    assert (own.owner, own.term, own.since_term, own.is_new) == (A, 2, 2, True)
    propose(planner, 1, 2, [DISK])
    planner.decide(processes(A, B, C, dead=[A, B]), now=2.0)
    assert planner.plan.of(1).owner == A, "what it has is lost, if its disk doesn't come back"


def test_who_has_a_group_on_its_disk_begins_it_anew_before_others() -> None:
    planner = on_disks()
    later = Process(id=ProcessId(1, 2), holds={1: 1})
    planner.decide([*processes(A, B, C, dead=[B]), later], now=1.0)
    assert planner.plan.of(1).owner == later.id


def test_a_group_without_disks_is_never_begun_anew() -> None:
    planner = started(groups=2, replicas=1)
    planner.decide(processes(A, B, dead=[B]), now=1.0)
    assert planner.plan.of(1).owner == B
    assert not planner.is_survivable(1, processes(A, B, dead=[B]))


def test_a_group_does_not_move_to_its_only_copy_before_its_owner_has_it_on_a_disk() -> None:
    planner = on_disks()
    for group, other in ((0, B), (1, A)):
        propose(planner, group, 1, [other.text, DISK])
    planner.decide(processes(A, B, dead=[B]), now=1.0)
    planner.note_owner(1, A, 2, on_disk=True)
    again = ProcessId(1, 2)
    planner.decide(processes(A, again), now=2.0)  # it is to have one of the two
    propose(planner, 0, 1, [again.text])
    propose(planner, 1, 2, [again.text])  # the disk of this owner has no snapshot yet
    planner.decide(processes(A, again), now=3.0)
    assert planner.plan.of(1).target is None
    propose(planner, 1, 2, [again.text, DISK])
    planner.decide(processes(A, again), now=4.0)
    assert planner.moving == 1
    moved(planner, 1)
    own = planner.plan.of(1)
    assert (own.owner, own.heirs, own.disk_term) == (again, (), 2)
    later = Process(id=ProcessId(1, 3), holds={1: 2})
    planner.decide([*processes(A, again, dead=[again]), later], now=5.0)
    assert planner.plan.of(1).owner == later.id


def test_a_group_whose_owner_went_on_may_move_again() -> None:
    planner = started(groups=2)
    propose(planner, 0, 1, [DISK])
    planner.note_owner(0, A, 2, on_disk=True)
    planner.drain(A)
    planner.decide(processes(A, B), now=1.0)
    assert planner.moving == 0


def test_a_set_of_copies_that_is_late_is_refused() -> None:
    planner = started(groups=2, replicas=1)
    planner.set_eligible(1, 1, [DISK], number=2, by=B)
    planner.set_eligible(1, 1, [DISK], number=2, by=B)  # it was sent again
    with pytest.raises(StaleProposalError, match="number 2 since, not 1"):
        planner.set_eligible(1, 1, [A.text], number=1, by=B)
    assert planner.plan.of(1).heirs == ()
    planner.note_owner(1, B, 2)
    planner.set_eligible(1, 2, [A.text], number=3, by=B)  # an owner that goes on counts on
    planner.note_owner(1, A, 3)
    planner.decide(processes(A, B), now=1.0)
    planner.set_eligible(1, 3, [B.text], number=1, by=A)  # another one begins
    assert planner.plan.of(1).eligible == (B.text,)


def test_only_the_owner_says_which_copies_there_are() -> None:
    planner = started(groups=2, replicas=1)
    propose(planner, 1, 1, [A.text])
    for another in (A, C, ProcessId(B.index, 2)):
        with pytest.raises(NotPlannedError, match=r"process 1\.1 has it"):
            planner.set_eligible(1, 1, [], number=9, by=another)
    assert planner.plan.of(1).heirs == (A.text,)


def test_only_those_are_copies_that_the_plan_has_follow() -> None:
    planner = started(groups=2, replicas=1)
    for copies in ([C.text], [A.text, C.text], [B.text]):
        with pytest.raises(NotPlannedError):
            propose(planner, 1, 1, copies)
    propose(planner, 1, 1, [A.text, DISK])
    assert planner.plan.of(1).eligible == (A.text,)


def test_an_owner_is_no_copy_of_its_own_group() -> None:
    planner = started(groups=2, replicas=1)
    propose(planner, 1, 1, [A.text])
    odd = planner.plan.with_group(1, follower=B, target=B, eligible=(B.text, A.text))
    planner.resume(replace(odd, version=odd.version + 1))  # as nothing writes it
    for copies in ([B.text], [A.text, B.text]):
        with pytest.raises(NotPlannedError):
            propose(planner, 1, 1, copies)
    assert planner.plan.of(1).heirs == (A.text,)
    assert not planner.is_survivable(1, processes(B))


def test_a_copy_that_is_named_twice_is_written_once() -> None:
    planner = started(groups=2, replicas=1)
    propose(planner, 1, 1, [A.text, DISK, A.text, DISK])
    assert planner.plan.of(1).eligible == (A.text,)


def test_a_process_that_has_ended_is_no_heir_and_no_new_copy() -> None:
    planner = started(groups=2, replicas=1)
    propose(planner, 1, 1, [A.text])
    planner.decide(processes(A, B, C, dead=[A]), now=1.0)
    assert planner.plan.of(1).follower == C
    propose(planner, 1, 1, [A.text, C.text])  # its owner doesn't know of the death yet
    later = ProcessId(A.index, A.incarnation + 1)
    with pytest.raises(NotPlannedError):
        propose(planner, 1, 1, [later.text])  # the same place, and another process
    planner.decide(processes(A, B, C, dead=[A, B]), now=2.0)
    assert planner.plan.of(1).heir == C
    planner.note_owner(1, C, 2)
    propose(planner, 1, 2, [])
    with pytest.raises(NotPlannedError):
        propose(planner, 1, 2, [A.text])


def take_over(planner: Planner, group: int, heir: ProcessId) -> None:
    """Let a process take a group over, whoever has a copy of it."""
    plan = planner.plan.with_group(group, heir=heir)
    planner.resume(replace(plan, version=plan.version + 1))
    planner.note_owner(group, heir, plan.of(group).term + 1)


def test_the_copies_of_an_owner_before_are_named_with_its_first_term() -> None:
    planner = started(groups=2, replicas=1)
    planner.note_owner(1, B, 2)  # the owner goes on
    propose(planner, 1, 2, [A.text])
    take_over(planner, 1, C)
    own = planner.plan.of(1)
    assert (own.inherited, own.inherited_term) == ((A.text,), 1)
    take_over(planner, 1, D)  # the owner between has named none
    own = planner.plan.of(1)
    assert (own.inherited, own.inherited_term) == ((A.text,), 1)
    planner.decide(processes(A, D), now=1.0)
    propose(planner, 1, 4, [A.text])
    take_over(planner, 1, C)
    own = planner.plan.of(1)
    assert (own.inherited, own.inherited_term) == ((A.text,), 4)


@pytest.mark.parametrize("group", [2, -1, 10**9])
def test_a_group_that_there_is_not_is_refused(group: int) -> None:
    planner = started(groups=2)
    with pytest.raises(NotPlannedError):
        planner.set_eligible(group, 1, [], number=1, by=A)
    with pytest.raises(NotPlannedError):
        planner.cancel_move(group, A, now=1.0)
