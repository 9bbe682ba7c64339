"""Looking for numbers that are too large: their exponents say it.

The exponent of infinities and NaNs is all ones, and so the largest of all.
"""

from typing import Any

from numpy.typing import NDArray

from paramfleet_shared.tables.kernels.basics.compiled import uncounted

__all__ = ["any_reaches"]

_TOGETHER = 4096
"""Numbers looked at before the search may end: enough for vectors to pay."""


@uncounted
def any_reaches(bits: NDArray[Any], exponent: Any, least: Any) -> bool:
    """Return whether a number's exponent is ``least`` or more.

    ``bits`` are the numbers' bits, flat and unsigned; ``exponent`` is a mask of their type,
    and ``least`` is in its place.
    """
    for start in range(0, bits.size, _TOGETHER):
        some = bits[start : min(start + _TOGETHER, bits.size)]
        most = exponent ^ exponent
        for i in range(some.size):
            most = max(most, some[i] & exponent)
        if most >= least:
            return True
    return False
