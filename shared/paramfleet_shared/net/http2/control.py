"""Frames that carry no message: settings, windows, signs of life, ends.

What they mean is the same on both sides; what follows is the connection's to say.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import lru_cache
from typing import Any, ClassVar

from paramfleet_shared.net.http2 import frames
from paramfleet_shared.net.http2.events import ConnectionFault, Event, ProtocolFault, StreamLost
from paramfleet_shared.net.http2.frames import ErrorCode, Flag, FrameType, Setting
from paramfleet_shared.net.http2.headers.hpack_memo import StaticEncoder
from paramfleet_shared.net.http2.limits.floods import FloodGuard
from paramfleet_shared.net.http2.sender import Sender
from paramfleet_shared.net.http2.stream import Stream
from paramfleet_shared.net.wire.limits import Limits

__all__ = ["ControlFrames"]

_ACK = int(Flag.ACK)
_MIN_WINDOW_INCREMENT = 4096  # smaller ones are counted; larger ones soon overflow the window
_MAX_REMEMBERED_RESETS = 1024
_PRIORITY_BYTES = 5


class ControlFrames(ABC):
    """The part of a connection that its peer controls by frames without a message."""

    client_side: ClassVar[bool]

    def __init__(self, limits: Limits, now: float) -> None:
        self._limits = limits
        self._now = now
        self._encoder = StaticEncoder()
        self._sender = Sender(limits)
        self._floods = FloodGuard(limits)
        self._streams: dict[int, Stream] = {}
        self._reset_by_us: dict[int, None] = {}
        self._events: list[Event] = []
        self._greeted = False
        """Whether the peer's first SETTINGS came."""
        self._receive_window = max(frames.DEFAULT_WINDOW_BYTES, limits.connection_window_bytes)
        self._stream_receive_window = max(
            frames.DEFAULT_WINDOW_BYTES, limits.stream_window_bytes
        )
        """A new stream's; ours alone once the peer has acknowledged our settings."""
        self._stream_send_window = frames.DEFAULT_WINDOW_BYTES
        self._greet()

    @property
    def num_streams(self) -> int:
        """Return the number of calls in flight."""
        return len(self._streams)

    def reset(self, stream_id: int, code: ErrorCode) -> None:
        """Give up a stream; nothing happens if it is over."""
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._forget(stream)
            self._write_reset(stream_id, code)

    # what the two sides do differently

    @abstractmethod
    def _is_idle(self, stream_id: int) -> bool:
        """Return whether a stream has never been opened."""

    @abstractmethod
    def _on_reset(self, stream_id: int, code: int) -> None: ...

    @abstractmethod
    def _on_goaway(self, last_stream_id: int, code: int) -> None: ...

    @abstractmethod
    def _on_setting(self, name: int, value: int) -> None:
        """Take note of a setting that concerns one side alone."""

    @abstractmethod
    def _on_settings(self) -> None:
        """Take note that the peer's settings are here, or have changed."""

    @abstractmethod
    def _on_ping_ack(self, payload: bytes) -> None:
        """Take note of an answer to ``ping``."""

    # frames in

    def _take_control_frame(
        self, frame_type: int, flags: int, stream_id: int, payload: memoryview
    ) -> None:
        react = self._ON_FRAME.get(frame_type)
        if react is not None:
            react(self, flags, stream_id, payload)
        elif frame_type == FrameType.CONTINUATION:
            raise ProtocolFault("CONTINUATION out of place")
        else:  # unknown ones are ignored (RFC 9113, section 5.5)
            self._floods.count_control(self._now)

    def _on_priority(self, flags: int, stream_id: int, payload: memoryview) -> None:
        del flags  # ignored but for its rules: RFC 9113 has taken priorities out
        self._floods.count_control(self._now)
        if not stream_id:
            raise ProtocolFault("PRIORITY of no stream")
        if len(payload) != _PRIORITY_BYTES:
            self._stream_fault(stream_id, ErrorCode.FRAME_SIZE_ERROR, "PRIORITY of odd length")
        elif frames.read_u31(payload) == stream_id:
            self._stream_fault(stream_id, ErrorCode.PROTOCOL_ERROR, "depends on itself")

    def _on_rst_stream(self, flags: int, stream_id: int, payload: memoryview) -> None:
        del flags
        self._floods.count_control(self._now)
        _check_length(payload, 4)
        if not stream_id or self._is_idle(stream_id):
            raise ProtocolFault("RST_STREAM of a stream that was never opened")
        self._on_reset(stream_id, frames.read_u31(payload))

    def _on_settings_frame(self, flags: int, stream_id: int, payload: memoryview) -> None:
        self._floods.count_control(self._now)
        if stream_id:
            raise ProtocolFault("SETTINGS of a stream")
        if len(payload) % 6 or (flags & _ACK and payload):
            raise ProtocolFault("SETTINGS of odd length", ErrorCode.FRAME_SIZE_ERROR)
        self._greeted = True
        if flags & _ACK:
            self._on_settings_acknowledged()
            return
        for name, value in frames.read_settings(payload):
            self._apply_setting(name, value)
        self._write(frames.frame(FrameType.SETTINGS, _ACK, 0))
        self._sender.unblock()
        self._on_settings()

    def _apply_setting(self, name: int, value: int) -> None:
        if name == Setting.HEADER_TABLE_SIZE:
            self._encoder.limit_table(value)
        elif name == Setting.ENABLE_PUSH:
            if value > (0 if self.client_side else 1):
                raise ProtocolFault("an impossible ENABLE_PUSH")
        elif name == Setting.INITIAL_WINDOW_SIZE:
            self._move_send_windows(value)
        elif name == Setting.MAX_FRAME_SIZE:
            if not frames.DEFAULT_FRAME_BYTES <= value <= frames.MAX_FRAME_BYTES:
                raise ProtocolFault("an impossible MAX_FRAME_SIZE")
            self._sender.limit_frames(value)
        else:
            self._on_setting(name, value)

    def _move_send_windows(self, initial: int) -> None:
        # open streams get it too (RFC 9113, section 6.9.2)
        change = initial - self._stream_send_window
        self._stream_send_window = initial
        windows = [s.send_window + change for s in self._streams.values()]
        if max(initial, *windows, 0) > frames.MAX_WINDOW_BYTES:
            raise ProtocolFault("a window over the limit", ErrorCode.FLOW_CONTROL_ERROR)
        for stream, window in zip(self._streams.values(), windows, strict=True):
            stream.send_window = window

    def _on_settings_acknowledged(self) -> None:
        """Hold the peer to our window from now on, where it is less than the default."""
        change = self._limits.stream_window_bytes - self._stream_receive_window
        if change:
            self._stream_receive_window += change
            for stream in self._streams.values():
                stream.receive_window += change

    def _on_push_promise(self, flags: int, stream_id: int, payload: memoryview) -> None:
        del flags, stream_id, payload
        raise ProtocolFault("PUSH_PROMISE, which was not allowed")

    def _on_ping(self, flags: int, stream_id: int, payload: memoryview) -> None:
        self._floods.count_control(self._now)
        _check_length(payload, 8)
        if stream_id:
            raise ProtocolFault("PING of a stream")
        if flags & _ACK:
            self._on_ping_ack(bytes(payload))
        else:
            self._write(frames.frame(FrameType.PING, _ACK, 0, bytes(payload)))

    def _on_goaway_frame(self, flags: int, stream_id: int, payload: memoryview) -> None:
        del flags
        self._floods.count_control(self._now)
        if stream_id:
            raise ProtocolFault("GOAWAY of a stream")
        if len(payload) < 8:
            raise ProtocolFault("GOAWAY of odd length", ErrorCode.FRAME_SIZE_ERROR)
        self._on_goaway(*frames.read_pair(payload))

    def _on_window_update(self, flags: int, stream_id: int, payload: memoryview) -> None:
        del flags
        _check_length(payload, 4)
        num_bytes = frames.read_u31(payload)
        if num_bytes < _MIN_WINDOW_INCREMENT:
            self._floods.count_control(self._now)
        if not stream_id:
            self._sender.window += num_bytes
            if not num_bytes:
                raise ProtocolFault("a window opened by nothing")
            if self._sender.window > frames.MAX_WINDOW_BYTES:
                raise ProtocolFault("a window over the limit", ErrorCode.FLOW_CONTROL_ERROR)
        else:
            self._open_stream(stream_id, num_bytes)
        self._sender.unblock()

    def _open_stream(self, stream_id: int, num_bytes: int) -> None:
        if self._is_idle(stream_id):
            raise ProtocolFault("WINDOW_UPDATE of a stream that was never opened")
        stream = self._streams.get(stream_id)
        if not num_bytes:
            self._stream_fault(stream_id, ErrorCode.PROTOCOL_ERROR, "opened by nothing")
        elif stream is not None:
            stream.send_window += num_bytes
            if stream.send_window > frames.MAX_WINDOW_BYTES:
                self._stream_fault(
                    stream_id, ErrorCode.FLOW_CONTROL_ERROR, "a window over the limit"
                )

    # frames out, and ends of streams

    def _greet(self) -> None:
        """Queue our settings, and the connection's window."""
        limits = self._limits
        self._write(
            _greeting(
                None if self.client_side else limits.max_streams,
                limits.stream_window_bytes,
                limits.max_frame_bytes,
                limits.max_control_frame_bytes,
                self._receive_window,
            )
        )

    def _write(self, whole_frame: bytes) -> None:
        self._sender.out.append(whole_frame)

    def _write_reset(self, stream_id: int, code: int) -> None:
        self._write(frames.reset(stream_id, code))
        self._reset_by_us[stream_id] = None
        if len(self._reset_by_us) > _MAX_REMEMBERED_RESETS:
            del self._reset_by_us[next(iter(self._reset_by_us))]

    def _stream_fault(self, stream_id: int, code: ErrorCode, reason: str) -> None:
        """End one stream over what the peer did wrong; the others go on."""
        self._floods.count_control(self._now)
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._forget(stream)
            self._events.append(StreamLost(stream_id, reason, processed=True))
        self._write_reset(stream_id, code)

    def _forget(self, stream: Stream) -> None:
        """Drop a stream that is over, and all memory it held."""
        del self._streams[stream.stream_id]
        if stream.outgoing is not None:
            self._sender.drop(stream)
        stream.release()
        if stream.num_shared:
            self._hold(stream, 0)

    @abstractmethod
    def _hold(self, stream: Stream, num_bytes: int) -> None:
        """Take note of what a stream holds of its server's memory."""

    # functions, not bound methods: those would be a cycle, and a lost connection would
    # keep its memory until cycles are collected
    _ON_FRAME: ClassVar[dict[int, Callable[[Any, int, int, memoryview], None]]] = {
        FrameType.PRIORITY: _on_priority,
        FrameType.RST_STREAM: _on_rst_stream,
        FrameType.SETTINGS: _on_settings_frame,
        FrameType.PUSH_PROMISE: _on_push_promise,
        FrameType.PING: _on_ping,
        FrameType.GOAWAY: _on_goaway_frame,
        FrameType.WINDOW_UPDATE: _on_window_update,
    }


@lru_cache(maxsize=16)
def _greeting(
    num_streams: int | None,
    stream_window_bytes: int,
    frame_bytes: int,
    header_list_bytes: int,
    window_bytes: int,
) -> bytes:
    """Return what one side says first: a process has few kinds of limits, and many connections.

    Args:
        num_streams: How many streams a client may open; None for the client's own side.
        stream_window_bytes: What a stream may send before it must wait.
        frame_bytes: The longest frame that is taken.
        header_list_bytes: The longest list of headers that is taken.
        window_bytes: What the connection may send before it must wait.
    """
    own = (
        {Setting.ENABLE_PUSH: 0}
        if num_streams is None
        else {Setting.MAX_CONCURRENT_STREAMS: num_streams}
    )
    greeting = frames.settings(
        {
            Setting.HEADER_TABLE_SIZE: frames.DEFAULT_HEADER_TABLE_BYTES,
            **own,
            Setting.INITIAL_WINDOW_SIZE: stream_window_bytes,
            Setting.MAX_FRAME_SIZE: frame_bytes,
            Setting.MAX_HEADER_LIST_SIZE: header_list_bytes,
        }
    )
    more = window_bytes - frames.DEFAULT_WINDOW_BYTES
    return b"".join(
        (
            frames.PREFACE if num_streams is None else b"",
            greeting,
            frames.window_update(0, more) if more else b"",
        )
    )


def _check_length(payload: memoryview, num_bytes: int) -> None:
    if len(payload) != num_bytes:
        raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "frame of a wrong length")
