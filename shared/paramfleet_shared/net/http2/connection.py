"""What both sides of a connection do alike.

The owner, one task or protocol, drives it:

* read into ``get_buffer()``, call ``buffer_updated``, act on the events;
* after every call, write all that ``take_buffers`` returns until it returns
  nothing, or until its transport wants no more;
* when ``end_reason`` is set, write what is left and close the transport.

Buffers that ``take_buffers`` returned belong to the transport until they are
written: some of them are views of the arrays in a message.
"""

from abc import abstractmethod

from paramfleet_shared.net.http2 import frames
from paramfleet_shared.net.http2.control import ControlFrames
from paramfleet_shared.net.http2.events import (
    ConnectionEnded,
    ConnectionFault,
    Event,
    ProtocolFault,
    StreamLost,
)
from paramfleet_shared.net.http2.frames import ErrorCode, Flag, FrameType
from paramfleet_shared.net.http2.headers.heads import BlockReader, Head, HeadReader
from paramfleet_shared.net.http2.reader import FrameReader
from paramfleet_shared.net.http2.stream import BodyMemory, Held, Stream
from paramfleet_shared.net.wire.limits import Limits
from paramfleet_shared.net.wire.message import Buffer

__all__ = ["Connection"]

_HEADERS = int(FrameType.HEADERS)
_END_STREAM = int(Flag.END_STREAM)
_FEW_BUFFERS = 64  # output so short that it needs no measuring


class Connection(ControlFrames):
    """The state of one HTTP/2 connection; see the module for how to drive it."""

    def __init__(self, limits: Limits, now: float) -> None:
        super().__init__(limits, now)
        self._reader = FrameReader(self, limits, expect_preface=not self.client_side)
        self._blocks = BlockReader(limits.max_control_frame_bytes)
        self._heads = HeadReader(
            requests=not self.client_side, max_list_bytes=limits.max_control_frame_bytes
        )
        self._memory = BodyMemory()
        self._credit = 0
        """Bytes received and not yet given back to the peer's window of the connection."""
        self._credit_step = max(1, limits.connection_window_bytes // 2)
        self.end_reason: str | None = None
        """Why nothing goes on here; None while it does."""

    # bytes in

    def get_buffer(self) -> memoryview:
        """Return where to put the next bytes from the peer; never empty."""
        return self._reader.get_buffer()

    def is_within_body(self, num_bytes: int) -> bool:
        """Take note of bytes in ``get_buffer()`` if they end nothing; most of a long body do.

        If False, ``buffer_updated`` must follow. If True, there is nothing to react to.
        """
        return self._reader.is_within(num_bytes)

    def buffer_updated(self, num_bytes: int, now: float) -> list[Event]:
        """Take note of bytes that were put into ``get_buffer()``."""
        if self.end_reason is not None:
            return []
        self._now = now
        try:
            self._reader.buffer_updated(num_bytes)
            if len(self._sender.out) > _FEW_BUFFERS:
                self._check_unsent()
        except ConnectionFault as fault:
            self._fail(fault.code, fault.reason)
        return self._take_events()

    def lost(self, reason: str) -> list[Event]:
        """Take note that the transport is gone."""
        self._sender.take()
        self._end(reason)
        self._reader.release()
        return self._take_events()

    # buffers out

    @property
    def has_output(self) -> bool:
        """Return whether ``take_buffers`` may have something."""
        sender = self._sender
        return bool(sender.out or sender.ready)

    def take_buffers(self, now: float) -> list[Buffer]:
        """Return what is to be written next; empty when there is nothing for now."""
        sender = self._sender
        if sender.ready and self.end_reason is None:
            for stream in sender.fill(now):
                self._body_left(stream)
        return sender.take()

    def precede(self, data: bytes) -> None:
        """Write bytes that aren't HTTP/2's before all that is to be written."""
        if data:
            self._sender.out.insert(0, data)

    # calls in

    def ping(self, payload: bytes) -> None:
        """Ask the peer for a sign of life; ``payload`` is 8 bytes."""
        if self.end_reason is None:
            self._write(frames.frame(FrameType.PING, 0, 0, payload))

    @property
    def num_held(self) -> Held:
        """Return what bodies on their way hold here. Any thread may ask."""
        receiving = sending = 0
        for stream in list(self._streams.values()):
            body, outgoing = stream.body, stream.outgoing
            receiving += 0 if body is None else len(body)
            sending += 0 if outgoing is None else outgoing.num_left
        return Held(receiving, sending)

    def close(self) -> list[Event]:
        """Say goodbye and end; streams still open are lost."""
        if self.end_reason is None:
            self._fail(ErrorCode.NO_ERROR, "closed by this side")
        return self._take_events()

    # what the two sides do differently

    @abstractmethod
    def _on_head(self, stream_id: int, head: Head, *, end_stream: bool) -> None:
        """Take a header block that is not of a message's end."""

    @abstractmethod
    def _on_stream_ended(self, stream: Stream) -> None: ...

    @abstractmethod
    def _body_left(self, stream: Stream) -> None:
        """React to the last byte of a stream's outgoing body having been cut."""

    @abstractmethod
    def _body_too_large(self, stream: Stream, num_bytes: int) -> None:
        """React to an incoming body that passes a limit."""

    @property
    def _highest_stream_of_peer(self) -> int:
        return 0

    def _may_grow(self, stream: Stream, num_bytes: int) -> bool:
        """Return whether a body of unknown length may grow; else deal with it."""
        del stream, num_bytes
        return True

    # the reader's sink: DATA

    def begin_data(self, stream_id: int, flags: int, num_bytes: int) -> memoryview | None:
        """Account for a payload that begins, and return where it goes."""
        return self._admit_data(stream_id, flags, num_bytes, num_bytes)

    def end_data(self, stream_id: int, flags: int, num_bytes: int) -> None:
        """React to a payload that is in its place, or thrown away."""
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        stream.progress_at = self._now
        stream.num_received += num_bytes
        if flags & _END_STREAM:
            stream.received_all = True
            self._on_stream_ended(stream)
        elif not num_bytes:
            self._floods.count_control(self._now)
        elif not stream.discarding:
            self._give_stream_credit(stream)

    def take_padded_data(self, stream_id: int, flags: int, payload: memoryview) -> None:
        """Copy a padded payload to its place, and account for it.

        Raises:
            ProtocolFault: if it is padded by more than it has.
        """
        self._floods.count_control(self._now)
        if not payload or payload[0] >= len(payload):
            raise ProtocolFault("a frame that is all padding")
        content = payload[1 : len(payload) - payload[0]]
        place = self._admit_data(stream_id, flags, len(content), len(payload))
        if place is not None:
            place[:] = content
        self.end_data(stream_id, flags, len(content))

    def _admit_data(
        self, stream_id: int, flags: int, num_bytes: int, num_controlled: int
    ) -> memoryview | None:
        """Check a payload against windows, state and limits.

        Args:
            stream_id: Its stream.
            flags: Of its frame.
            num_bytes: Bytes of the body.
            num_controlled: Bytes that count for flow control: padding does.

        Returns:
            Where it goes; None to throw it away.

        Raises:
            ProtocolFault: if the whole connection must end over it.
        """
        if self._blocks.is_open or not self._greeted or not stream_id:
            raise ProtocolFault("DATA out of place")
        self._receive_window -= num_controlled
        self._credit += num_controlled
        if self._receive_window < 0:
            raise ProtocolFault("DATA over the connection", ErrorCode.FLOW_CONTROL_ERROR)
        if self._credit >= self._credit_step:
            self._open_connection_window()
        stream = self._streams.get(stream_id)
        if stream is None:
            self._on_data_of_no_stream(stream_id)
            return None
        if stream.received_all or stream.headers is None:
            self._stream_fault(stream_id, ErrorCode.STREAM_CLOSED, "DATA out of place")
            return None
        stream.receive_window -= num_controlled
        stream.credit += num_controlled
        if stream.receive_window < 0:
            self._stream_fault(stream_id, ErrorCode.FLOW_CONTROL_ERROR, "DATA over the window")
            return None
        end = stream.num_received + num_bytes
        declared = stream.declared
        if declared is not None and (
            end > declared or (flags & _END_STREAM and end != declared)
        ):
            self._stream_fault(
                stream_id, ErrorCode.PROTOCOL_ERROR, "a body of another length than declared"
            )
            return None
        return self._place(stream, num_bytes)

    def _place(self, stream: Stream, num_bytes: int) -> memoryview | None:
        place: memoryview | None
        if stream.discarding or not num_bytes:
            return None
        if num_bytes == stream.declared:  # the whole body in one frame: most are small
            stream.body = place = self._memory.allocate(num_bytes)
            return place
        if stream.declared is None and not self._may_grow(stream, num_bytes):
            return None
        place = stream.place(num_bytes, self._limits.max_body_bytes, self._memory)
        if place is None:
            stream.discarding = True  # from here on its window is not opened again
            self._body_too_large(stream, stream.num_received + num_bytes)
        return place

    def _open_connection_window(self) -> None:
        """Open the connection's window again by what has come.

        That is done on receipt: memory is bounded by admission, and a window opened
        only when bodies are done could stop two half-received ones for ever.
        """
        self._write(frames.window_update(0, self._credit))
        self._receive_window += self._credit
        self._credit = 0

    def _give_stream_credit(self, stream: Stream) -> None:
        """Open a stream's window again, as far as its body may still go on."""
        if stream.credit < self._limits.stream_window_bytes // 2:
            return
        declared = stream.declared
        if declared is None or declared - stream.num_received > stream.receive_window:
            self._write(frames.window_update(stream.stream_id, stream.credit))
            stream.receive_window += stream.credit
            stream.credit = 0

    def _on_data_of_no_stream(self, stream_id: int) -> None:
        if self._is_idle(stream_id):
            raise ProtocolFault("DATA of a stream that was never opened")
        if stream_id in self._reset_by_us:  # it was on its way
            self._floods.count_control(self._now)
        else:
            self._stream_fault(stream_id, ErrorCode.STREAM_CLOSED, "DATA after the end")

    # the reader's sink: other frames

    def take_frame(
        self, frame_type: int, flags: int, stream_id: int, payload: memoryview
    ) -> None:
        """Take any frame other than DATA.

        Raises:
            ProtocolFault: if it may not come here.
            ConnectionFault: if it is one too many.
        """
        blocks = self._blocks
        if blocks.is_open:
            if blocks.go_on(frame_type, flags, stream_id, payload):
                self._on_block(blocks)
        elif not self._greeted and frame_type != FrameType.SETTINGS:
            raise ProtocolFault("the first frame is not SETTINGS")
        elif frame_type == _HEADERS:
            if blocks.begin(flags, stream_id, payload):
                self._on_block(blocks)
        else:
            self._take_control_frame(frame_type, flags, stream_id, payload)

    def _on_block(self, block: BlockReader) -> None:
        head = self._heads.read(block.fragments)  # always: it moves HPACK's state
        stream_id = block.stream_id
        if block.depends_on_itself:
            head = head._replace(fault="a stream that depends on itself")
        stream = self._streams.get(stream_id)
        if stream is None or stream.headers is None:
            self._on_head(stream_id, head, end_stream=block.end_stream)
        elif stream.received_all:
            self._stream_fault(stream_id, ErrorCode.STREAM_CLOSED, "HEADERS after the end")
        elif (
            not block.end_stream
            or head.trailer_fault is not None
            or stream.declared not in {None, stream.num_received}
        ):
            reason = head.trailer_fault or "trailers that end nothing"
            self._stream_fault(stream_id, ErrorCode.PROTOCOL_ERROR, reason)
        else:
            stream.received_all = True
            self._on_stream_ended(stream)

    # ends

    def _check_unsent(self) -> None:
        if sum(map(len, self._sender.out)) > self._limits.max_unsent_control_bytes:
            raise ConnectionFault(
                ErrorCode.ENHANCE_YOUR_CALM,
                "the peer sends requests and does not read the answers",
            )

    def _fail(self, code: ErrorCode, reason: str) -> None:
        self._write(frames.goaway(self._highest_stream_of_peer, code))
        self._end(reason)

    def _end(self, reason: str) -> None:
        if self.end_reason is not None:
            return
        self.end_reason = reason
        self._reader.stop()
        for stream in list(self._streams.values()):
            self._forget(stream)
            self._events.append(StreamLost(stream.stream_id, reason, processed=True))
        self._events.append(ConnectionEnded(reason))

    def _take_events(self) -> list[Event]:
        events = self._events
        if events:
            self._events = []
        return events
