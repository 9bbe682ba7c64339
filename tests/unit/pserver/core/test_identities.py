"""A push is taken once, whatever is retried, doubled or reordered."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paramfleet_pserver.core.identities import IdentityWindow
from paramfleet_shared.errors.served import FencedError, SequenceExpiredError
from paramfleet_shared.net.wire.identity import PushIdentity


def push(
    sequence: int, *, worker: int = 0, incarnation: int = 1, table: str = "t"
) -> PushIdentity:
    return PushIdentity(worker=worker, incarnation=incarnation, table=table, sequence=sequence)


def take(window: IdentityWindow, identity: PushIdentity) -> bool:
    fresh = window.is_fresh(identity)
    window.record(identity)
    return fresh


def test_a_retried_push_is_not_fresh() -> None:
    window = IdentityWindow()

    assert take(window, push(1))
    assert not take(window, push(1))


def test_asking_changes_nothing() -> None:
    window = IdentityWindow()

    assert window.is_fresh(push(1))
    assert window.is_fresh(push(1))


def test_pushes_in_order_from_the_first_are_held_as_one_number() -> None:
    window = IdentityWindow()

    for sequence in range(1, 50):
        window.record(push(sequence))

    assert window.num_held() == 0


def test_workers_and_tables_count_apart() -> None:
    window = IdentityWindow()
    window.record(push(1))

    assert window.is_fresh(push(1, worker=1))
    assert window.is_fresh(push(1, table="u"))


def test_an_older_incarnation_is_fenced_in_every_call() -> None:
    window = IdentityWindow()
    window.record(push(1, incarnation=2))

    for act in (window.is_fresh, window.record):
        with pytest.raises(FencedError) as caught:
            act(push(2, incarnation=1))
        assert (caught.value.worker, caught.value.incarnation, caught.value.current) == (
            0,
            1,
            2,
        )
    with pytest.raises(FencedError):
        window.fence(0, 1)


def test_a_newer_incarnation_starts_a_fresh_window() -> None:
    window = IdentityWindow()
    window.record(push(1))
    window.record(push(1, worker=1))

    assert window.is_fresh(push(1, incarnation=2))
    window.fence(0, 2)

    assert window.is_fresh(push(1, incarnation=2))
    assert not window.is_fresh(push(1, worker=1))


def test_a_gap_is_given_up_when_the_room_is_full_and_what_was_in_it_is_refused() -> None:
    window = IdentityWindow(max_later=2)
    window.record(push(1))
    for sequence in (3, 4):
        window.record(push(sequence))
    assert window.num_held() == 2

    window.record(push(5))

    assert window.num_held() == 0
    assert not window.is_fresh(push(4))
    assert window.is_fresh(push(6))
    with pytest.raises(SequenceExpiredError) as caught:
        window.is_fresh(push(2))
    error = caught.value
    assert (error.worker, error.table, error.sequence, error.oldest) == (0, "t", 2, 3)


def test_a_gap_given_up_stops_at_the_next_gap() -> None:
    window = IdentityWindow(max_later=2)

    for sequence in (2, 4, 6):
        window.record(push(sequence))

    assert window.num_held() == 2
    assert window.is_fresh(push(3))
    assert not window.is_fresh(push(4))


@pytest.mark.slow
@given(
    st.permutations(range(1, 41)).flatmap(
        lambda order: st.lists(st.sampled_from(order), max_size=80).map(
            lambda again: [*again, *order]
        )
    )
)
def test_any_order_with_any_repeats_takes_each_push_once(arrivals: list[int]) -> None:
    window = IdentityWindow(max_later=64)

    taken = [sequence for sequence in arrivals if take(window, push(sequence))]

    assert sorted(taken) == sorted(set(arrivals))
    assert window.num_held() == 0


def test_all_pushes_that_were_taken_can_be_told_those_of_former_processes_too() -> None:
    window = IdentityWindow()
    for sequence in (1, 2, 5):
        window.record(push(sequence))
    window.fence(0, 2)
    window.record(push(1, incarnation=2))

    assert [tuple(taken) for taken in window.taken()] == [
        (0, 1, "t", 1, 3, (5,)),
        (0, 2, "t", 1, 2, ()),
    ]
    assert window.incarnations() == {0: 2}
