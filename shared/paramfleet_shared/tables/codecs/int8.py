"""int8: a quarter of the bytes, and a scale a row (``kernels.codecs.int8`` says which)."""

from paramfleet_shared.tables.codecs.record import Codec
from paramfleet_shared.tables.kernels.codecs.int8 import (
    feed_back_int8,
    from_int8,
    largest_of,
    to_int8,
)

__all__ = ["INT8"]


INT8 = Codec(
    name="int8",
    stored="int8",
    torch_dtype="int8",
    largest=127.0,
    rounding="feedback",
    has_scales=True,
    largest_of=largest_of,
    least=-127,
    encode=to_int8,
    decode=from_int8,
    feed_back=feed_back_int8,
    one_value="bfloat16",
    answers="float16",
)
