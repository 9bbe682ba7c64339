"""How large the numbers may be that workers send, so that tables stay finite.

A float32 holds magnitudes below 2^128, and its largest values lie 2^104 apart: adding less
than half of that, 2^103, to any finite float32 gives a finite one, however often it is done.
So it is enough to bound what one step adds. With gradients below 2^51 and learning rates of
at most 1e6 < 2^20:

* a square is below 2^102, so Adagrad's sum and Adam's squares stay finite;
* momentum, at most 1, adds up to below 2^76, where float32 takes no more of it; its step is
  below 2^96;
* a step of SGD is below 2^71, one of Adagrad or Adam below 2^98;
* a mean square of a row is no more than its largest square; AdamW's decay leaves at most the
  value, with either sign; FTRL cuts what it multiplies to 3e38, below float32's largest.

What a rule's own numbers and the states that come from files must be for this is in the rules'
records (``tables.rules``). Weight decay's part of a gradient is cut to the same bound where a
value is so large that it would be beyond it.
"""

__all__ = [
    "GRADIENT_LOG2",
    "LARGEST_GRADIENT",
    "MAX_DAY",
    "MAX_LEARNING_RATE",
    "MAX_WEIGHT",
]

GRADIENT_LOG2 = 51
"""Magnitudes of gradients and differences are below 2 to the power of this."""

LARGEST_GRADIENT = 2.0**GRADIENT_LOG2
"""What they are below."""

MAX_LEARNING_RATE = 1e6
"""Learning rates are from 0 to this."""

MAX_WEIGHT = 2.0**53
"""A push counts for so many examples at most."""

MAX_DAY = 200_000
"""Days are counted from 1970 up to this, some time in the year 2517."""
