"""h2's state machine, without the payloads.

h2 keeps everything that is protocol: stream states, SETTINGS, HPACK, window
accounting, content-length. What is taken from it is the bytes of DATA frames:
it is handed lengths, and its output is a list of buffers. That leans on private
names of h2 (each is named below), so the version is pinned in pyproject.toml.
"""

import struct
from collections import deque
from typing import TYPE_CHECKING, Any

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import Event as H2Event
from h2.frame_buffer import FrameBuffer
from h2.settings import SettingCodes, Settings
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    ExtensionFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    PushPromiseFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)
from typing_extensions import override

from paramfleet_shared.http2.hpack_memo import MemoDecoder, StaticEncoder
from paramfleet_shared.wire.limits import Limits

if TYPE_CHECKING:
    from paramfleet_shared.wire.message import Buffer

__all__ = ["FRAME_HEADER", "Machine", "PlacedData", "new_frame"]

FRAME_HEADER = struct.Struct(">HBBBL")
"""Length (high 16 bits, low 8), type, flags, stream identifier: RFC 9113, section 4.1."""

_DEFAULT_WINDOW_BYTES = 65_535
_HEADER_TABLE_BYTES = 4096  # less would break peers that ignore the setting
_END_STREAM = 0x1


class PlacedData(DataFrame):
    """A DATA frame whose payload is already in its place; ``data`` has only a length."""

    __repr__ = object.__repr__


def _without_repr(cls: type[Frame]) -> type[Frame]:
    """Give ``cls`` a cheap repr: h2 formats every frame it gets, for a log nobody reads."""
    return type(f"Plain{cls.__name__}", (cls,), {"__repr__": object.__repr__})


_PLAIN = {
    cls: _without_repr(cls)
    for cls in (
        ContinuationFrame, GoAwayFrame, HeadersFrame, PingFrame, PriorityFrame,
        PushPromiseFrame, RstStreamFrame, SettingsFrame, WindowUpdateFrame,
    )
}  # fmt: skip
_PLAIN_OF_TYPE = {cls.type: plain for cls, plain in _PLAIN.items()}


def new_frame(frame_type: int, flags: int, stream_id: int, payload: memoryview) -> Frame:
    """Parse one frame other than DATA.

    Raises:
        HyperframeError: if the payload does not fit the type.
    """
    cls = _PLAIN_OF_TYPE.get(frame_type)
    frame = (
        ExtensionFrame(type=frame_type, stream_id=stream_id) if cls is None else cls(stream_id)
    )
    frame.parse_flags(flags)
    frame.parse_body(payload)
    return frame


class Machine(H2Connection):
    """One connection's protocol state.

    ``out`` holds what is to be written, in order: headers of frames as bytes,
    payloads as the caller's own views.
    """

    def __init__(self, limits: Limits, *, client_side: bool) -> None:
        super().__init__(
            H2Configuration(
                client_side=client_side,
                header_encoding=None,
                validate_outbound_headers=False,
                normalize_outbound_headers=False,
                validate_inbound_headers=not client_side,
            )
        )
        self.out: list[Buffer] = []
        self.incoming_buffer = self._frames = _FrameQueue()
        self._frame_dispatch_table.update(
            {plain: self._frame_dispatch_table[cls] for cls, plain in _PLAIN.items()}
        )
        self._frame_dispatch_table[PlacedData] = self._receive_data_frame
        self.encoder = StaticEncoder()
        self.decoder = MemoDecoder()
        self.decoder.max_header_list_size = limits.max_control_frame_bytes
        self._start(limits)

    def receive(self, frame: Frame) -> list[H2Event]:
        """Take one frame, and return what it means.

        Raises:
            ProtocolError: if it breaks the protocol; a GOAWAY is then in ``out``.
        """
        self._frames.add(frame)
        return self.receive_data(b"")

    def send_payload(self, stream_id: int, pieces: list[memoryview], *, last: bool) -> None:
        """Send one DATA frame; its pieces go out as they are."""
        self.send_data(stream_id, _Payload(pieces), end_stream=last)  # type: ignore[arg-type]  # h2 only takes its length

    def forget(self, stream_id: int) -> None:
        """Drop a finished stream now; h2 would look for it at the next request."""
        stream = self.streams.get(stream_id)
        if stream is not None and stream.closed:
            del self.streams[stream_id]
            self._closed_streams[stream_id] = stream.closed_by

    def send_goaway(self, last_stream_id: int, code: int) -> None:
        """Announce the end without h2, which would close its state at once."""
        frame = GoAwayFrame(0, last_stream_id=last_stream_id, error_code=code)
        self.out.append(frame.serialize())

    @override
    def clear_outbound_data_buffer(self) -> None:
        """Keep ``out``: h2 would clear it on a GOAWAY, and frames already cut must go."""

    @override
    def _open_streams(self, remainder: int) -> int:
        # Admission is the connection's work: h2 would end the connection over one
        # stream too many, and walk over all streams to count them.
        return 0

    @override
    def _prepare_for_sending(self, frames: list[Frame]) -> None:
        out = self.out
        for frame in frames:
            payload = getattr(frame, "data", None)
            if payload.__class__ is _Payload:
                length = payload.num_bytes
                flags = _END_STREAM if "END_STREAM" in frame.flags else 0
                out.append(
                    FRAME_HEADER.pack(length >> 8, length & 255, 0, flags, frame.stream_id)
                )
                out.extend(payload.pieces)
            else:
                out.append(frame.serialize())

    def _start(self, limits: Limits) -> None:
        """Queue our settings, and make them h2's from now on rather than from their ACK."""
        values = {
            SettingCodes.HEADER_TABLE_SIZE: _HEADER_TABLE_BYTES,
            SettingCodes.ENABLE_PUSH: 0,
            SettingCodes.MAX_CONCURRENT_STREAMS: limits.max_streams,
            SettingCodes.INITIAL_WINDOW_SIZE: limits.stream_window_bytes,
            SettingCodes.MAX_FRAME_SIZE: limits.max_frame_bytes,
            SettingCodes.MAX_HEADER_LIST_SIZE: limits.max_control_frame_bytes,
        }
        client_side = self.config.client_side
        del values[
            SettingCodes.MAX_CONCURRENT_STREAMS if client_side else SettingCodes.ENABLE_PUSH
        ]
        self.local_settings = Settings(client=client_side, initial_values=values)
        self.max_inbound_frame_size = limits.max_frame_bytes
        self.initiate_connection()
        self.out = [self.data_to_send()]
        if limits.connection_window_bytes > _DEFAULT_WINDOW_BYTES:
            self.increment_flow_control_window(
                limits.connection_window_bytes - _DEFAULT_WINDOW_BYTES
            )


class _Payload:
    """What h2 sees in place of bytes to send: their length."""

    __slots__ = ("num_bytes", "pieces")

    def __init__(self, pieces: list[memoryview]) -> None:
        self.pieces = pieces
        self.num_bytes = sum(map(len, pieces))

    def __len__(self) -> int:
        return self.num_bytes


class _FrameQueue(FrameBuffer):
    """Keeps h2's rules about CONTINUATION, not its buffering."""

    def __init__(self) -> None:
        super().__init__()
        self._queue: deque[Frame] = deque()

    def add(self, frame: Frame) -> None:
        self._queue.append(frame)

    @override
    def add_data(self, data: Any) -> None:
        """Take nothing: frames come whole."""

    @override
    def __next__(self) -> Frame:
        while self._queue:
            frame = self._update_header_buffer(self._queue.popleft())
            if frame is not None:
                return frame
        raise StopIteration
