"""The serving side of a connection: admission, answers, draining."""

from collections.abc import Sequence
from typing import ClassVar

from h2 import events as h2_events
from h2.errors import ErrorCodes
from hyperframe.frame import GoAwayFrame
from typing_extensions import override

from paramfleet_shared.http2.connection import Connection
from paramfleet_shared.http2.events import (
    Event,
    RequestReceived,
    RequestTooLarge,
    StreamLost,
)
from paramfleet_shared.http2.hpack_memo import Header
from paramfleet_shared.http2.stream import Stream
from paramfleet_shared.wire.limits import Limits
from paramfleet_shared.wire.message import Buffer

__all__ = ["ServerConnection"]

_MAX_STREAM_ID = (1 << 31) - 1
_DRAIN_PING = b"pf-drain"


class ServerConnection(Connection):
    """One client's connection.

    A request is admitted when its headers come, before any memory is taken for
    its body: over ``max_streams`` or ``body_budget_bytes`` it is refused, which
    the client may retry; over ``max_body_bytes`` it becomes ``RequestTooLarge``.
    """

    client_side: ClassVar[bool] = False

    def __init__(self, limits: Limits, now: float) -> None:
        super().__init__(limits, now)
        self._on_event[h2_events.RequestReceived] = self._on_request
        self._draining = False
        self._drain_seen = False

    def respond(
        self, stream_id: int, status: int, headers: Sequence[Header], body: Sequence[Buffer]
    ) -> None:
        """Answer a request; nothing happens if its stream is over.

        The buffers are written later: they must not change any more.
        """
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        stream.release()
        stream.progress_at = self._now
        num_bytes = sum(map(len, body))
        block = [
            (b":status", b"%d" % status),
            (b"content-length", b"%d" % num_bytes),
            *headers,
        ]
        self._queue_body(stream, block, body)

    def respond_to_head(
        self, stream_id: int, status: int, headers: Sequence[Header], num_bytes: int
    ) -> None:
        """Answer a HEAD request: the headers of a body that is not sent."""
        stream = self._streams.get(stream_id)
        if stream is not None:
            length = (b"content-length", b"%d" % num_bytes)
            self._queue_body(stream, [(b":status", b"%d" % status), length, *headers], ())

    def refuse(self, stream_id: int) -> None:
        """Refuse a request that nothing was done with; the client may retry it."""
        self.reset(stream_id, ErrorCodes.REFUSED_STREAM)

    def expire(self, now: float) -> list[Event]:
        """Reset the streams whose body made no progress for too long, either way."""
        self._now = now
        for stream in list(self._streams.values()):
            stuck = stream.outgoing is not None or not stream.received_all
            if stuck and now - stream.progress_at > self._limits.body_idle_timeout_s:
                self.reset(stream.stream_id, ErrorCodes.CANCEL)
                self._events.append(
                    StreamLost(stream.stream_id, "its body made no progress", processed=True)
                )
        return self._take_events()

    def drain(self) -> None:
        """Ask the client to open no more streams; the open ones go on.

        Everything that was on its way is still served: a client answers the PING
        after it has seen the GOAWAY (RFC 9113, section 6.8).
        """
        if self.end_reason is None and not self._draining:
            self._draining = True
            self._machine.send_goaway(_MAX_STREAM_ID, ErrorCodes.NO_ERROR)
            self._machine.ping(_DRAIN_PING)

    def has_drained(self) -> bool:
        """Return whether a draining client has no request left and will send no more."""
        return self._drain_seen and not self._streams

    def _on_request(self, event: h2_events.RequestReceived) -> None:
        stream = Stream(event.stream_id, self._now)
        stream.headers = headers = dict(event.headers)
        length = headers.get(b"content-length")
        if length is not None:
            stream.declared = int(length)  # h2 has checked that it is a number
        limits = self._limits
        num_bytes = stream.num_reserved
        stream.ends_by_itself = 0 < num_bytes <= limits.stream_window_bytes
        too_large = num_bytes > limits.max_body_bytes
        refused = len(self._streams) >= limits.max_streams or (
            not too_large and self._over_budget(num_bytes)
        )
        self._streams[stream.stream_id] = stream
        if refused:
            self._floods.count_control(self._now)
            self.refuse(stream.stream_id)
        elif too_large:
            self._body_too_large(stream, num_bytes)

    def _over_budget(self, num_more: int) -> bool:
        """Return whether bodies in flight leave no room; one alone always has room."""
        num_held = 0
        for stream in self._streams.values():
            num_held += stream.num_reserved
            if stream.outgoing is not None:
                num_held += stream.outgoing.num_left
        return num_held > 0 and num_held + num_more > self._limits.body_budget_bytes

    @override
    def place_data(self, stream_id: int, num_bytes: int) -> memoryview | None:
        stream = self._streams.get(stream_id)
        growing = stream is not None and stream.declared is None and len(self._streams) > 1
        if growing and self._over_budget(num_bytes):
            self.refuse(stream_id)
            return None
        return super().place_data(stream_id, num_bytes)

    @override
    def _on_stream_ended(self, event: h2_events.StreamEnded) -> None:
        stream = self._streams.get(event.stream_id)
        if stream is None:
            return
        stream.received_all = True
        if stream.discarding:
            if stream.answered:
                self._body_left(stream)
            return
        assert stream.headers is not None, "h2 lets no data pass before headers"
        stream.declared = stream.num_received
        self._events.append(
            RequestReceived(stream.stream_id, stream.headers, stream.take_body())
        )

    @override
    def _on_reset(self, event: h2_events.StreamReset) -> None:
        if event.remote_reset:
            self._floods.count_reset(self._now)
        stream = self._streams.get(event.stream_id)
        if stream is not None:
            self._forget(stream)
            self._machine.forget(event.stream_id)
            self._events.append(
                StreamLost(event.stream_id, "the client gave the call up", processed=True)
            )

    @override
    def _on_goaway(self, frame: GoAwayFrame) -> None:
        if frame.error_code != ErrorCodes.NO_ERROR:
            self._end(f"the client ended the connection, code {frame.error_code}")

    @override
    def _on_ping_ack(self, event: h2_events.PingAckReceived) -> None:
        self._drain_seen |= event.ping_data == _DRAIN_PING

    @override
    def _body_left(self, stream: Stream) -> None:
        if stream.received_all:
            self._forget(stream)
            self._machine.forget(stream.stream_id)
        elif stream.ends_by_itself:  # some clients drop an answer that a reset follows
            stream.answered = True
        else:  # answered before its body came: the client need not send the rest
            self.reset(stream.stream_id, ErrorCodes.NO_ERROR)

    @override
    def _body_too_large(self, stream: Stream, num_bytes: int) -> None:
        stream.discarding = True
        stream.release()
        self._events.append(RequestTooLarge(stream.stream_id, num_bytes))
