"""bfloat16: half the bytes, 8 bits of fraction, the range of float32."""

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.codecs.record import Codec, Exponent
from paramfleet_shared.tables.kernels.codecs.dither import dither_bfloat16
from paramfleet_shared.tables.kernels.codecs.narrow import from_bfloat16, to_bfloat16

__all__ = ["BFLOAT16"]


def _encode(
    values: NDArray[np.float32], numbers: NDArray[np.uint16], _scales: None, _width: int
) -> None:
    to_bfloat16(values.view(np.uint32), numbers)


def _dither(values: NDArray[np.float32], numbers: NDArray[np.uint16], salt: int) -> None:
    dither_bfloat16(values.view(np.uint32), numbers, np.uint32(salt))


def _decode(
    numbers: NDArray[np.uint16], _scales: None, values: NDArray[np.float32], _width: int
) -> None:
    from_bfloat16(numbers, values.view(np.uint32))


BFLOAT16 = Codec(
    name="bfloat16",
    stored="uint16",
    torch_dtype="bfloat16",
    largest=float.fromhex("0x1.fep127"),
    rounding="chance",
    direct=True,
    exponent=Exponent(mask=0x7F80, bias=127, place=7),
    encode=_encode,
    decode=_decode,
    dither=_dither,
)
