"""float16: half the bytes, 11 bits of fraction, at most 65504."""

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.codecs.record import Codec, Exponent
from paramfleet_shared.tables.kernels.codecs.dither import dither_float16
from paramfleet_shared.tables.kernels.codecs.narrow import from_float16, to_float16

__all__ = ["FLOAT16"]


def _encode(
    values: NDArray[np.float32], numbers: NDArray[np.float16], _scales: None, _width: int
) -> None:
    to_float16(values, values.view(np.uint32), numbers.view(np.uint16))


def _dither(values: NDArray[np.float32], numbers: NDArray[np.float16], salt: int) -> None:
    bits = values.view(np.uint32)
    dither_float16(values, bits, numbers.view(np.uint16), np.uint32(salt))


def _decode(
    numbers: NDArray[np.float16], _scales: None, values: NDArray[np.float32], _width: int
) -> None:
    from_float16(numbers.view(np.uint16), values, values.view(np.uint32))


FLOAT16 = Codec(
    name="float16",
    stored="float16",
    torch_dtype="float16",
    largest=65504.0,
    rounding="chance",
    exponent=Exponent(mask=0x7C00, bias=15, place=10),
    encode=_encode,
    decode=_decode,
    dither=_dither,
)
