"""Barriers, by examples and by a model."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from paramfleet_coordinator.core.barriers import MAX_OPEN, Barriers, Whereabouts
from paramfleet_shared.discovery.errors import TooManyBarriersError
from paramfleet_shared.discovery.records import Release

ALL = {0, 1, 2}


def with_arrivals(*ranks: int, generation: int = 1) -> Barriers:
    barriers = Barriers()
    for rank in ranks:
        barriers.arrive("step", generation, rank)
    return barriers


def test_so_many_barriers_are_open_and_no_more() -> None:
    barriers = Barriers()
    for number in range(MAX_OPEN):
        barriers.require_free_barrier(f"b{number}", 1)
        barriers.arrive(f"b{number}", 1, 0)

    barriers.require_free_barrier("b0", 1)  # it is open
    with pytest.raises(TooManyBarriersError, match="1024 are open already"):
        barriers.require_free_barrier("another", 1)


def test_a_barrier_lets_go_when_the_last_participant_arrives() -> None:
    barriers = with_arrivals(2, 0)
    before = barriers.settle(ALL)

    barriers.arrive("step", 1, 1)

    assert before == []
    assert barriers.settle(ALL) == [Release(name="step", generation=1, ranks=(0, 1, 2))]
    assert barriers.is_released("step", 1)
    assert not barriers.is_released("step", 2)


def test_a_repeated_arrival_counts_once() -> None:
    assert with_arrivals(0, 0, 0).settle(ALL) == []


def test_an_arrival_after_the_release_opens_nothing() -> None:
    barriers = with_arrivals(0, 1, 2)
    barriers.settle(ALL)

    barriers.arrive("step", 1, 0)

    assert list(barriers.open()) == []
    assert barriers.took_part("step", 1) == (0, 1, 2)


def test_a_name_may_be_used_again_and_again() -> None:
    barriers = with_arrivals(0, 1, 2)
    barriers.settle(ALL)

    for rank in (0, 1):
        barriers.arrive("step", 2, rank)
    halfway = barriers.settle(ALL)
    barriers.arrive("step", 2, 2)

    assert halfway == []
    assert [release.generation for release in barriers.settle(ALL)] == [2]


def test_barriers_of_different_names_do_not_know_each_other() -> None:
    barriers = with_arrivals(0, 1)

    barriers.arrive("other", 1, 2)

    assert barriers.settle(ALL) == []
    assert list(barriers.open()) == [("other", 1), ("step", 1)]
    assert barriers.arrived("step", 1) == [0, 1]


def test_a_worker_that_ended_is_not_waited_for() -> None:
    assert with_arrivals(0, 1).settle({0, 1}) != []


def test_everybody_ended_leaves_no_barrier_open() -> None:
    barriers = with_arrivals(0)

    barriers.settle(set())

    assert list(barriers.open()) == []


def test_a_later_use_proves_an_earlier_one_that_was_forgotten() -> None:
    barriers = Barriers()
    barriers.arrive("step", 7, 0)
    barriers.arrive("step", 6, 1)

    releases = barriers.settle({0, 1})

    assert releases == [Release(name="step", generation=6, ranks=())]
    assert barriers.took_part("step", 6) == ()
    assert not barriers.is_released("step", 7)


def test_who_took_part_in_a_use_before_the_latest_is_forgotten() -> None:
    barriers = Barriers({"step": Release(name="step", generation=2, ranks=(0,))})

    assert barriers.is_released("step", 1)
    assert barriers.took_part("step", 1) == ()
    assert barriers.took_part("other", 1) == ()


def test_a_restarted_coordinator_goes_on_with_who_stood_there() -> None:
    barriers = Barriers(
        {"init": Release(name="init", generation=1, ranks=(0, 1, 2))}, {("step", 3): {0, 1}}
    )

    barriers.arrive("step", 3, 2)

    assert barriers.is_released("init", 1)
    assert [release.ranks for release in barriers.settle(ALL)] == [(0, 1, 2)]


def test_it_is_known_which_barriers_a_worker_has_come_to_and_which_let_it_go() -> None:
    barriers = Barriers()
    for rank in (0, 1):
        barriers.arrive("start", 1, rank)
    barriers.arrive("alone", 1, 0)
    barriers.settle({0, 1})
    barriers.arrive("start", 2, 1)

    assert barriers.passed_with(1) == {"start": 1}
    assert barriers.come_to(1) == {"start": 2}
    assert barriers.come_to(0) == {"start": 1, "alone": 1}
    assert barriers.passed_with(7) == {}


class BarrierMachine(RuleBasedStateMachine):
    """Workers go through one barrier many times, with retries and coordinator restarts."""

    def __init__(self) -> None:
        super().__init__()
        self.barriers = Barriers()
        self.passed = dict.fromkeys(ALL, 0)
        self.stands: dict[int, int] = {}
        self.released: dict[str, Release] = {}

    @rule(rank=st.sampled_from(sorted(ALL)))
    def arrive_or_retry(self, rank: int) -> None:
        self.stands[rank] = self.passed[rank] + 1
        self.barriers.arrive("step", self.stands[rank], rank)
        for release in self.barriers.settle(ALL):
            assert release.ranks == (0, 1, 2)
            self.released[release.name] = release

    @rule(rank=st.sampled_from(sorted(ALL)))
    def learn(self, rank: int) -> None:
        if rank in self.stands and self.barriers.is_released("step", self.stands[rank]):
            self.passed[rank] = self.stands.pop(rank)

    @rule()
    def restart_with_the_registry(self) -> None:
        arrivals: dict[tuple[str, int], set[int]] = {}
        for name, generation in self.barriers.open():
            arrivals[name, generation] = set(self.barriers.arrived(name, generation))
        self.barriers = Barriers(self.released, arrivals)

    @precondition(lambda self: self.stands)
    @rule()
    def restart_with_an_empty_registry(self) -> None:
        self.barriers = Barriers(self.released)
        for rank, generation in self.stands.items():
            self.barriers.arrive("step", generation, rank)

    @invariant()
    def nobody_is_a_whole_use_ahead(self) -> None:
        assert max(self.passed.values()) - min(self.passed.values()) <= 1

    @invariant()
    def nobody_waits_in_vain(self) -> None:
        standing = [g for g in self.stands.values() if not self.barriers.is_released("step", g)]
        assert len(standing) < len(ALL)


TestBarrierModel = BarrierMachine.TestCase


def whereabouts() -> Whereabouts:
    """Return those of worker 0 in a sum, which watches, and of worker 1 in the finish."""
    barriers = Barriers()
    barriers.arrive("sum", 2, 0)
    barriers.arrive("finish", 1, 1)
    known = Whereabouts(barriers)
    known.enter(0, ("sum", 2), "all_reduce", watches=True)
    known.enter(1, ("finish", 1), "stop_worker", watches=False)
    return known


def test_who_waits_elsewhere_is_known_to_those_that_watch() -> None:
    known = whereabouts()

    assert known.elsewhere(0, [1]) == {1: "stop_worker"}
    assert known.elsewhere(1, [0]) == {0: "all_reduce"}
    assert (known.is_watched(1), known.is_watched(0)) == (True, False)


def test_who_left_or_may_still_come_waits_nowhere_else() -> None:
    known = whereabouts()
    known.leave(1, "another stand")
    assert known.elsewhere(0, [1])

    barriers = Barriers()
    barriers.arrive("sum", 2, 0)
    barriers.arrive("finish", 1, 1)
    barriers.arrive("finish", 1, 0)  # by another thread: worker 1 will go on
    known = Whereabouts(barriers)
    known.enter(0, ("sum", 2), "all_reduce", watches=True)
    stand = known.enter(1, ("finish", 1), "stop_worker", watches=False)
    assert known.elsewhere(0, [1]) == {}

    known.leave(1, stand)
    assert known.elsewhere(1, [0]) == {}
