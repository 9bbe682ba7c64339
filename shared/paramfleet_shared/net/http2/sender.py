"""Shares a connection between the bodies that want to leave."""

from collections import deque
from collections.abc import Sequence

from paramfleet_shared.net.http2.frames import (
    DEFAULT_FRAME_BYTES,
    DEFAULT_WINDOW_BYTES,
    FRAME_HEADER,
    Flag,
    FrameType,
)
from paramfleet_shared.net.http2.stream import OutgoingBody, Stream
from paramfleet_shared.net.wire.limits import Limits
from paramfleet_shared.net.wire.message import Buffer

__all__ = ["Sender"]

_BURST_BYTES = 256 << 10  # what is cut before the transport is asked whether it wants more
_SMALL_BYTES = 4096  # a body that leaves with its headers, without waiting for its turn

_DATA = int(FrameType.DATA)  # as plain numbers: they are packed for every call
_HEADERS = int(FrameType.HEADERS)
_END_HEADERS = int(Flag.END_HEADERS)
_END_STREAM = int(Flag.END_STREAM)
_END_BOTH = _END_HEADERS | _END_STREAM


class Sender:
    """Bodies in round robin, one DATA frame each, as far as the peer's windows allow.

    ``out`` holds what is to be written, in order: headers of frames as bytes,
    payloads as the caller's own views. Control frames are appended to it too.
    """

    def __init__(self, limits: Limits) -> None:
        self.out: list[Buffer] = []
        self.window = DEFAULT_WINDOW_BYTES
        """Bytes of DATA that the peer takes on the whole connection."""
        self._chunk_bytes = limits.chunk_bytes
        self._frame_bytes = min(limits.chunk_bytes, DEFAULT_FRAME_BYTES)
        self.ready: deque[tuple[Stream, OutgoingBody]] = deque()
        """Bodies with something to cut."""
        self._blocked: list[tuple[Stream, OutgoingBody]] = []

    def limit_frames(self, num_bytes: int) -> None:
        """Take note of the longest frame that the peer accepts."""
        self._frame_bytes = min(self._chunk_bytes, num_bytes)

    def send(self, stream: Stream, block: bytes, body: Sequence[Buffer]) -> bool:
        """Send headers now, and the body as windows allow.

        Returns:
            True if all of it has left.
        """
        stream_id = stream.stream_id
        num_bytes = sum(map(len, body))
        flags = _END_HEADERS if num_bytes else _END_BOTH
        size = len(block)
        header = FRAME_HEADER.pack(size >> 8, size & 255, _HEADERS, flags, stream_id)
        out = self.out
        out.append(header + block)
        if not num_bytes:
            return True
        if (
            num_bytes <= _SMALL_BYTES
            and num_bytes <= self._frame_bytes
            and num_bytes <= stream.send_window
            and num_bytes <= self.window
        ):
            stream.send_window -= num_bytes
            self.window -= num_bytes
            out.append(
                FRAME_HEADER.pack(
                    num_bytes >> 8, num_bytes & 255, _DATA, _END_STREAM, stream_id
                )
            )
            out.extend(body)
            return True
        stream.outgoing = outgoing = OutgoingBody(body, num_bytes)
        self.ready.append((stream, outgoing))
        return False

    def drop(self, stream: Stream) -> None:
        """Send no more of this stream's body, and release it."""
        body, stream.outgoing = stream.outgoing, None
        if body is not None:
            body.clear()
            self._blocked = [entry for entry in self._blocked if entry[1] is not body]

    def unblock(self) -> None:
        """Try again what waited for a window."""
        if self._blocked:
            self.ready.extend(self._blocked)
            self._blocked.clear()

    def fill(self, now: float) -> list[Stream]:
        """Cut up to one burst of frames into ``out``.

        Returns:
            The streams whose body has left wholly.
        """
        ready, out = self.ready, self.out
        finished = []
        num_cut = 0
        while ready and num_cut < _BURST_BYTES:
            stream, body = ready.popleft()
            if stream.outgoing is not body:  # dropped meanwhile
                continue
            num_left = body.num_left
            num_bytes = min(num_left, self._frame_bytes, stream.send_window, self.window)
            if num_bytes <= 0:
                self._blocked.append((stream, body))
                continue
            last = num_bytes == num_left
            stream.send_window -= num_bytes
            self.window -= num_bytes
            out.append(
                FRAME_HEADER.pack(
                    num_bytes >> 8,
                    num_bytes & 255,
                    _DATA,
                    _END_STREAM if last else 0,
                    stream.stream_id,
                )
            )
            out.extend(body.take(num_bytes))
            stream.progress_at = now
            num_cut += num_bytes
            if last:
                stream.outgoing = None
                finished.append(stream)
            else:
                ready.append((stream, body))
        return finished

    def take(self) -> list[Buffer]:
        """Return ``out``, and begin a new one."""
        out = self.out
        if out:
            self.out = []
        return out
