"""What both sides of a connection do alike.

The owner, one task or protocol, drives it:

* read into ``get_buffer()``, tell ``buffer_updated``, act on the events;
* after every call, write all that ``take_buffers`` returns until it returns
  nothing, or until its transport wants no more;
* when ``end_reason`` is set, write what is left and close the transport.

Buffers that ``take_buffers`` returned belong to the transport until they are
written: some of them are views of the arrays in a message.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from h2 import events as h2_events
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError
from hyperframe.exceptions import HyperframeError
from hyperframe.frame import GoAwayFrame, PushPromiseFrame, WindowUpdateFrame

from paramfleet_shared.http2.events import ConnectionEnded, ConnectionFault, Event, StreamLost
from paramfleet_shared.http2.floods import FloodGuard
from paramfleet_shared.http2.hpack_memo import Header
from paramfleet_shared.http2.machine import Machine, PlacedData, new_frame
from paramfleet_shared.http2.reader import FrameReader
from paramfleet_shared.http2.sender import Sender
from paramfleet_shared.http2.stream import OutgoingBody, Stream
from paramfleet_shared.wire.limits import Limits
from paramfleet_shared.wire.message import Buffer

__all__ = ["Connection"]

_END_STREAM = 0x1
_BLOCK_TYPES = {0x1, 0x9, PushPromiseFrame.type}  # HEADERS, CONTINUATION
_MIN_WINDOW_INCREMENT = 4096  # smaller ones are counted; larger ones soon overflow the window
_FEW_BUFFERS = 64  # output so short that it needs no measuring


class Connection(ABC):
    """The state of one HTTP/2 connection; see the module for how to drive it."""

    client_side: ClassVar[bool]

    def __init__(self, limits: Limits, now: float) -> None:
        self._limits = limits
        self._now = now
        self._machine = Machine(limits, client_side=self.client_side)
        self._reader = FrameReader(self, limits, expect_preface=not self.client_side)
        self._sender = Sender(self._machine, limits)
        self._floods = FloodGuard(limits)
        self._streams: dict[int, Stream] = {}
        self._events: list[Event] = []
        self._connection_credit = 0
        self.end_reason: str | None = None
        """Why nothing goes on here; None while it does."""
        self._on_event: dict[type[h2_events.Event], Callable[[Any], None]] = {
            h2_events.DataReceived: self._on_data,
            h2_events.StreamEnded: self._on_stream_ended,
            h2_events.StreamReset: self._on_reset,
            h2_events.WindowUpdated: self._on_window,
            h2_events.RemoteSettingsChanged: self._on_settings,
            h2_events.PingAckReceived: self._on_ping_ack,
        }

    # bytes in

    def get_buffer(self) -> memoryview:
        """Return where to put the next bytes from the peer; never empty."""
        return self._reader.get_buffer()

    def buffer_updated(self, num_bytes: int, now: float) -> list[Event]:
        """Take note of bytes that were put into ``get_buffer()``."""
        if self.end_reason is not None:
            return []
        self._now = now
        try:
            self._reader.buffer_updated(num_bytes)
            self._check_unsent()
        except ConnectionFault as fault:
            self._fail(fault.code, fault.reason)
        except HyperframeError as error:
            self._fail(ErrorCodes.PROTOCOL_ERROR, f"malformed frame: {error}")
        except ProtocolError as error:  # h2 has queued the GOAWAY
            self._end(f"the peer broke the protocol: {error}")
        return self._take_events()

    def lost(self, reason: str) -> list[Event]:
        """Take note that the transport is gone."""
        self._machine.out.clear()
        self._end(reason)
        return self._take_events()

    # buffers out

    def take_buffers(self, now: float) -> list[Buffer]:
        """Return what is to be written next; empty when there is nothing for now."""
        machine = self._machine
        if self.end_reason is None:
            for stream in self._sender.fill(now):
                self._body_left(stream)
        out = machine.out
        machine.out = []
        return out

    # calls in

    @property
    def num_streams(self) -> int:
        """Return the number of calls in flight."""
        return len(self._streams)

    def ping(self, payload: bytes) -> None:
        """Ask the peer for a sign of life; ``payload`` is 8 bytes."""
        if self.end_reason is None:
            self._machine.ping(payload)

    def reset(self, stream_id: int, code: ErrorCodes) -> None:
        """Give up a stream; nothing happens if it is over."""
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._forget(stream)
            self._machine.reset_stream(stream_id, code)
            self._machine.forget(stream_id)

    def close(self) -> list[Event]:
        """Say goodbye and end; streams still open are lost."""
        if self.end_reason is None:
            self._fail(ErrorCodes.NO_ERROR, "closed by this side")
        return self._take_events()

    # what the two sides do differently

    @abstractmethod
    def _on_stream_ended(self, event: h2_events.StreamEnded) -> None: ...

    @abstractmethod
    def _on_reset(self, event: h2_events.StreamReset) -> None: ...

    @abstractmethod
    def _on_goaway(self, frame: GoAwayFrame) -> None: ...

    @abstractmethod
    def _body_left(self, stream: Stream) -> None:
        """React to the last byte of a stream's outgoing body having been cut."""

    @abstractmethod
    def _body_too_large(self, stream: Stream, num_bytes: int) -> None:
        """React to an incoming body that passes a limit."""

    def _on_settings(self, _event: h2_events.RemoteSettingsChanged) -> None:
        self._sender.unblock()

    def _on_ping_ack(self, event: h2_events.PingAckReceived) -> None:
        """Take note of an answer to ``ping``."""
        del event

    # the reader's sink

    def place_data(self, stream_id: int, num_bytes: int) -> memoryview | None:
        """Return where a payload goes: into its stream's body."""
        stream = self._streams.get(stream_id)
        if stream is None or stream.headers is None:
            return None
        if stream.received_all or stream.discarding:
            return None
        return stream.place(num_bytes, self._limits.max_body_bytes)

    def take_data(self, stream_id: int, flags: int, num_bytes: int, *, placed: bool) -> None:
        """Account for a payload that is in its place, or thrown away."""
        frame = PlacedData(stream_id, flags=("END_STREAM",) if flags & _END_STREAM else ())
        frame.data = range(num_bytes)  # type: ignore[assignment]  # h2 only takes its length
        if not num_bytes:
            self._floods.count_control(self._now)
        self._account(frame, num_bytes, placed=placed)

    def take_padded_data(self, stream_id: int, flags: int, payload: memoryview) -> None:
        """Copy a padded payload to its place, and account for it."""
        frame = PlacedData(stream_id)
        frame.parse_flags(flags)
        frame.parse_body(payload)
        place = self.place_data(stream_id, len(frame.data))
        if place is not None:
            place[:] = frame.data
        self._floods.count_control(self._now)
        self._account(frame, len(frame.data), placed=place is not None)

    def take_frame(
        self, frame_type: int, flags: int, stream_id: int, payload: memoryview
    ) -> None:
        """Take any frame other than DATA."""
        frame = new_frame(frame_type, flags, stream_id, payload)
        if frame_type not in _BLOCK_TYPES and not (
            isinstance(frame, WindowUpdateFrame)
            and frame.window_increment >= _MIN_WINDOW_INCREMENT
        ):
            self._floods.count_control(self._now)
        if isinstance(frame, GoAwayFrame):
            self._on_goaway(frame)  # h2 would close its state at once
        else:
            self._receive(frame)

    # events of the machine

    def _receive(self, frame: Any) -> None:
        for event in self._machine.receive(frame):
            react = self._on_event.get(event.__class__)
            if react is not None:
                react(event)

    def _account(self, frame: PlacedData, num_bytes: int, *, placed: bool) -> None:
        """Tell the machine of a payload, and the owner of one that has no place."""
        stream = self._streams.get(frame.stream_id)
        homeless = stream is not None and num_bytes > 0 and not placed and not stream.discarding
        if stream is not None and homeless:
            stream.discarding = True  # from here on its window is not opened again
        self._receive(frame)
        if stream is not None and homeless:
            self._body_too_large(stream, stream.num_received)

    def _on_data(self, event: h2_events.DataReceived) -> None:
        stream = self._streams.get(event.stream_id)
        num_bytes = event.flow_controlled_length
        if stream is not None:
            stream.progress_at = self._now
            stream.num_received += len(event.data)
        if num_bytes:
            self._give_credit(stream, num_bytes, ended=event.stream_ended is not None)

    def _on_window(self, _event: h2_events.WindowUpdated) -> None:
        self._sender.unblock()

    def _give_credit(self, stream: Stream | None, num_bytes: int, *, ended: bool) -> None:
        """Open the windows again by what has come.

        The connection's is opened on receipt: memory is bounded by admission, and a
        window opened only when bodies are done could stop two half-received ones for
        ever. A stream's is opened as far as its body may still go on.
        """
        limits, machine = self._limits, self._machine
        self._connection_credit += num_bytes
        if self._connection_credit >= limits.connection_window_bytes // 2:
            machine.increment_flow_control_window(self._connection_credit)
            self._connection_credit = 0
        if stream is None or stream.discarding or ended:
            return
        if stream.declared is None or stream.declared > limits.stream_window_bytes:
            stream.credit += num_bytes
            if stream.credit >= limits.stream_window_bytes // 2:
                machine.increment_flow_control_window(stream.credit, stream.stream_id)
                stream.credit = 0

    # ends

    def _queue_body(
        self, stream: Stream, headers: list[Header], body: Sequence[Buffer]
    ) -> None:
        """Send headers now, the body as windows allow."""
        outgoing = OutgoingBody(body)
        self._machine.send_headers(stream.stream_id, headers, end_stream=not outgoing.num_left)
        if outgoing.num_left:
            self._sender.add(stream, outgoing)
        else:
            self._body_left(stream)

    def _forget(self, stream: Stream) -> None:
        """Drop our part of a stream that is over; the machine has its own."""
        del self._streams[stream.stream_id]
        self._sender.drop(stream)
        stream.release()

    def _check_unsent(self) -> None:
        out = self._machine.out
        if len(out) > _FEW_BUFFERS:
            num_bytes = sum(map(len, out))
            if num_bytes > self._limits.max_unsent_control_bytes:
                raise ConnectionFault(
                    ErrorCodes.ENHANCE_YOUR_CALM, "the peer asks and does not read"
                )

    def _fail(self, code: ErrorCodes, reason: str) -> None:
        self._machine.send_goaway(self._machine.highest_inbound_stream_id, code)
        self._end(reason)

    def _end(self, reason: str) -> None:
        if self.end_reason is not None:
            return
        self.end_reason = reason
        for stream in list(self._streams.values()):
            self._forget(stream)
            self._events.append(StreamLost(stream.stream_id, reason, processed=True))
        self._events.append(ConnectionEnded(reason))

    def _take_events(self) -> list[Event]:
        events = self._events
        self._events = []
        return events
