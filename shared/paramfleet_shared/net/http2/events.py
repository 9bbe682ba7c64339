"""The events that a connection returns to its owner."""

from typing import NamedTuple

from paramfleet_shared.net.http2.frames import ErrorCode

__all__ = [
    "ConnectionEnded",
    "ConnectionFault",
    "Event",
    "PeerLeaving",
    "PeerReady",
    "ProtocolFault",
    "RequestReceived",
    "RequestTooLarge",
    "ResponseReceived",
    "ResponseTooLarge",
    "StreamLost",
]


class ConnectionFault(Exception):  # noqa: N818 (never leaves http2: it ends the connection)
    """The peer broke the protocol or a limit; the connection must end."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class ProtocolFault(ConnectionFault):
    """The peer did what no peer may do."""

    def __init__(self, what: str, code: ErrorCode = ErrorCode.PROTOCOL_ERROR) -> None:
        super().__init__(code, f"the peer broke the protocol: {what}")


class PeerReady(NamedTuple):
    """The server's settings are here, or have changed: calls may be sent."""


class PeerLeaving(NamedTuple):
    """The server takes no new calls on this connection; those it has go on."""


class RequestReceived(NamedTuple):
    """A whole request; answer it with ``respond``."""

    stream_id: int
    headers: dict[bytes, bytes]
    body: memoryview
    """Writable, 64-byte aligned, owned by whoever takes the event."""


class RequestTooLarge(NamedTuple):
    """A request's body is over the limit; answer it with ``respond``.

    The rest of the body is thrown away.
    """

    stream_id: int
    num_bytes: int
    """Its declared length, or what has come of it."""


class ResponseReceived(NamedTuple):
    """A whole answer; the stream is over."""

    stream_id: int
    status: int
    headers: dict[bytes, bytes]
    body: memoryview
    """Writable, 64-byte aligned, owned by whoever takes the event."""


class ResponseTooLarge(NamedTuple):
    """An answer's body is over the limit; the stream is over."""

    stream_id: int
    num_bytes: int


class StreamLost(NamedTuple):
    """A stream ended without its answer."""

    stream_id: int
    reason: str
    processed: bool
    """False if the peer says that it did nothing with the request: retrying is safe."""


class ConnectionEnded(NamedTuple):
    """No stream goes on; write what is left, then close the transport."""

    reason: str


Event = (
    PeerReady
    | PeerLeaving
    | RequestReceived
    | RequestTooLarge
    | ResponseReceived
    | ResponseTooLarge
    | StreamLost
    | ConnectionEnded
)
