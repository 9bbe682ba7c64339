"""Shares a connection between the bodies that want to leave."""

from collections import deque

from paramfleet_shared.http2.machine import Machine
from paramfleet_shared.http2.stream import OutgoingBody, Stream
from paramfleet_shared.wire.limits import Limits

__all__ = ["Sender"]

_BURST_BYTES = 256 << 10  # what is cut before the transport is asked whether it wants more


class Sender:
    """Bodies in round robin, one DATA frame each, as far as the peer's windows allow."""

    def __init__(self, machine: Machine, limits: Limits) -> None:
        self._machine = machine
        self._chunk_bytes = limits.chunk_bytes
        self._ready: deque[tuple[Stream, OutgoingBody]] = deque()
        self._blocked: list[tuple[Stream, OutgoingBody]] = []

    def add(self, stream: Stream, body: OutgoingBody) -> None:
        """Queue a body that is not empty; its headers are in the machine's output."""
        stream.outgoing = body
        self._ready.append((stream, body))

    def drop(self, stream: Stream) -> None:
        """Send no more of this stream's body."""
        stream.outgoing = None

    def unblock(self) -> None:
        """Try again what waited for a window."""
        self._ready.extend(self._blocked)
        self._blocked.clear()

    def fill(self, now: float) -> list[Stream]:
        """Cut up to one burst of frames into the machine's output.

        Returns:
            The streams whose body has left wholly.
        """
        machine, ready = self._machine, self._ready
        finished = []
        num_cut = 0
        while ready and num_cut < _BURST_BYTES:
            stream, body = ready.popleft()
            if stream.outgoing is not body:  # dropped meanwhile
                continue
            num_bytes = min(
                body.num_left,
                self._chunk_bytes,
                machine.local_flow_control_window(stream.stream_id),
                machine.max_outbound_frame_size,
            )
            if num_bytes <= 0:
                self._blocked.append((stream, body))
                continue
            pieces = body.take(num_bytes)
            machine.send_payload(stream.stream_id, pieces, last=not body.num_left)
            stream.progress_at = now
            num_cut += num_bytes
            if body.num_left:
                ready.append((stream, body))
            else:
                stream.outgoing = None
                finished.append(stream)
        return finished
