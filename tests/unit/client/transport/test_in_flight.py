"""How many pushes go before answers come, in whatever order those come."""

import hypothesis.strategies as st
from hypothesis import given

from paramfleet.transport.in_flight import BYTES_AT_ONCE, InFlight, Underway


def sent(flight: InFlight, num: int, num_bytes: int = 8) -> list[Underway]:
    return [flight.send(num_steps=1, num_bytes=num_bytes) for _ in range(num)]


def test_the_oldest_push_without_an_answer_bounds_the_others() -> None:
    flight = InFlight()
    first, second, third = sent(flight, 3)

    flight.answered(third)
    flight.answered(second)
    assert not flight.takes(8, at_once=3), "however many behind it are answered"

    flight.answered(first)
    assert flight.takes(8, at_once=1)
    assert (len(flight), flight.num_steps) == (0, 0)


def test_a_push_knows_whether_others_are_before_it() -> None:
    flight = InFlight()
    first, second = sent(flight, 2)
    assert (first.is_behind, second.is_behind) == (False, True)

    flight.answered(first)
    assert flight.send(num_steps=1, num_bytes=8).is_behind, "the second isn't answered"


def test_steps_of_the_oldest_push_count_apart() -> None:
    flight = InFlight()
    flight.send(num_steps=5, num_bytes=8)
    assert flight.num_steps_behind == 0

    flight.send(num_steps=2, num_bytes=8)
    assert (flight.num_steps, flight.num_steps_behind) == (7, 2)


def test_large_pushes_go_one_at_a_time() -> None:
    flight = InFlight()
    assert flight.takes(BYTES_AT_ONCE + 1, at_once=2), "one alone always goes"
    (large,) = sent(flight, 1, BYTES_AT_ONCE)

    assert not flight.takes(1, at_once=2)
    flight.answered(large)
    assert flight.takes(1, at_once=2)


@given(order=st.permutations(range(40)), at_once=st.integers(1, 12))
def test_never_are_more_on_their_way_from_the_oldest_on(order: list[int], at_once: int) -> None:
    flight, num_sent = InFlight(), 0
    open_pushes: dict[int, Underway] = {}
    ranks = {number: place for place, number in enumerate(order)}
    while num_sent < len(order) or open_pushes:
        while num_sent < len(order) and flight.takes(1, at_once=at_once):
            open_pushes[num_sent] = flight.send(num_steps=1, num_bytes=1)
            num_sent += 1
        assert num_sent - min(open_pushes) <= at_once
        soonest = min(open_pushes, key=ranks.__getitem__)
        flight.answered(open_pushes.pop(soonest))

    assert not flight
