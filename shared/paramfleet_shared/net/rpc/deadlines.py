"""How long a call may take, on both sides of it.

The caller's remaining time travels in a header, as milliseconds: clocks of two
machines need not agree.
"""

import math

from paramfleet_shared.errors import OutcomeUnknownError
from paramfleet_shared.net.wire.message import MalformedMessageError

__all__ = [
    "DEADLINE_HEADER",
    "DeadlineExceededError",
    "read_deadline",
    "write_deadline",
]

DEADLINE_HEADER = b"pf-deadline-ms"
_MAX_DIGITS = 12


class DeadlineExceededError(OutcomeUnknownError):
    """A call was sent, and no answer came in the time it had."""

    code = "outcome_unknown.deadline_exceeded"
    peer: str
    operation: str
    waited_s: float
    sentence = "{peer} did not answer {operation!r} within {waited_s:.3f} s"


def write_deadline(remaining_s: float) -> bytes:
    """Return the header's value, at least 1 ms."""
    return b"%d" % max(1, math.ceil(remaining_s * 1000 - 0.5))


def read_deadline(value: bytes | None) -> float | None:
    """Return the seconds that remain; None if the caller set no deadline.

    Raises:
        MalformedMessageError: if the header is not a number of milliseconds.
    """
    if value is None:
        return None
    if not value.isdigit() or len(value) > _MAX_DIGITS:
        raise MalformedMessageError(
            where=DEADLINE_HEADER.decode(), rule="must be a whole number of milliseconds"
        )
    return int(value) / 1000
