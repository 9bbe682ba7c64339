"""The time that is left survives the trip."""

import pytest

from paramfleet_shared.net.rpc.deadlines import (
    DeadlineExceededError,
    read_deadline,
    write_deadline,
)
from paramfleet_shared.net.wire.message import MalformedMessageError


@pytest.mark.parametrize("seconds", [0.001, 0.25, 60.0, 86_400.0])
def test_remaining_time_comes_back(seconds: float) -> None:
    assert read_deadline(write_deadline(seconds)) == seconds


def test_a_call_just_begun_writes_its_round_time_out() -> None:
    assert write_deadline(59.99998) == b"60000"  # equal headers are remembered


def test_no_time_left_is_one_millisecond() -> None:
    assert write_deadline(-3.0) == b"1"


def test_no_header_is_no_deadline() -> None:
    assert read_deadline(None) is None


@pytest.mark.parametrize("value", [b"", b"soon", b"-1", b"1.5", b"9" * 13])
def test_anything_else_is_malformed(value: bytes) -> None:
    with pytest.raises(MalformedMessageError, match="pf-deadline-ms"):
        read_deadline(value)


def test_the_error_says_who_what_and_how_long() -> None:
    error = DeadlineExceededError(peer="pserver 1", operation="pull", waited_s=2.0)

    assert str(error) == "pserver 1 did not answer 'pull' within 2.000 s"
