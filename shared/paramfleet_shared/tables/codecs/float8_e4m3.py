"""float8 e4m3: a quarter of the bytes, 4 bits of fraction, and a power of two a row."""

from paramfleet_shared.tables.codecs.record import Codec
from paramfleet_shared.tables.kernels.codecs.float8 import (
    LARGEST,
    NAN,
    feed_back_float8,
    from_float8,
    largest_of,
    to_float8,
)

__all__ = ["FLOAT8_E4M3"]


FLOAT8_E4M3 = Codec(
    name="float8_e4m3",
    stored="int8",  # the bits
    torch_dtype="float8_e4m3fn",
    largest=LARGEST,
    rounding="feedback",
    has_scales=True,
    largest_of=largest_of,
    nan=NAN,
    encode=to_float8,
    decode=from_float8,
    feed_back=feed_back_float8,
    one_value="bfloat16",
    answers="float16",
)
