"""Bounded staleness, by examples and by a model."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from paramfleet_pserver.core.staleness import MAX_AHEAD, Release, StalenessGate
from paramfleet_shared.errors.served import ParkedStepError, UnknownWorkerError
from paramfleet_shared.values.ids import Rank, Step

ADA, BOB = Rank(0), Rank(1)


def gate_with(*ranks: Rank, lead: int | None = 0) -> StalenessGate:
    gate = StalenessGate(max_lead_steps=lead)
    for rank in ranks:
        gate.join(rank)
    return gate


def test_bulk_synchronous_parks_the_fast_worker_until_the_slow_one_commits() -> None:
    gate = gate_with(ADA, BOB, lead=0)

    assert gate.begin(ADA, Step(0))
    assert gate.commit(ADA, Step(0)) == ()
    assert not gate.begin(ADA, Step(1))
    assert gate.begin(BOB, Step(0))

    assert gate.commit(BOB, Step(0)) == (Release(rank=ADA, step=Step(1)),)


def test_a_gate_without_a_bound_never_parks() -> None:
    gate = gate_with(ADA, BOB, lead=None)

    assert gate.begin(ADA, Step(1000))


def test_a_lone_worker_never_waits_for_its_own_pushes() -> None:
    assert gate_with(ADA, lead=0).begin(ADA, Step(7))


def test_a_worker_that_left_does_not_hold_the_others() -> None:
    gate = gate_with(ADA, BOB)
    gate.commit(ADA, Step(0))
    gate.begin(ADA, Step(1))

    assert gate.leave(BOB) == (Release(rank=ADA, step=Step(1)),)
    assert gate.leave(BOB) == ()
    assert gate.slowest_but(ADA) is None


def test_a_stranger_is_refused() -> None:
    with pytest.raises(UnknownWorkerError) as caught:
        gate_with(ADA).begin(BOB, Step(0))

    assert caught.value.rank == BOB
    assert not caught.value.retryable


def test_a_parked_step_cannot_commit_but_the_ones_before_can() -> None:
    gate = gate_with(ADA, BOB)
    gate.begin(ADA, Step(1))

    with pytest.raises(ParkedStepError) as caught:
        gate.commit(ADA, Step(1))

    assert (caught.value.rank, caught.value.step) == (ADA, 1)
    assert gate.statistics().parked == 1
    assert gate.commit(ADA, Step(0)) == ()
    assert gate.committed() == {ADA: 1, BOB: 0}


def test_a_repeated_or_late_commit_never_takes_progress_back() -> None:
    gate = gate_with(ADA, BOB)

    gate.commit(ADA, Step(4))
    gate.commit(ADA, Step(2))

    assert gate.slowest_but(BOB) == 5
    statistics = gate.statistics()
    assert (statistics.slowest, statistics.fastest, statistics.members) == (0, 5, 2)


def test_a_push_that_overtook_another_counts_when_that_has_come() -> None:
    gate = gate_with(ADA, BOB, lead=0)
    gate.commit(ADA, Step(0))
    assert not gate.begin(BOB, Step(4))

    assert gate.commit(ADA, Step(3), first=Step(2)) == ()
    assert gate.commit(ADA, Step(3), first=Step(2)) == (), "a repeated one"
    assert gate.committed() == {ADA: 1, BOB: 0}

    assert gate.commit(ADA, Step(1), first=Step(1)) == (Release(rank=BOB, step=Step(4)),)
    assert gate.committed() == {ADA: 4, BOB: 0}


def test_a_push_behind_which_nothing_is_missing_counts_with_all_before() -> None:
    gate = gate_with(ADA)
    gate.commit(ADA, Step(7), first=Step(6))

    gate.commit(ADA, Step(5))

    assert gate.committed() == {ADA: 8}


def test_what_a_worker_that_left_had_pushed_out_of_order_is_forgotten() -> None:
    gate = gate_with(ADA)
    gate.commit(ADA, Step(2), first=Step(2))
    gate.leave(ADA)

    gate.join(ADA)
    gate.commit(ADA, Step(1))

    assert gate.committed() == {ADA: 2}


def test_a_gap_is_given_up_when_too_many_wait_behind_it() -> None:
    gate = gate_with(ADA)

    for step in range(MAX_AHEAD):
        gate.commit(ADA, Step(2 * step + 1), first=Step(2 * step + 1))
    assert gate.committed() == {ADA: 0}
    gate.commit(ADA, Step(9999), first=Step(9999))

    assert gate.committed() == {ADA: 2}


@given(
    order=st.permutations(range(12)), merged=st.lists(st.booleans(), min_size=12, max_size=12)
)
def test_steps_count_in_their_order_however_pushes_come(
    order: list[int], merged: list[bool]
) -> None:
    ends = [step for step in range(12) if step == 11 or not merged[step]]
    pushes = dict(zip(ends, [0, *(end + 1 for end in ends)], strict=False))
    gate, taken = gate_with(ADA), set()

    for last in order:
        if last not in pushes:
            continue
        gate.commit(ADA, Step(last), first=Step(pushes[last]))
        taken |= set(range(pushes[last], last + 1))
        missing = min(set(range(13)) - taken)
        assert gate.committed() == {ADA: missing}


def test_a_worker_that_no_longer_waits_is_not_released_later() -> None:
    gate = gate_with(ADA, BOB)
    gate.begin(ADA, Step(1))

    gate.withdraw(ADA, Step(2))
    assert gate.statistics().parked == 1
    gate.withdraw(ADA, Step(1))

    assert gate.commit(BOB, Step(0)) == ()


def test_a_late_member_starts_level_with_the_slowest() -> None:
    gate = gate_with(ADA)
    gate.commit(ADA, Step(4))

    assert gate.join(BOB) == 5
    assert gate.join(BOB) == 5


class GateMachine(RuleBasedStateMachine):
    """Drive a gate at random; the rule of the paper must hold after every move."""

    def __init__(self) -> None:
        super().__init__()
        self.lead = 2
        self.gate = StalenessGate(max_lead_steps=self.lead)
        self.committed: dict[Rank, int] = {}
        self.running: dict[Rank, int] = {}
        self.parked: dict[Rank, int] = {}

    def _slowest_but(self, rank: Rank) -> int | None:
        return min((s for r, s in self.committed.items() if r != rank), default=None)

    def _may_run(self, rank: Rank, step: int) -> bool:
        slowest = self._slowest_but(rank)
        return slowest is None or step - slowest <= self.lead

    def _apply(self, releases: tuple[Release, ...]) -> None:
        for release in releases:
            assert self.parked.pop(release.rank) == release.step
            self.running[release.rank] = release.step

    @rule(rank=st.integers(0, 3))
    def join(self, rank: int) -> None:
        self.committed.setdefault(Rank(rank), self.gate.join(Rank(rank)))

    @precondition(lambda self: self.committed)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        rank = data.draw(st.sampled_from(sorted(self.committed)))
        for facts in (self.committed, self.running, self.parked):
            facts.pop(rank, None)
        self._apply(self.gate.leave(rank))

    @precondition(lambda self: len(self.committed) > len(self.running) + len(self.parked))
    @rule(data=st.data(), ahead=st.integers(0, 2))
    def begin(self, data: st.DataObject, ahead: int) -> None:
        idle = sorted(set(self.committed) - set(self.running) - set(self.parked))
        rank = data.draw(st.sampled_from(idle))
        step = Step(self.committed[rank] + ahead)
        let_through = self.gate.begin(rank, step)
        assert let_through == self._may_run(rank, step)
        (self.running if let_through else self.parked)[rank] = step

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        rank = data.draw(st.sampled_from(sorted(self.running)))
        step = self.running.pop(rank)
        self.committed[rank] = max(self.committed[rank], step + 1)
        self._apply(self.gate.commit(rank, Step(step)))

    @precondition(lambda self: self.parked)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        rank = data.draw(st.sampled_from(sorted(self.parked)))
        self.gate.withdraw(rank, Step(self.parked.pop(rank)))

    @invariant()
    def counts_agree(self) -> None:
        assert self.gate.committed() == self.committed
        assert self.gate.statistics().parked == len(self.parked)

    @invariant()
    def nobody_is_parked_in_vain(self) -> None:
        assert not any(self._may_run(rank, step) for rank, step in self.parked.items())


TestGateModel = pytest.mark.slow(GateMachine.TestCase)


def test_a_member_that_begins_later_is_raised_and_lets_others_go_on() -> None:
    gate = StalenessGate(max_lead_steps=0)
    gate.join(ADA)
    gate.join(BOB)
    gate.commit(ADA, Step(4))
    assert not gate.begin(ADA, Step(5))

    assert gate.begin_at(BOB, Step(5)) == (Release(rank=ADA, step=Step(5)),)
    assert gate.begin_at(BOB, Step(3)) == (), "it is never taken back"
    assert gate.committed() == {ADA: 5, BOB: 5}


def test_who_is_no_member_begins_nowhere() -> None:
    gate = StalenessGate(max_lead_steps=0)
    with pytest.raises(UnknownWorkerError):
        gate.begin_at(ADA, Step(1))
