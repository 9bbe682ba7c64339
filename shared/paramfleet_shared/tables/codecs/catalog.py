"""All formats. To add one is to write its module, and to name it here."""

from typing import Literal, get_args

from paramfleet_shared.tables.codecs.bfloat16 import BFLOAT16
from paramfleet_shared.tables.codecs.float8_e4m3 import FLOAT8_E4M3
from paramfleet_shared.tables.codecs.float16 import FLOAT16
from paramfleet_shared.tables.codecs.float32 import FLOAT32
from paramfleet_shared.tables.codecs.int8 import INT8
from paramfleet_shared.tables.codecs.record import Codec

__all__ = ["CODECS", "WIRE_DTYPES", "WireDtype"]

WireDtype = Literal["float32", "float16", "bfloat16", "int8", "float8_e4m3"]
"""How the numbers of a part travel."""

WIRE_DTYPES: tuple[WireDtype, ...] = get_args(WireDtype)

CODECS: dict[WireDtype, Codec] = dict(
    zip(WIRE_DTYPES, (FLOAT32, FLOAT16, BFLOAT16, INT8, FLOAT8_E4M3), strict=True)
)
"""By name."""

assert all(name == codec.name for name, codec in CODECS.items()), "they are in one order"
