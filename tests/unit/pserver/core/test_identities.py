"""A change is taken once, whatever is retried, doubled or reordered."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paramfleet_pserver.core.identities import IdentityWindow
from paramfleet_shared.errors.served import (
    FencedError,
    SequenceTooEarlyError,
    TooManyVoidedError,
)
from paramfleet_shared.net.wire.identity import ChangeIdentity


def change(sequence: int, *, worker: int = 0, incarnation: int = 1) -> ChangeIdentity:
    return ChangeIdentity(worker=worker, incarnation=incarnation, sequence=sequence)


def take(window: IdentityWindow, identity: ChangeIdentity) -> bool:
    fresh = window.check(identity)
    window.record(identity)
    return fresh


def test_a_retried_change_is_not_fresh() -> None:
    window = IdentityWindow()

    assert take(window, change(1))
    assert not take(window, change(1))


def test_asking_changes_nothing() -> None:
    window = IdentityWindow()

    assert window.check(change(1))
    assert window.check(change(1))
    assert window.check_void(change(1))
    assert window.taken() == []


def test_changes_in_order_from_the_first_are_held_as_one_number() -> None:
    window = IdentityWindow()

    for sequence in range(1, 50):
        window.record(change(sequence))

    assert window.num_held() == 0


def test_workers_count_apart() -> None:
    window = IdentityWindow()
    window.record(change(1))

    assert window.check(change(1, worker=1))


def test_an_older_incarnation_is_fenced_in_every_call() -> None:
    window = IdentityWindow()
    window.record(change(1, incarnation=2))

    for act in (window.check, window.check_void, window.record):
        with pytest.raises(FencedError) as caught:
            act(change(2, incarnation=1))
        assert (caught.value.worker, caught.value.incarnation, caught.value.current) == (
            0,
            1,
            2,
        )
    with pytest.raises(FencedError):
        window.fence(0, 1)


def test_a_newer_incarnation_starts_a_fresh_window() -> None:
    window = IdentityWindow()
    window.record(change(1))
    window.record(change(1, worker=1))

    assert window.check(change(1, incarnation=2))
    window.fence(0, 2)

    assert window.check(change(1, incarnation=2))
    assert not window.check(change(1, worker=1))


def test_a_gap_is_never_given_up_and_what_is_too_far_ahead_of_it_is_refused() -> None:
    window = IdentityWindow(max_later=2)
    for sequence in (1, 3, 4):
        window.record(change(sequence))
    held = window.taken()

    with pytest.raises(SequenceTooEarlyError) as caught:
        window.check(change(5))

    error = caught.value
    assert (error.worker, error.sequence, error.awaited, error.max_later) == (0, 5, 2, 2)
    assert window.taken() == held
    assert take(window, change(2))
    assert take(window, change(5))
    assert not take(window, change(3))
    assert window.num_held() == 0


def test_the_first_changes_of_a_newer_incarnation_are_awaited_too() -> None:
    window = IdentityWindow(max_later=2)
    window.record(change(1))

    with pytest.raises(SequenceTooEarlyError):
        window.check(change(4, incarnation=2))

    assert window.check(change(3, incarnation=2))


def test_a_change_that_was_voided_is_taken_without_effect_and_fills_its_gap() -> None:
    window = IdentityWindow(max_later=1)
    window.record(change(2))

    assert window.check_void(change(1))
    window.record(change(1), voided=True)

    assert not window.check(change(1))
    assert window.check(change(4))
    (taken,) = window.taken()
    assert (taken.next, taken.later, taken.voided) == (3, (), (1,))


def test_what_was_taken_with_effect_can_not_be_voided_any_more() -> None:
    window = IdentityWindow()
    window.record(change(1))

    assert not window.check_void(change(1))
    window.record(change(1), voided=True)

    assert window.taken()[0].voided == ()


def test_an_incarnation_voids_so_many_changes_at_most() -> None:
    window = IdentityWindow(max_voided=2)
    for sequence in (1, 2):
        window.record(change(sequence), voided=True)

    with pytest.raises(TooManyVoidedError) as caught:
        window.check_void(change(3))

    error = caught.value
    assert (error.worker, error.sequence, error.most) == (0, 3, 2)
    assert not window.check_void(change(2)), "it was before"
    assert window.check_void(change(3, worker=1))
    assert window.check_void(change(1, incarnation=2))


ARRIVALS = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.integers(1, 3),
        st.integers(1, 12),
        st.sampled_from(["take", "take", "take", "void"]),
    ),
    max_size=60,
)


@given(ARRIVALS, st.integers(0, 4))
def test_a_window_is_a_set_that_refuses_what_is_too_far_ahead(
    arrivals: list[tuple[int, int, int, str]], max_later: int
) -> None:
    """What a plain set of every sequence ever taken says, in any order of arrival."""
    window = IdentityWindow(max_later=max_later)
    lives: dict[int, int] = {}
    taken: dict[tuple[int, int], set[int]] = {}
    voided: dict[tuple[int, int], set[int]] = {}

    for worker, incarnation, sequence, act in arrivals:
        identity = change(sequence, worker=worker, incarnation=incarnation)
        check = window.check_void if act == "void" else window.check
        before = window.taken()
        if incarnation < lives.get(worker, 0):
            with pytest.raises(FencedError):
                check(identity)
            assert window.taken() == before
            continue
        seen = taken.get((worker, incarnation), set())
        awaited = next(number for number in range(1, 99) if number not in seen)
        if sequence > awaited + max_later:
            with pytest.raises(SequenceTooEarlyError):
                check(identity)
            assert window.taken() == before
            continue
        assert check(identity) == (sequence not in seen)
        assert window.taken() == before
        window.record(identity, voided=act == "void")
        lives[worker] = incarnation
        if act == "void" and sequence not in seen:
            voided.setdefault((worker, incarnation), set()).add(sequence)
        taken.setdefault((worker, incarnation), set()).add(sequence)

    assert window.incarnations() == lives
    found = {}
    for each in window.taken():
        found[each.worker, each.incarnation] = {*range(1, each.next), *each.later}
        assert set(each.voided) == voided.get((each.worker, each.incarnation), set())
        assert each.next not in each.later
    assert found == taken


@pytest.mark.slow
@given(
    st.permutations(range(1, 41)).flatmap(
        lambda order: st.lists(st.sampled_from(order), max_size=80).map(
            lambda again: [*again, *order]
        )
    )
)
def test_any_order_with_any_repeats_takes_each_change_once(arrivals: list[int]) -> None:
    window = IdentityWindow(max_later=64)

    taken = [sequence for sequence in arrivals if take(window, change(sequence))]

    assert sorted(taken) == sorted(set(arrivals))
    assert window.num_held() == 0


def test_all_changes_that_were_taken_can_be_told_those_of_former_processes_too() -> None:
    window = IdentityWindow()
    for sequence in (1, 2, 5):
        window.record(change(sequence))
    window.record(change(6), voided=True)
    window.fence(0, 2)
    window.record(change(1, incarnation=2))

    assert [tuple(taken) for taken in window.taken()] == [
        (0, 1, 3, (5, 6), (6,)),
        (0, 2, 2, (), ()),
    ]
    assert window.incarnations() == {0: 2}
