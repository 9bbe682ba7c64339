"""float32, which travels as it is."""

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.codecs.record import Codec, Exponent

__all__ = ["FLOAT32"]


def _encode(
    values: NDArray[np.float32], numbers: NDArray[np.float32], _scales: None, _width: int
) -> None:
    numbers[:] = values


def _decode(
    numbers: NDArray[np.float32], _scales: None, values: NDArray[np.float32], _width: int
) -> None:
    values[:] = numbers


FLOAT32 = Codec(
    name="float32",
    stored="float32",
    torch_dtype="float32",
    largest=float(np.finfo(np.float32).max),
    rounding="exact",
    direct=True,
    exponent=Exponent(mask=0x7F800000, bias=127, place=23),
    encode=_encode,
    decode=_decode,
)
