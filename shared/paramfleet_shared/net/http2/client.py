"""The calling side of a connection."""

from collections.abc import Sequence
from typing import ClassVar

from typing_extensions import override

from paramfleet_shared.net.http2.connection import Connection
from paramfleet_shared.net.http2.events import (
    PeerLeaving,
    PeerReady,
    ProtocolFault,
    ResponseReceived,
    ResponseTooLarge,
    StreamLost,
)
from paramfleet_shared.net.http2.frames import MAX_STREAM_ID, ErrorCode, Setting
from paramfleet_shared.net.http2.headers.heads import Head
from paramfleet_shared.net.http2.headers.hpack_memo import Header
from paramfleet_shared.net.http2.stream import Stream
from paramfleet_shared.net.wire.limits import Limits
from paramfleet_shared.net.wire.message import Buffer

__all__ = ["ClientConnection"]


class ClientConnection(Connection):
    """Our connection to one server."""

    client_side: ClassVar[bool] = True

    def __init__(self, limits: Limits, now: float) -> None:
        super().__init__(limits, now)
        self.draining = False
        """True when the server takes no new calls here; those it has go on."""
        self.must_prove = False
        """Whether the server serves only who proves itself first."""
        self._next_stream_id = 1
        self._max_streams = MAX_STREAM_ID  # until the server says what it takes

    @property
    def may_request(self) -> bool:
        """Return whether the server takes one more call now."""
        return len(self._streams) < self._max_streams

    def request(self, headers: Sequence[Header], body: Sequence[Buffer], now: float) -> int:
        """Send a request, and return its stream.

        The buffers are written later: they must not change before the answer
        came, nor after the stream was given up.
        """
        return self.request_encoded(self.encode(headers), body, now)

    def encode(self, headers: Sequence[Header]) -> bytes:
        """Return headers as ``request_encoded`` takes them, any number of times."""
        return self._encoder.encode(headers)

    def request_encoded(self, block: bytes, body: Sequence[Buffer], now: float) -> int:
        """Send a request whose headers are encoded already; see ``request``."""
        assert self.end_reason is None, "ask before"
        stream_id = self._next_stream_id
        stream = Stream(stream_id, self._stream_receive_window, self._stream_send_window, now)
        self._next_stream_id = stream_id + 2
        if stream_id + 2 >= MAX_STREAM_ID:
            self.draining = True  # numbers are used up: a new connection is needed
        self._streams[stream_id] = stream
        self._sender.send(stream, self._encoder.opened(block), body)
        return stream_id

    @override
    def _is_idle(self, stream_id: int) -> bool:
        return stream_id >= self._next_stream_id or not stream_id & 1

    @override
    def _on_setting(self, name: int, value: int) -> None:
        if name == Setting.MAX_CONCURRENT_STREAMS:
            self._max_streams = value

    @override
    def _on_settings(self) -> None:
        self._events.append(PeerReady())

    @override
    def _on_ping_ack(self, payload: bytes) -> None:
        """Nothing: any byte is a sign of life."""

    @override
    def _on_head(self, stream_id: int, head: Head, *, end_stream: bool) -> None:
        stream = self._streams.get(stream_id)
        if stream is None:
            if self._is_idle(stream_id):
                raise ProtocolFault("HEADERS of a stream that was never opened")
            self._floods.count_control(self._now)  # late: the call was given up
            return
        informational = head.headers.get(b":status", b"")[:1] == b"1"
        fault = head.fault
        if end_stream and (head.length or informational):
            fault = "an answer that ends too early"
        if fault is not None:
            self._stream_fault(stream_id, ErrorCode.PROTOCOL_ERROR, fault)
        elif informational:
            self._floods.count_control(self._now)
        elif head.length is not None and head.length > self._limits.max_body_bytes:
            self._body_too_large(stream, head.length)
        else:
            stream.headers = head.headers
            stream.declared = head.length
            if end_stream:
                self._on_stream_ended(stream)

    @override
    def _on_stream_ended(self, stream: Stream) -> None:
        assert stream.headers is not None, "no stream ends before its headers"
        response = ResponseReceived(
            stream.stream_id,
            int(stream.headers[b":status"]),
            stream.headers,
            stream.take_body(),
        )
        if stream.outgoing is not None:  # answered before we were done: the rest is not wanted
            self.reset(stream.stream_id, ErrorCode.CANCEL)
        else:
            self._forget(stream)
        self._events.append(response)

    @override
    def _on_reset(self, stream_id: int, code: int) -> None:
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        self._forget(stream)
        refused = code == ErrorCode.REFUSED_STREAM
        reason = "the server refused the call" if refused else "the server reset the call"
        self._events.append(StreamLost(stream_id, reason, processed=not refused))

    @override
    def _on_goaway(self, last_stream_id: int, code: int) -> None:
        """Give back what the server did not take (RFC 9113, section 6.8)."""
        self.draining = True
        self._events.append(PeerLeaving())
        for stream in list(self._streams.values()):
            if stream.stream_id > last_stream_id:
                self._forget(stream)
                self._events.append(
                    StreamLost(stream.stream_id, "the server is leaving", processed=False)
                )
        self.must_prove = code == ErrorCode.INADEQUATE_SECURITY
        if code != ErrorCode.NO_ERROR:
            self._end(f"the server ended the connection, code {code}")

    @override
    def _hold(self, stream: Stream, num_bytes: int) -> None:
        """Nothing: only servers count it."""

    @override
    def _body_left(self, stream: Stream) -> None:
        """Wait for the answer."""

    @override
    def _body_too_large(self, stream: Stream, num_bytes: int) -> None:
        self.reset(stream.stream_id, ErrorCode.CANCEL)
        self._events.append(ResponseTooLarge(stream.stream_id, num_bytes))
