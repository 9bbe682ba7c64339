"""int8: a quarter of the bytes, and a scale a row (``kernels.codecs.int8`` says which)."""

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.codecs.record import Codec, Encoded
from paramfleet_shared.tables.kernels.codecs.int8 import (
    feed_back_int8,
    from_int8,
    largest_of,
    to_int8,
)

__all__ = ["INT8"]


def _encode(values: NDArray[np.float32], out: Encoded, width: int, _salt: int | None) -> None:
    assert out.scales is not None, "int8 has scales"
    to_int8(values, out.rows, out.scales, width)


def _decode(encoded: Encoded, out: NDArray[np.float32], width: int) -> None:
    assert encoded.scales is not None, "int8 has scales"
    from_int8(encoded.rows, encoded.scales, out, width)


INT8 = Codec(
    name="int8",
    stored="int8",
    torch_dtype="int8",
    largest=127.0,
    rounding="feedback",
    has_scales=True,
    largest_of=largest_of,
    encode=_encode,
    decode=_decode,
    feed_back=feed_back_int8,
    one_value="bfloat16",
    answers="float16",
)
