"""Cuts received bytes into frames, and lets DATA payloads land in their final place.

The owner reads from its socket into ``get_buffer()``. Between frames that is a
scratch buffer; inside a DATA payload it is the rest of that payload's place in
the body, so that a large body is never copied.
"""

from typing import Protocol

from h2.errors import ErrorCodes

from paramfleet_shared.http2.events import ConnectionFault
from paramfleet_shared.http2.machine import FRAME_HEADER
from paramfleet_shared.wire.limits import Limits

__all__ = ["FrameReader", "FrameSink"]

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA = 0x0
_HEADERS = 0x1
_CONTINUATION = 0x9
_PADDED = 0x8
_LENGTH_OF_TYPE = {0x2: 5, 0x3: 4, 0x6: 8, 0x8: 4}  # PRIORITY, RST_STREAM, PING, WINDOW_UPDATE
_MIN_SCRATCH_BYTES = 64 << 10


class FrameSink(Protocol):
    """Who the frames are for. Its methods may raise ``ConnectionFault``."""

    def place_data(self, stream_id: int, num_bytes: int) -> memoryview | None:
        """Return where a payload must go, or None to throw it away."""
        ...

    def take_data(self, stream_id: int, flags: int, num_bytes: int, *, placed: bool) -> None:
        """Take note of a payload that is now in its place, or thrown away."""
        ...

    def take_padded_data(self, stream_id: int, flags: int, payload: memoryview) -> None:
        """Take a padded DATA frame's payload, padding and all."""
        ...

    def take_frame(
        self, frame_type: int, flags: int, stream_id: int, payload: memoryview
    ) -> None:
        """Take any other frame; ``payload`` is valid until the call returns."""
        ...


class FrameReader:
    """The receiving half of a connection's byte stream.

    Args:
        sink: Who the frames are for.
        limits: Sizes a frame may not pass.
        expect_preface: True for a server, whose peer starts with the preface.
    """

    def __init__(self, sink: FrameSink, limits: Limits, *, expect_preface: bool) -> None:
        self._sink = sink
        self._limits = limits
        self._expect_preface = expect_preface
        self._frame_room = limits.max_control_frame_bytes + FRAME_HEADER.size
        self._scratch = memoryview(bytearray(max(_MIN_SCRATCH_BYTES, 2 * self._frame_room)))
        self._start = self._end = 0  # unread bytes of the scratch
        self._payload: _Payload | None = None
        self._block_bytes = 0

    def get_buffer(self) -> memoryview:
        """Return where to put the next bytes; never empty."""
        payload = self._payload
        if payload is None:
            return self._scratch[self._end :]
        if payload.place is None:
            return self._scratch[: payload.num_missing]
        return payload.place

    def buffer_updated(self, num_bytes: int) -> None:
        """Take note of ``num_bytes`` written to the start of ``get_buffer()``.

        Raises:
            ConnectionFault: if a frame breaks a limit, or the sink says so.
            HyperframeError: if a frame is malformed.
        """
        payload = self._payload
        if payload is None:
            self._end += num_bytes
            self._cut_frames()
        else:
            payload.advance(num_bytes)
            if not payload.num_missing:
                self._finish_payload(payload)

    def _cut_frames(self) -> None:
        if self._expect_preface and not self._take_preface():
            return
        while self._end - self._start >= FRAME_HEADER.size:
            high, low, frame_type, flags, stream_id = FRAME_HEADER.unpack_from(
                self._scratch, self._start
            )
            num_bytes = high << 8 | low
            if num_bytes > self._limits.max_frame_bytes:
                raise ConnectionFault(ErrorCodes.FRAME_SIZE_ERROR, "frame over the limit")
            stream_id &= 0x7FFF_FFFF
            if frame_type == _DATA:
                if not self._begin_payload(stream_id, flags, num_bytes):
                    return
            elif not self._take_control(frame_type, flags, stream_id, num_bytes):
                break
        self._make_room()

    def _take_preface(self) -> bool:
        come = min(self._end, len(_PREFACE))
        if self._scratch[:come] != _PREFACE[:come]:
            raise ConnectionFault(ErrorCodes.PROTOCOL_ERROR, "the peer does not speak HTTP/2")
        if come < len(_PREFACE):
            return False
        self._expect_preface = False
        self._start = come
        return True

    def _take_control(
        self, frame_type: int, flags: int, stream_id: int, num_bytes: int
    ) -> bool:
        """Hand over one whole frame; False if more bytes must come first.

        Raises:
            ConnectionFault: if the frame or the header block is too long.
        """
        limit = self._limits.max_control_frame_bytes
        if num_bytes > limit or num_bytes != _LENGTH_OF_TYPE.get(frame_type, num_bytes):
            raise ConnectionFault(ErrorCodes.FRAME_SIZE_ERROR, "frame of a wrong length")
        begin = self._start + FRAME_HEADER.size
        if begin + num_bytes > self._end:
            return False
        if frame_type in {_HEADERS, _CONTINUATION}:  # CVE-2024-27316: bound the block
            self._block_bytes = num_bytes + (
                self._block_bytes if frame_type == _CONTINUATION else 0
            )
            if self._block_bytes > limit:
                raise ConnectionFault(ErrorCodes.ENHANCE_YOUR_CALM, "header block too long")
        self._start = begin + num_bytes
        self._sink.take_frame(
            frame_type, flags, stream_id, self._scratch[begin : begin + num_bytes]
        )
        return True

    def _begin_payload(self, stream_id: int, flags: int, num_bytes: int) -> bool:
        """Start a DATA payload; False if the rest of it must come first."""
        padded = bool(flags & _PADDED)
        place = (
            memoryview(bytearray(num_bytes))  # rare: through a temporary
            if padded
            else self._sink.place_data(stream_id, num_bytes)
        )
        payload = _Payload(stream_id, flags, num_bytes, place)
        begin = self._start + FRAME_HEADER.size
        come = min(num_bytes, self._end - begin)
        if place is not None:
            place[:come] = self._scratch[begin : begin + come]
        payload.advance(come)
        self._start = begin + come
        if payload.num_missing:
            self._start = self._end = 0
            self._payload = payload
            return False
        self._finish_payload(payload)
        return True

    def _finish_payload(self, payload: "_Payload") -> None:
        self._payload = None
        if payload.padded is not None:
            self._sink.take_padded_data(payload.stream_id, payload.flags, payload.padded)
        else:
            self._sink.take_data(
                payload.stream_id,
                payload.flags,
                payload.num_bytes,
                placed=payload.place is not None,
            )

    def _make_room(self) -> None:
        """Keep room for one whole frame behind what is unread."""
        if self._start == self._end:
            self._start = self._end = 0
        elif len(self._scratch) - self._start < self._frame_room:
            unread = bytes(self._scratch[self._start : self._end])
            self._scratch[: len(unread)] = unread
            self._start, self._end = 0, len(unread)


class _Payload:
    """A DATA payload that is coming in."""

    __slots__ = ("flags", "num_bytes", "num_missing", "padded", "place", "stream_id")

    def __init__(
        self, stream_id: int, flags: int, num_bytes: int, place: memoryview | None
    ) -> None:
        self.stream_id = stream_id
        self.flags = flags
        self.num_bytes = self.num_missing = num_bytes
        self.place = place
        self.padded = place if flags & _PADDED else None

    def advance(self, num_bytes: int) -> None:
        self.num_missing -= num_bytes
        if self.place is not None:
            self.place = self.place[num_bytes:]
