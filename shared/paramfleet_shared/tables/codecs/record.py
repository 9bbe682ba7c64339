"""What one format of numbers is, as data: all that is said of it is said in its ``Codec``.

A format has one number of a fixed width for each value and, where it ``has_scales``, a scale
of one byte for each row, by which all numbers of the row are multiplied. Nothing here knows of
numba or torch.

Shape legend: n = rows, D = row width, P = values of a vector, R = rows of n x D or P values.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["DENSE_WIDTH", "Codec", "Encoded", "Exponent", "Rounding"]

DENSE_WIDTH = 256
"""Values of a vector that share one scale."""

Rounding = Literal["exact", "chance", "feedback"]
"""What becomes of what a gradient loses: nothing is lost; it is rounded by chance, right on
average; or it is kept, and sent with the next one."""


class Encoded(NamedTuple):
    """Rows or a vector as they travel."""

    rows: NDArray[Any]
    """Numbers of the format's ``stored`` dtype; [n, D] or [P]."""
    scales: NDArray[np.uint8] | None = None
    """Codes of scales, [n], or [P / ``DENSE_WIDTH`` rounded up]; None without scales."""

    def part(self, where: slice) -> "Encoded":
        """Return some of the rows, as views."""
        return Encoded(self.rows[where], None if self.scales is None else self.scales[where])


class Exponent(NamedTuple):
    """Where the exponent of a float lies in its bits."""

    mask: int
    """All of its bits: the exponent of infinities and NaN."""
    bias: int
    place: int
    """The number of bits below it."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Codec:
    """One format. Its functions take contiguous arrays of one dimension."""

    name: str
    """As ``wire_dtype`` and the field ``wire`` of a request call it."""
    stored: str
    """The numpy dtype that marks its numbers on the wire. Several formats may have the same,
    since ``wire`` says which it is. It is never ``uint8``: among ids that marks packed ones."""
    torch_dtype: str
    """As torch calls its numbers. Vectors on any device are encoded by torch (LocalSGD's
    groups). A format with scales has float32 ones there, for each ``DENSE_WIDTH`` values the
    largest magnitude divided by ``largest``."""
    largest: float
    """The largest finite number, without a scale."""
    rounding: Rounding
    direct: bool = False
    """Whether tables take and give rows in it themselves."""
    has_scales: bool = False
    exponent: Exponent | None = None
    """Of the numbers, where they have no scales."""
    largest_of: Callable[[NDArray[np.uint8]], NDArray[np.float64]] | None = None
    """Returns the most that rows of these scales can hold, NaN for the scale of NaN; [R]."""
    least: int | None = None
    """The least number that a row may have, where ``stored`` has one below it."""
    nan: int | None = None
    """The bits of NaN below the sign, where numbers with scales have one."""
    encode: Callable[[NDArray[np.float32], NDArray[Any], Any, int], None]
    """``encode(values, numbers, scales, width)`` fills numbers and scales [R]: the nearest of
    values [R * width], the last row perhaps shorter. Without scales they are None."""
    decode: Callable[[NDArray[Any], Any, NDArray[np.float32], int], None]
    """``decode(numbers, scales, values, width)`` fills values."""
    dither: Callable[[NDArray[np.float32], NDArray[Any], int], None] | None = None
    """``dither(values, numbers, salt)`` fills numbers, rounded by chance. Needed where
    ``rounding`` is ``chance``."""
    feed_back: Callable[..., None] | None = None
    """``feed_back(left, slots, values, (numbers, scales), width)`` encodes values and what is
    left of former ones, ``left`` at ``slots``, and leaves there what is lost. Needed where
    ``rounding`` is ``feedback``."""
    one_value: str | None = None
    """The format that rows of one value have instead; None for this one."""
    answers: str | None = None
    """The format in which LocalSGD's values are answered where differences travel in this one;
    None for this one."""

    def __post_init__(self) -> None:
        assert self.stored != "uint8", "uint8 marks packed ids"
        assert self.has_scales == (self.largest_of is not None), "a scale bounds its row"
        assert self.has_scales == (self.exponent is None), "others are bounded one by one"
        assert (self.rounding == "chance") == (self.dither is not None), "chance has a salt"
        assert (self.rounding == "feedback") == (self.feed_back is not None), "it feeds back"
