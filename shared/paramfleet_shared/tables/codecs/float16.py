"""float16: half the bytes, 11 bits of fraction, at most 65504."""

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.codecs.record import Codec, Encoded, Exponent
from paramfleet_shared.tables.kernels.codecs.dither import dither_float16
from paramfleet_shared.tables.kernels.codecs.narrow import from_float16, to_float16

__all__ = ["FLOAT16"]


def _encode(values: NDArray[np.float32], out: Encoded, _width: int, salt: int | None) -> None:
    bits, numbers = values.view(np.uint32), out.rows.view(np.uint16)
    if salt is None:
        to_float16(values, bits, numbers)
    else:
        dither_float16(values, bits, numbers, np.uint32(salt))


def _decode(encoded: Encoded, out: NDArray[np.float32], _width: int) -> None:
    from_float16(encoded.rows.view(np.uint16), out, out.view(np.uint32))


FLOAT16 = Codec(
    name="float16",
    stored="float16",
    torch_dtype="float16",
    largest=65504.0,
    rounding="chance",
    exponent=Exponent(mask=0x7C00, bias=15, place=10),
    encode=_encode,
    decode=_decode,
)
