"""Frames as bytes: their types, flags, error codes and payloads (RFC 9113, 4 to 7)."""

import struct
from collections.abc import Iterator, Mapping
from enum import IntEnum, IntFlag

__all__ = [
    "DEFAULT_FRAME_BYTES",
    "DEFAULT_HEADER_TABLE_BYTES",
    "DEFAULT_WINDOW_BYTES",
    "FRAME_HEADER",
    "MAX_FRAME_BYTES",
    "MAX_STREAM_ID",
    "MAX_WINDOW_BYTES",
    "PREFACE",
    "ErrorCode",
    "Flag",
    "FrameType",
    "Setting",
    "frame",
    "frame_header",
    "goaway",
    "read_pair",
    "read_settings",
    "read_u31",
    "reset",
    "settings",
    "window_update",
]

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""What a client says first."""

FRAME_HEADER = struct.Struct(">HBBBL")
"""Length (high 16 bits, low 8), type, flags, stream identifier."""

MAX_STREAM_ID = (1 << 31) - 1
MAX_WINDOW_BYTES = (1 << 31) - 1
MAX_FRAME_BYTES = (1 << 24) - 1
DEFAULT_FRAME_BYTES = 1 << 14
DEFAULT_WINDOW_BYTES = (1 << 16) - 1
DEFAULT_HEADER_TABLE_BYTES = 4096

_U32 = struct.Struct(">L")
_PAIR = struct.Struct(">LL")
_SETTING = struct.Struct(">HL")


class FrameType(IntEnum):
    """RFC 9113, section 6."""

    DATA = 0x0
    HEADERS = 0x1
    PRIORITY = 0x2
    RST_STREAM = 0x3
    SETTINGS = 0x4
    PUSH_PROMISE = 0x5
    PING = 0x6
    GOAWAY = 0x7
    WINDOW_UPDATE = 0x8
    CONTINUATION = 0x9


class Flag(IntFlag):
    """What each means depends on the frame's type; END_STREAM and ACK are one bit."""

    END_STREAM = 0x1
    ACK = 0x1
    END_HEADERS = 0x4
    PADDED = 0x8
    PRIORITY = 0x20


class Setting(IntEnum):
    """RFC 9113, section 6.5.2."""

    HEADER_TABLE_SIZE = 0x1
    ENABLE_PUSH = 0x2
    MAX_CONCURRENT_STREAMS = 0x3
    INITIAL_WINDOW_SIZE = 0x4
    MAX_FRAME_SIZE = 0x5
    MAX_HEADER_LIST_SIZE = 0x6


class ErrorCode(IntEnum):
    """RFC 9113, section 7."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    SETTINGS_TIMEOUT = 0x4
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    CONNECT_ERROR = 0xA
    ENHANCE_YOUR_CALM = 0xB
    INADEQUATE_SECURITY = 0xC
    HTTP_1_1_REQUIRED = 0xD


def frame_header(num_bytes: int, frame_type: int, flags: int, stream_id: int) -> bytes:
    """Return the nine bytes before a payload of ``num_bytes``."""
    return FRAME_HEADER.pack(num_bytes >> 8, num_bytes & 255, frame_type, flags, stream_id)


def frame(frame_type: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """Return a whole frame."""
    return frame_header(len(payload), frame_type, flags, stream_id) + payload


def settings(values: Mapping[Setting, int]) -> bytes:
    """Return a SETTINGS frame."""
    return frame(
        FrameType.SETTINGS, 0, 0, b"".join(_SETTING.pack(*item) for item in values.items())
    )


def window_update(stream_id: int, num_bytes: int) -> bytes:
    """Return a frame that opens a window; stream 0 is the connection."""
    return frame(FrameType.WINDOW_UPDATE, 0, stream_id, _U32.pack(num_bytes))


def reset(stream_id: int, code: int) -> bytes:
    """Return a frame that ends a stream."""
    return frame(FrameType.RST_STREAM, 0, stream_id, _U32.pack(code))


def goaway(last_stream_id: int, code: int) -> bytes:
    """Return a frame that announces the end; streams up to the last may be answered."""
    return frame(FrameType.GOAWAY, 0, 0, _PAIR.pack(last_stream_id, code))


def read_u31(payload: memoryview, offset: int = 0) -> int:
    """Return an identifier or increment, without its reserved bit."""
    number: int = _U32.unpack_from(payload, offset)[0]
    return number & 0x7FFF_FFFF


def read_pair(payload: memoryview) -> tuple[int, int]:
    """Return the last stream and the code of a GOAWAY; its debug data is not read."""
    last, code = _PAIR.unpack_from(payload)
    return last & MAX_STREAM_ID, code


def read_settings(payload: memoryview) -> Iterator[tuple[int, int]]:
    """Return the settings of a payload whose length is a multiple of six."""
    return _SETTING.iter_unpack(payload)
