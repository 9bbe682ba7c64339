"""The two ends of an HTTP/2 connection in memory, ours and a plain one."""

from collections.abc import Callable
from typing import Protocol

from h2 import events as h2_events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.exceptions import StreamClosedError
from h2.settings import SettingCodes

from paramfleet_shared.net.http2.connection import Connection
from paramfleet_shared.net.http2.events import Event

__all__ = ["End", "OurEnd", "PlainEnd", "exchange"]


class End(Protocol):
    """Takes bytes from the other end and gives bytes to it."""

    def feed(self, data: bytes) -> None:
        """Receive."""
        ...

    def take(self) -> bytes:
        """Return what is to be sent; empty if nothing is."""
        ...


class OurEnd:
    """A connection of ours, fed by hand; ``now`` is its time."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.now = 0.0
        self.events: list[Event] = []
        """All events so far."""
        self.sent_views: list[memoryview] = []
        """The payloads it gave out as views."""

    def feed(self, data: bytes) -> None:
        """Receive ``data`` as a transport would deliver it."""
        while data:
            place = self.connection.get_buffer()
            num_bytes = min(len(place), len(data))
            place[:num_bytes] = data[:num_bytes]
            data = data[num_bytes:]
            self.events += self.connection.buffer_updated(num_bytes, self.now)

    def take(self) -> bytes:
        """Return one burst of what it wants to write."""
        buffers = self.connection.take_buffers(self.now)
        self.sent_views += [b for b in buffers if isinstance(b, memoryview)]
        return b"".join(buffers)

    def events_of(self, cls: type[Event]) -> list[Event]:
        """Return the events of one kind so far."""
        return [event for event in self.events if isinstance(event, cls)]


class PlainEnd:
    """python-hyper's h2, used as its own documentation shows: the outside judge.

    Args:
        client_side: Whether it calls or answers.
        window_bytes: Its stream window.
        answer: For a server: from a request's body to its answer's body.
    """

    def __init__(
        self,
        *,
        client_side: bool,
        window_bytes: int = 65_535,
        answer: Callable[[bytes], bytes] = bytes,
    ) -> None:
        self.h2 = H2Connection(H2Configuration(client_side=client_side, header_encoding=None))
        self.h2.initiate_connection()
        self.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: window_bytes})
        self.received: dict[int, bytearray] = {}
        """Bodies by stream, as far as they came."""
        self.status: dict[int, int] = {}
        """Statuses of answers, by stream."""
        self.ended: list[int] = []
        self.reset: dict[int, int] = {}
        self.goaway: int | None = None
        self._answer = answer
        self._unsent: dict[int, bytes] = {}

    def request(self, body: bytes, *headers: tuple[bytes, bytes]) -> int:
        """Send a request, as a client."""
        stream_id = self.h2.get_next_available_stream_id()
        pseudo = [
            (b":method", b"POST"), (b":scheme", b"http"), (b":authority", b"x"),
            (b":path", b"/v1/op"),
        ]  # fmt: skip
        self.h2.send_headers(stream_id, [*pseudo, *headers], end_stream=not body)
        if body:
            self._unsent[stream_id] = body
        return stream_id

    def give_up(self, stream_id: int) -> None:
        """Reset a stream, as a client."""
        self._unsent.pop(stream_id, None)
        self.h2.reset_stream(stream_id, ErrorCodes.CANCEL)

    def feed(self, data: bytes) -> None:
        """Receive, acknowledge, and answer what has ended."""
        asked = []
        for event in self.h2.receive_data(data):
            match event:
                case h2_events.DataReceived():
                    self.received.setdefault(event.stream_id, bytearray()).extend(event.data)
                    self.h2.acknowledge_received_data(
                        event.flow_controlled_length, event.stream_id
                    )
                case h2_events.ResponseReceived():
                    self.status[event.stream_id] = int(dict(event.headers)[b":status"])
                case h2_events.StreamEnded():
                    self.ended.append(event.stream_id)
                    asked.append(event.stream_id)
                case h2_events.StreamReset():
                    self.reset[event.stream_id] = event.error_code
                    self._unsent.pop(event.stream_id, None)
                case h2_events.ConnectionTerminated():
                    self.goaway = event.error_code
                    self._unsent.clear()
                case _:
                    pass
        for stream_id in asked:
            if not self.h2.config.client_side and stream_id not in self.reset:
                self._respond(stream_id)

    def take(self) -> bytes:
        """Return what windows allow."""
        for stream_id, body in list(self._unsent.items()):
            self._send_some(stream_id, body)
        return self.h2.data_to_send()

    def _respond(self, stream_id: int) -> None:
        body = self._answer(bytes(self.received.get(stream_id, b"")))
        headers = [(b":status", b"200"), (b"content-length", b"%d" % len(body))]
        self.h2.send_headers(stream_id, headers, end_stream=not body)
        if body:
            self._unsent[stream_id] = body

    def _send_some(self, stream_id: int, body: bytes) -> None:
        try:
            window = self.h2.local_flow_control_window(stream_id)
        except StreamClosedError:
            del self._unsent[stream_id]
            return
        num_bytes = min(window, self.h2.max_outbound_frame_size, len(body))
        if num_bytes > 0:
            last = num_bytes == len(body)
            self.h2.send_data(stream_id, body[:num_bytes], end_stream=last)
            self._unsent[stream_id] = body[num_bytes:]
            if last:
                del self._unsent[stream_id]


def _whole(data: bytes) -> list[bytes]:
    return [data]


def exchange(left: End, right: End, *, cut: Callable[[bytes], list[bytes]] = _whole) -> None:
    """Carry bytes both ways until both ends are silent; ``cut`` chops what travels."""
    while True:
        to_right, to_left = left.take(), right.take()
        if not to_right and not to_left:
            return
        for piece in cut(to_right) if to_right else []:
            right.feed(piece)
        for piece in cut(to_left) if to_left else []:
            left.feed(piece)
