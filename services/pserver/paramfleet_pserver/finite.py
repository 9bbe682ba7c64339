"""Numbers that a table must not take: infinite ones, and NaN."""

import asyncio

from paramfleet_pserver.requests import ExchangePart, PushPart
from paramfleet_shared.served_errors import NonFiniteGradientError
from paramfleet_shared.tables.encoding import Encoded, is_finite, num_nonfinite

__all__ = ["check_finite"]

INLINE_VALUES = 1 << 19
"""Floats that are looked through on the event loop: some 50 microseconds."""


async def check_finite(part: PushPart | ExchangePart, *, rank: int, step: int) -> None:
    """Look through a part's numbers, on another thread if they are many.

    Raises:
        NonFiniteGradientError: if there is an infinite one, or NaN.
    """
    numbers = part.content.numbers
    count = (
        _num_wrong(numbers)
        if numbers.rows.size <= INLINE_VALUES
        else await asyncio.to_thread(_num_wrong, numbers)
    )
    if count:
        name = part.table.spec.name
        raise NonFiniteGradientError(table=name, rank=rank, step=step, count=count)


def _num_wrong(numbers: Encoded) -> int:
    """Return how many numbers (int8: rows) are infinite or NaN; they are counted if any is."""
    return 0 if is_finite(numbers) else num_nonfinite(numbers)
