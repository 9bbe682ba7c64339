"""Cuts received bytes into frames, and lets DATA payloads land in their final place.

The owner reads from its socket into ``get_buffer()``. Between frames that is a
scratch buffer; inside a DATA payload it is the rest of that payload's place in
the body, so that a large body is never copied.
"""

from typing import Protocol, cast

from paramfleet_shared.net.http2.events import ConnectionFault
from paramfleet_shared.net.http2.frames import FRAME_HEADER, PREFACE, ErrorCode, Flag, FrameType
from paramfleet_shared.net.wire.limits import Limits

__all__ = ["FrameReader", "FrameSink"]

_DATA = int(FrameType.DATA)
_PADDED = int(Flag.PADDED)
_HEADER_BYTES = FRAME_HEADER.size
_MIN_SCRATCH_BYTES = 64 << 10


class FrameSink(Protocol):
    """Who the frames are for. Its methods may raise ``ConnectionFault``."""

    def begin_data(self, stream_id: int, flags: int, num_bytes: int) -> memoryview | None:
        """Return where a payload must go, or None to throw it away."""
        ...

    def end_data(self, stream_id: int, flags: int, num_bytes: int) -> None:
        """Take note that a payload is in its place, or thrown away."""
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
        self._max_frame_bytes = limits.max_frame_bytes
        self._max_control_bytes = limits.max_control_frame_bytes
        self._expect_preface = expect_preface
        self._frame_bytes = limits.max_control_frame_bytes + _HEADER_BYTES
        self._scratch = memoryview(bytearray(max(_MIN_SCRATCH_BYTES, 2 * self._frame_bytes)))
        self._start = self._end = 0  # unread bytes of the scratch
        self._payload: _Payload | None = None
        self._num_partial = 0
        self._is_partial = False
        self._stopped = False

    def stop(self) -> None:
        """Take no more frames: whatever still comes is thrown away."""
        self._stopped = True
        self._payload = None
        self._start = self._end = 0

    def release(self) -> None:
        """Forget the sink, which holds this reader; it has stopped, and nothing comes."""
        self._sink = cast("FrameSink", None)

    @property
    def partial(self) -> "tuple[object, int] | None":
        """Return which frame has come in part, and the length of its payload if known.

        The first is another object for another frame; None if no frame has begun.
        """
        payload = self._payload
        if payload is not None:
            return payload, payload.num_bytes
        return (self._num_partial, 0) if self._is_partial else None

    def num_come(self, stream_id: int) -> int:
        """Return the bytes that have come of this stream's payload under way."""
        payload = self._payload
        if payload is None or payload.stream_id != stream_id:
            return 0
        return payload.num_bytes - payload.num_missing

    def discard(self, stream_id: int) -> None:
        """Discard the rest of this stream's payload in transfer, and release its buffer."""
        payload = self._payload
        if payload is not None and payload.stream_id == stream_id and payload.padded is None:
            payload.place = None

    def get_buffer(self) -> memoryview:
        """Return where to put the next bytes; never empty."""
        payload = self._payload
        if payload is None:
            return self._scratch[self._end :] if self._end else self._scratch
        if payload.place is None:
            return self._scratch[: payload.num_missing]
        return payload.place

    def is_within(self, num_bytes: int) -> bool:
        """Take note of bytes as ``buffer_updated`` does, if a payload lacks more than them."""
        payload = self._payload
        if payload is None or num_bytes >= payload.num_missing:
            return False
        payload.advance(num_bytes)
        return True

    def buffer_updated(self, num_bytes: int) -> None:
        """Take note of ``num_bytes`` written to the start of ``get_buffer()``.

        Raises:
            ConnectionFault: if a frame breaks a limit, or the sink says so.
        """
        payload = self._payload
        if payload is None:
            self._end += num_bytes
            self._cut_frames()
        else:
            payload.advance(num_bytes)
            if not payload.num_missing:
                self._payload = None
                self._finish_payload(payload)

    def _cut_frames(self) -> None:
        if self._expect_preface and not self._take_preface():
            return
        scratch, start, end = self._scratch, self._start, self._end
        while end - start >= _HEADER_BYTES and not self._stopped:
            high, low, frame_type, flags, stream_id = FRAME_HEADER.unpack_from(scratch, start)
            num_bytes = high << 8 | low
            if num_bytes > self._max_frame_bytes:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "frame over the limit")
            begin = start + _HEADER_BYTES
            stop = begin + num_bytes
            if frame_type == _DATA:
                self._take_data(stream_id & 0x7FFF_FFFF, flags, begin, num_bytes)
                if stop > end:  # the rest goes to its place without us
                    start = end
                    break
            elif num_bytes > self._max_control_bytes:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "frame of a wrong length")
            elif stop > end:
                break
            else:
                self._sink.take_frame(
                    frame_type, flags, stream_id & 0x7FFF_FFFF, scratch[begin:stop]
                )
            start = stop
        self._keep_from(start)

    def _take_preface(self) -> bool:
        come = min(self._end, len(PREFACE))
        if self._scratch[:come] != PREFACE[:come]:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "the peer does not use HTTP/2")
        if come < len(PREFACE):
            return False
        self._expect_preface = False
        self._start = come
        return True

    def _take_data(self, stream_id: int, flags: int, begin: int, num_bytes: int) -> None:
        """Put what has come of a payload in its place; the rest will follow, if any."""
        padded = bool(flags & _PADDED)
        place = (
            memoryview(bytearray(num_bytes))  # rare: through a temporary
            if padded
            else self._sink.begin_data(stream_id, flags, num_bytes)
        )
        come = min(num_bytes, self._end - begin)
        if place is not None:
            place[:come] = self._scratch[begin : begin + come]
        if come == num_bytes and not padded:
            self._sink.end_data(stream_id, flags, num_bytes)
            return
        payload = _Payload(stream_id, flags, num_bytes, place)
        payload.advance(come)
        if payload.num_missing:
            self._payload = payload
        else:
            self._finish_payload(payload)

    def _finish_payload(self, payload: "_Payload") -> None:
        if payload.padded is not None:
            self._sink.take_padded_data(payload.stream_id, payload.flags, payload.padded)
        else:
            self._sink.end_data(payload.stream_id, payload.flags, payload.num_bytes)

    def _keep_from(self, start: int) -> None:
        """Forget what was read before ``start``; keep room for one whole frame behind it."""
        if start == self._end or self._stopped:
            start = self._end = 0
            self._is_partial = False
            self._start = start
            return
        if start != self._start or not self._is_partial:  # another frame than before
            self._num_partial += 1
            self._is_partial = True
        if len(self._scratch) - start < self._frame_bytes:
            unread = bytes(self._scratch[start : self._end])
            self._scratch[: len(unread)] = unread
            start, self._end = 0, len(unread)
        self._start = start


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
