"""Looking for infinities and NaNs: numbers whose exponent is all ones."""

from typing import Any

from numpy.typing import NDArray

from paramfleet_shared.tables.kernels.compiled import uncounted

__all__ = ["any_all_ones"]

_TOGETHER = 4096
"""Numbers looked at before the search may end: enough for vectors to pay."""


@uncounted
def any_all_ones(bits: NDArray[Any], exponent: Any) -> bool:
    """Return whether a number has all of its exponent's bits.

    ``bits`` are the numbers' bits, flat and unsigned; ``exponent`` is a mask of their type.
    """
    for start in range(0, bits.size, _TOGETHER):
        some = bits[start : min(start + _TOGETHER, bits.size)]
        most = exponent ^ exponent
        for i in range(some.size):
            most = max(most, some[i] & exponent)
        if most == exponent:
            return True
    return False
