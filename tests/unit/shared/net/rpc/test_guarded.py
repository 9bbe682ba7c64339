"""When a connection of HTTP/1.1 is too slow, in logical time."""

import pytest

from paramfleet_shared.net.rpc.connection.guarded import AdminLimits, RequestPace

LIMITS = AdminLimits(head_timeout_s=10.0, unread_timeout_s=30.0)
SLOW_HEAD = "the head of its request took too long"


def pace() -> RequestPace:
    return RequestPace(LIMITS, 0.0)


@pytest.mark.parametrize("bytes_at", [(), (1.0,), (1.0, 5.0, 9.0)])
def test_a_first_head_that_is_not_whole_in_time_is_late(bytes_at: tuple[float, ...]) -> None:
    slow = pace()
    for now in bytes_at:
        slow.received(now)

    assert slow.why_late(10.0, 0) is None
    assert slow.why_late(10.1, 0) == SLOW_HEAD


def test_a_request_may_be_served_for_long_and_the_next_be_long_in_coming() -> None:
    steady = pace()
    steady.received(1.0)
    steady.began()
    assert steady.why_late(1000.0, 0) is None

    steady.ended(1000.0)
    assert steady.why_late(5000.0, 0) is None


def test_the_next_head_has_its_time_from_its_first_byte() -> None:
    next_one = pace()
    next_one.received(1.0)
    next_one.began()
    next_one.ended(2.0)
    next_one.received(100.0)
    next_one.received(109.0)

    assert next_one.why_late(110.0, 0) is None
    assert next_one.why_late(110.1, 0) == SLOW_HEAD


def test_a_head_that_began_while_another_request_was_served_is_not_forgotten() -> None:
    next_one = pace()
    next_one.began()
    next_one.received(3.0)
    next_one.ended(100.0)

    assert next_one.why_late(110.0, 0) is None
    assert next_one.why_late(110.1, 0) == SLOW_HEAD


def test_answers_that_wait_for_their_reader_too_long_are_late() -> None:
    unread = pace()
    unread.began()

    assert unread.why_late(5.0, 100) is None
    assert unread.why_late(35.0, 1) is None
    assert unread.why_late(35.1, 50) == "it doesn't read its answers"


def test_a_reader_that_catches_up_now_and_then_is_not_late() -> None:
    catching_up = pace()
    catching_up.began()

    reasons = [catching_up.why_late(float(now), now % 10) for now in range(200)]

    assert set(reasons) == {None}
