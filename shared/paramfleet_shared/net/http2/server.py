"""The serving side of a connection: admission, answers, draining."""

from collections import deque
from collections.abc import Sequence
from typing import ClassVar

from typing_extensions import override

from paramfleet_shared.net.http2.connection import Connection
from paramfleet_shared.net.http2.events import (
    Event,
    ProtocolFault,
    RequestReceived,
    RequestTooLarge,
    StreamLost,
)
from paramfleet_shared.net.http2.frames import MAX_STREAM_ID, ErrorCode, goaway
from paramfleet_shared.net.http2.headers.heads import Head
from paramfleet_shared.net.http2.headers.hpack_memo import Header
from paramfleet_shared.net.http2.limits.budget import BodyShare
from paramfleet_shared.net.http2.limits.pace import BodyPace, FramePace, Moving
from paramfleet_shared.net.http2.stream import Stream
from paramfleet_shared.net.wire.limits import Limits
from paramfleet_shared.net.wire.message import Buffer

__all__ = ["ServerConnection"]

_MEMO_ENTRIES = 512
_MAX_REMEMBERED_GAPS = 64
_DRAIN_PING = b"pf-drain"
_GREETING = "its preface and settings"
_BLOCK = "a header block"
_FRAME = "a frame"
_UNCOUNTED_BYTES = 1 << 10
"""Longest body that isn't counted over all connections: ``max_streams`` of them are little."""


class ServerConnection(Connection):
    """One client's connection.

    A request is admitted when its headers come, before any memory is taken for
    its body: over ``max_streams``, ``body_budget_bytes`` or ``share`` it is refused, which
    the client may retry; over ``max_body_bytes`` it becomes ``RequestTooLarge``.
    """

    client_side: ClassVar[bool] = False
    share: BodyShare | None = None
    """What bodies under way may hold of its server's memory; set before anything comes."""

    def __init__(self, limits: Limits, now: float) -> None:
        super().__init__(limits, now)
        self._last_stream_id = 0
        self._gaps: deque[range] = deque(maxlen=_MAX_REMEMBERED_GAPS)
        """Streams that the client has passed over."""
        self._answer_blocks: dict[tuple[int, int], bytes] = {}
        self._held_at_most = 0
        """No less than the bytes of bodies in flight; counted when it seems too much."""
        self._draining = False
        self._drain_seen = False
        self._bodies = BodyPace(limits, now)
        self._frames = FramePace(limits, now, _GREETING)

    def respond(
        self, stream_id: int, status: int, headers: Sequence[Header], body: Sequence[Buffer]
    ) -> None:
        """Answer a request; nothing happens if its stream is over.

        The buffers are written later: they must not change any more.
        """
        stream = self._streams.get(stream_id)
        if stream is not None:
            stream.release()
            stream.progress_at = self._now
            num_bytes = sum(map(len, body))
            self._held_at_most += num_bytes
            self._answer(stream, self._encode_answer(status, headers, num_bytes), body)
            if num_bytes > _UNCOUNTED_BYTES or stream.num_shared:
                self._hold(stream, 0 if stream.outgoing is None else num_bytes)

    def respond_to_head(
        self, stream_id: int, status: int, headers: Sequence[Header], num_bytes: int
    ) -> None:
        """Answer a HEAD request: the headers of a body that is not sent."""
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._answer(stream, self._encode_answer(status, headers, num_bytes), ())

    def refuse(self, stream_id: int) -> None:
        """Refuse a request that nothing was done with; the client may retry it."""
        self.reset(stream_id, ErrorCode.REFUSED_STREAM)

    def expire(self, now: float) -> list[Event]:
        """Reset streams whose body is stuck or too slow, either way; end on a slow frame.

        Called once in ``pace.look_period_s``.
        """
        if self.end_reason is not None:
            return []
        self._now = now
        moving = {_key_of(each): each for each in self._streams.values() if _is_moving(each)}
        courses = [Moving(key, self._num_moved(each)) for key, each in moving.items()]
        slow = self._bodies.late(courses, now)
        for key, stream in moving.items():
            if now - stream.progress_at > self._limits.body_idle_timeout_s:
                self._give_up(stream, "its body made no progress")
            elif key in slow:
                self._give_up(stream, "its body moved too slowly")
        what, mark, allowed_s = self._unfinished()
        if self._frames.is_late(mark, allowed_s, now):
            self._fail(ErrorCode.ENHANCE_YOUR_CALM, f"{what} took the peer too long")
        return self._take_events()

    def _num_moved(self, stream: Stream) -> int:
        outgoing = stream.outgoing
        if outgoing is not None:
            return outgoing.num_bytes - outgoing.num_left
        return stream.num_received + self._reader.num_come(stream.stream_id)

    def _give_up(self, stream: Stream, reason: str) -> None:
        self.reset(stream.stream_id, ErrorCode.CANCEL)
        self._reader.discard(stream.stream_id)  # or its payload under way keeps the memory
        self._events.append(StreamLost(stream.stream_id, reason, processed=True))

    def _unfinished(self) -> tuple[str, object, float]:
        """Return what has come in part: its name, which it is, and how long it may take."""
        limits = self._limits
        if not self._greeted:
            return _GREETING, _GREETING, limits.head_timeout_s
        if self._blocks.is_open:
            return _BLOCK, (_BLOCK, self._blocks.stream_id), limits.body_idle_timeout_s
        partial = self._reader.partial
        if partial is None:
            return "", None, 0.0
        mark, num_bytes = partial
        moving_s = num_bytes / limits.min_body_bytes_per_s
        return _FRAME, mark, limits.body_idle_timeout_s + moving_s

    def drain(self) -> None:
        """Ask the client to open no more streams; the open ones go on.

        Everything that was on its way is still served: a client answers the PING
        after it has seen the GOAWAY (RFC 9113, section 6.8).
        """
        if self.end_reason is None and not self._draining:
            self._draining = True
            self._write(goaway(MAX_STREAM_ID, ErrorCode.NO_ERROR))
            self.ping(_DRAIN_PING)

    def has_drained(self) -> bool:
        """Return whether a draining client has no request left and will send no more."""
        return self._drain_seen and not self._streams

    def _encode_answer(self, status: int, headers: Sequence[Header], num_bytes: int) -> bytes:
        block = None if headers else self._answer_blocks.get((status, num_bytes))
        if block is None:
            block = self._encoder.encode(
                (
                    (b":status", b"%d" % status),
                    (b"content-length", b"%d" % num_bytes),
                    *headers,
                )
            )
            if not headers:
                if len(self._answer_blocks) >= _MEMO_ENTRIES:
                    self._answer_blocks.clear()
                self._answer_blocks[status, num_bytes] = block
        return block

    def _answer(self, stream: Stream, block: bytes, body: Sequence[Buffer]) -> None:
        if self._sender.send(stream, self._encoder.opened(block), body):
            self._body_left(stream)

    @property
    @override
    def _highest_stream_of_peer(self) -> int:
        return self._last_stream_id

    @override
    def _is_idle(self, stream_id: int) -> bool:
        return stream_id > self._last_stream_id or not stream_id & 1

    @override
    def _on_head(self, stream_id: int, head: Head, *, end_stream: bool) -> None:
        if not self._opens(stream_id):
            return
        fault = head.fault
        if end_stream and head.length:
            fault = "a request that ends too early"
        if fault is not None:
            self._stream_fault(stream_id, ErrorCode.PROTOCOL_ERROR, fault)
            return
        stream = Stream(
            stream_id, self._stream_receive_window, self._stream_send_window, self._now
        )
        stream.headers = head.headers
        stream.declared = head.length
        stream.num_reserved = num_bytes = head.length or 0
        self._admit(stream, num_bytes)
        if end_stream and stream_id in self._streams:
            stream.received_all = True
            self._on_stream_ended(stream)

    def _opens(self, stream_id: int) -> bool:
        """Return whether HEADERS open a stream; False if they came late.

        Raises:
            ProtocolFault: if they belong to no stream.
        """
        last = self._last_stream_id
        if stream_id > last and stream_id & 1:
            if stream_id > last + 2:
                self._gaps.append(range(last + 2 if last else 1, stream_id, 2))
            self._last_stream_id = stream_id
            return True
        if stream_id in self._reset_by_us:  # trailers that were on their way
            self._floods.count_control(self._now)
            return False
        if not stream_id & 1 or any(stream_id in gap for gap in self._gaps):
            raise ProtocolFault("HEADERS of a stream that cannot be opened")
        raise ProtocolFault("HEADERS of a stream that is over", ErrorCode.STREAM_CLOSED)

    def _admit(self, stream: Stream, num_bytes: int) -> None:
        """Take a request on, refuse it, or say that it is too large."""
        limits = self._limits
        stream.ends_by_itself = 0 < num_bytes <= limits.stream_window_bytes
        too_large = num_bytes > limits.max_body_bytes
        refused = len(self._streams) >= limits.max_streams or (
            not too_large and self._over_budget(num_bytes)
        )
        if num_bytes > _UNCOUNTED_BYTES and not (refused or too_large):
            refused = not self._may_hold(stream, num_bytes)
        self._streams[stream.stream_id] = stream
        if refused:
            self._floods.count_control(self._now)
            self.refuse(stream.stream_id)
        elif too_large:
            self._body_too_large(stream, num_bytes)

    def _over_budget(self, num_more: int) -> bool:
        """Return whether bodies in flight leave no room; one alone always has room."""
        budget = self._limits.body_budget_bytes
        self._held_at_most += num_more
        if self._held_at_most <= budget:
            return False
        num_held = 0
        for stream in self._streams.values():
            num_held += stream.num_reserved
            if stream.outgoing is not None:
                num_held += stream.outgoing.num_left
        self._held_at_most = num_held + num_more
        return num_held > 0 and num_held + num_more > budget

    @override
    def _may_grow(self, stream: Stream, num_bytes: int) -> bool:
        self._held_at_most = self._limits.body_budget_bytes  # it may grow by more: count again
        over = len(self._streams) > 1 and self._over_budget(num_bytes)
        size = stream.size_with(num_bytes, self._limits.max_body_bytes)
        if over or not self._may_hold(stream, size):
            self.refuse(stream.stream_id)
            return False
        return True

    def _may_hold(self, stream: Stream, num_bytes: int) -> bool:
        """Let a stream hold so much of its server's memory, if there is that."""
        share, held = self.share, stream.num_shared
        if share is not None and num_bytes > held:
            if not share.take(num_bytes - held, held):
                return False
            stream.num_shared = num_bytes
        return True

    @override
    def _hold(self, stream: Stream, num_bytes: int) -> None:
        if self.share is not None:
            self.share.hold(num_bytes - stream.num_shared)
            stream.num_shared = num_bytes

    @override
    def _on_stream_ended(self, stream: Stream) -> None:
        if stream.discarding:
            if stream.answered:
                self._body_left(stream)
            return
        assert stream.headers is not None, "a request has headers"
        if stream.num_shared:  # what comes whole is the handler's
            self._hold(stream, 0)
        self._events.append(
            RequestReceived(stream.stream_id, stream.headers, stream.take_body())
        )

    @override
    def _on_reset(self, stream_id: int, code: int) -> None:
        self._floods.count_reset(self._now)
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._forget(stream)
            self._events.append(
                StreamLost(stream_id, "the client gave the call up", processed=True)
            )

    @override
    def _on_goaway(self, last_stream_id: int, code: int) -> None:
        if code != ErrorCode.NO_ERROR:
            self._end(f"the client ended the connection, code {code}")

    @override
    def _on_setting(self, name: int, value: int) -> None:
        """Nothing: the others are for clients."""

    @override
    def _on_settings(self) -> None:
        """Nothing: what waited for a window is tried anyway."""

    @override
    def _on_ping_ack(self, payload: bytes) -> None:
        self._drain_seen |= payload == _DRAIN_PING

    @override
    def _body_left(self, stream: Stream) -> None:
        if stream.num_shared:
            self._hold(stream, 0)
        if stream.received_all:
            self._forget(stream)
        elif stream.ends_by_itself:  # some clients drop an answer that a reset follows
            stream.answered = True
        else:  # answered before its body came: the client need not send the rest
            self.reset(stream.stream_id, ErrorCode.NO_ERROR)

    @override
    def _body_too_large(self, stream: Stream, num_bytes: int) -> None:
        stream.discarding = True
        stream.release()
        if stream.num_shared:
            self._hold(stream, 0)
        self._events.append(RequestTooLarge(stream.stream_id, num_bytes))


def _is_moving(stream: Stream) -> bool:
    return stream.outgoing is not None or not stream.received_all


def _key_of(stream: Stream) -> tuple[int, bool]:
    """Return which of a stream's bodies moves."""
    return stream.stream_id, stream.outgoing is not None
