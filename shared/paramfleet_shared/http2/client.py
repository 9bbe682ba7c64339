"""The calling side of a connection."""

from collections.abc import Sequence
from typing import ClassVar

from h2 import events as h2_events
from h2.errors import ErrorCodes
from hyperframe.frame import GoAwayFrame
from typing_extensions import override

from paramfleet_shared.http2.connection import Connection
from paramfleet_shared.http2.events import (
    PeerLeaving,
    PeerReady,
    ResponseReceived,
    ResponseTooLarge,
    StreamLost,
)
from paramfleet_shared.http2.hpack_memo import Header
from paramfleet_shared.http2.stream import Stream
from paramfleet_shared.wire.limits import Limits
from paramfleet_shared.wire.message import Buffer

__all__ = ["ClientConnection"]

_LAST_STREAM_ID = (1 << 31) - 1


class ClientConnection(Connection):
    """Our connection to one server."""

    client_side: ClassVar[bool] = True

    def __init__(self, limits: Limits, now: float) -> None:
        super().__init__(limits, now)
        self._on_event[h2_events.ResponseReceived] = self._on_response
        self.draining = False
        """True when the server takes no new calls here; those it has go on."""
        self._next_stream_id = 1

    @property
    def may_request(self) -> bool:
        """Return whether the server takes one more call now."""
        num_allowed = self._machine.remote_settings.max_concurrent_streams
        return len(self._streams) < num_allowed

    def request(self, headers: Sequence[Header], body: Sequence[Buffer], now: float) -> int:
        """Send a request, and return its stream.

        The buffers are written later: they must not change before the answer
        came, nor after the stream was given up.
        """
        assert self.end_reason is None, "ask before"
        self._now = now
        stream = Stream(self._next_stream_id, now)
        self._next_stream_id += 2
        if self._next_stream_id >= _LAST_STREAM_ID:
            self.draining = True  # numbers are used up: a new connection is needed
        self._streams[stream.stream_id] = stream
        self._queue_body(stream, list(headers), body)
        return stream.stream_id

    @override
    def _on_settings(self, _event: h2_events.RemoteSettingsChanged) -> None:
        super()._on_settings(_event)
        self._events.append(PeerReady())

    def _on_response(self, event: h2_events.ResponseReceived) -> None:
        stream = self._streams.get(event.stream_id)
        if stream is None:
            return
        stream.headers = headers = dict(event.headers)
        length = headers.get(b"content-length")
        if length is not None:
            stream.declared = int(length)  # h2 has checked that it is a number
            if stream.declared > self._limits.max_body_bytes:
                self._body_too_large(stream, stream.declared)

    @override
    def _on_stream_ended(self, event: h2_events.StreamEnded) -> None:
        stream = self._streams.get(event.stream_id)
        if stream is None:
            return
        assert stream.headers is not None, "h2 lets no stream end before headers"
        response = ResponseReceived(
            stream.stream_id,
            int(stream.headers[b":status"]),
            stream.headers,
            stream.take_body(),
        )
        if stream.outgoing is not None:  # answered before we were done: the rest is not wanted
            self.reset(stream.stream_id, ErrorCodes.CANCEL)
        else:
            self._forget(stream)
            self._machine.forget(stream.stream_id)
        self._events.append(response)

    @override
    def _on_reset(self, event: h2_events.StreamReset) -> None:
        stream = self._streams.get(event.stream_id)
        if stream is None:
            return
        self._forget(stream)
        self._machine.forget(event.stream_id)
        refused = event.error_code == ErrorCodes.REFUSED_STREAM
        reason = "the server refused the call" if refused else "the server reset the call"
        self._events.append(StreamLost(event.stream_id, reason, processed=not refused))

    @override
    def _on_goaway(self, frame: GoAwayFrame) -> None:
        """Give back what the server did not take (RFC 9113, section 6.8)."""
        self.draining = True
        self._events.append(PeerLeaving())
        for stream in list(self._streams.values()):
            if stream.stream_id > frame.last_stream_id:
                self._forget(stream)
                self._events.append(
                    StreamLost(stream.stream_id, "the server is leaving", processed=False)
                )
        if frame.error_code != ErrorCodes.NO_ERROR:
            self._end(f"the server ended the connection, code {frame.error_code}")

    @override
    def _body_left(self, stream: Stream) -> None:
        """Wait for the answer."""

    @override
    def _body_too_large(self, stream: Stream, num_bytes: int) -> None:
        self.reset(stream.stream_id, ErrorCodes.CANCEL)
        self._events.append(ResponseTooLarge(stream.stream_id, num_bytes))
