"""One call on a connection: its body on the way in, its body on the way out."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from paramfleet_shared.net.wire.message import ALIGNMENT_BYTES, Buffer

__all__ = ["BodyMemory", "Held", "OutgoingBody", "Stream", "allocate_body"]

_MIN_GROWTH_BYTES = 64 << 10
_SMALL_BYTES = 1 << 10
_SLAB_BYTES = 16 << 10  # what one small body that is kept can hold on to


class Held(NamedTuple):
    """Bytes of memory that bodies take while they travel."""

    receiving: int = 0
    """Of bodies that have begun to come."""
    sending: int = 0
    """Of bodies that haven't left as yet."""


def allocate_body(num_bytes: int) -> memoryview:
    """Return writable memory that starts at a multiple of 64 bytes; not cleared."""
    memory = np.empty(num_bytes + ALIGNMENT_BYTES, np.uint8)
    shift = -memory.__array_interface__["data"][0] % ALIGNMENT_BYTES
    return memory[shift : shift + num_bytes].data


class BodyMemory:
    """Memory for the bodies of one connection, aligned; small ones share a slab."""

    __slots__ = ("_slab", "_used")

    def __init__(self) -> None:
        self._slab = memoryview(b"")
        self._used = 0

    def allocate(self, num_bytes: int) -> memoryview:
        """Return writable memory that starts at a multiple of 64 bytes; not cleared."""
        if num_bytes > _SMALL_BYTES:
            return allocate_body(num_bytes)
        begin = self._used
        if begin + num_bytes > len(self._slab):
            self._slab = allocate_body(_SLAB_BYTES)
            begin = 0
        end = begin + num_bytes
        self._used = end + -end % ALIGNMENT_BYTES
        return self._slab[begin:end]


class OutgoingBody:
    """Buffers that leave in order, cut where windows and frames demand."""

    __slots__ = ("_offset", "_pieces", "num_bytes", "num_left")

    def __init__(self, buffers: Sequence[Buffer], num_bytes: int) -> None:
        self._pieces = [memoryview(buffer) for buffer in buffers]
        self._pieces.reverse()  # the next one last, to be popped
        self._offset = 0
        self.num_bytes = self.num_left = num_bytes

    def take(self, num_bytes: int) -> list[memoryview]:
        """Return views of the next ``num_bytes`` bytes, at most ``num_left``."""
        self.num_left -= num_bytes
        taken = []
        while num_bytes:
            piece = self._pieces[-1][self._offset : self._offset + num_bytes]
            taken.append(piece)
            num_bytes -= len(piece)
            self._offset += len(piece)
            if self._offset == len(self._pieces[-1]):
                self._pieces.pop()
                self._offset = 0
        return taken

    def clear(self) -> None:
        """Let go of the buffers: nothing more is sent."""
        self._pieces.clear()
        self.num_left = 0


class Stream:
    """The state that a connection keeps of one call.

    Args:
        stream_id: Its number.
        receive_window: Bytes of DATA that the peer may send here.
        send_window: Bytes of DATA that we may send.
        now: The time.
    """

    headers: dict[bytes, bytes] | None = None
    """Those of the peer; None until they came."""
    declared: int | None = None
    """The peer's content-length."""
    num_reserved = 0
    """Bytes of memory that the incoming body has or will have."""
    num_shared = 0
    """Bytes that count against the memory of all connections."""
    body: memoryview | None = None
    num_received = 0
    received_all = False
    ends_by_itself = False
    """The peer can send all of its body without another window."""
    answered = False
    """Our last byte has left, and the peer's has not come."""
    discarding = False
    """The body is over a limit: what comes of it is thrown away."""
    credit = 0
    """Bytes received and not yet given back to the peer's window."""
    outgoing: OutgoingBody | None = None

    def __init__(
        self, stream_id: int, receive_window: int, send_window: int, now: float
    ) -> None:
        self.stream_id = stream_id
        self.receive_window = receive_window
        self.send_window = send_window
        self.progress_at = now
        """When a byte of either body last moved."""

    def place(self, num_bytes: int, max_bytes: int, memory: BodyMemory) -> memoryview | None:
        """Return where the next ``num_bytes`` of the body go, None if they are too many."""
        end = self.num_received + num_bytes
        body = self.body
        if body is None or end > len(body):
            if end > (max_bytes if self.declared is None else self.declared):
                return None
            body = self._grow(end, max_bytes, memory)
        return body[self.num_received : end]

    def take_body(self) -> memoryview:
        """Return the whole body, and release it."""
        body, self.body = self.body, None
        if body is None:
            return allocate_body(0)
        return body if len(body) == self.num_received else body[: self.num_received]

    def size_with(self, num_more: int, max_bytes: int) -> int:
        """Return what a body of unknown length takes once ``num_more`` bytes are there."""
        end = self.num_received + num_more
        if self.body is not None and end <= len(self.body):
            return len(self.body)
        return min(max_bytes, max(end, 2 * self.num_received, _MIN_GROWTH_BYTES))

    def _grow(self, end: int, max_bytes: int, memory: BodyMemory) -> memoryview:
        size = self.declared
        if size is None:
            size = self.size_with(end - self.num_received, max_bytes)
        body = memory.allocate(size)
        if self.body is not None:
            body[: self.num_received] = self.body[: self.num_received]
        self.body = body
        self.num_reserved = size
        return body

    def release(self) -> None:
        """Stop counting the incoming body: it is no longer needed."""
        self.body = None
        self.num_reserved = 0
