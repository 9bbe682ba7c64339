"""Every size and rate a peer may not pass, in one place.

A length that came over the wire is compared with one of these before memory is
allocated for it.
"""

from dataclasses import dataclass

from paramfleet_shared.errors import ContractError

__all__ = ["DEFAULT_LIMITS", "BodyTooLargeError", "Limits", "most_written_rows"]

_WRITTEN_ROWS = 1 << 16
_WRITTEN_VALUES = 1 << 22
"""Floats: 16 MiB."""


def most_written_rows(dim: int) -> int:
    """Return how many rows of a width one ``write`` may have: others are served after it."""
    return max(1, min(_WRITTEN_ROWS, _WRITTEN_VALUES // dim))


class BodyTooLargeError(ContractError):
    """A message body is longer than its receiver accepts."""

    code = "contract.body_too_large"
    limit_bytes: int
    got_bytes: int
    sentence = (
        "the body has {got_bytes} bytes or more; the receiver accepts {limit_bytes}: send less "
        "in one message, for example smaller batches"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What one side of a connection accepts, and how it paces itself."""

    max_body_bytes: int = 256 << 20
    """Longest body of one message; a longer request is answered 413."""
    max_header_bytes: int = 1 << 20
    """Longest msgpack header of one message."""
    max_tensors: int = 4096
    """Most tensors in one message."""

    max_streams: int = 128
    """Most calls in flight on one connection; further ones are refused, safe to retry."""
    body_budget_bytes: int = 1 << 30
    """Bytes of bodies held for one connection, request and answer; a request over it is
    refused, safe to retry, unless it is the only one."""
    server_budget_bytes: int = 0
    """Bytes of bodies under way, in and out, that one server holds for all its connections;
    a request over it is refused, safe to retry, unless it is the only one. One machine other
    than the server's own gets half. 0 takes an eighth of the memory."""
    max_connections: int = 0
    """Most connections of one server; a further one is closed at once. 0 takes 10,000, or
    what the limit of open files leaves."""
    max_connections_per_peer: int = 1024
    """Most connections from one address (IPv6: one /64 network), from all loopback addresses
    together, or from one process through a Unix socket; at most half of all."""

    body_idle_timeout_s: float = 30.0
    """A body that makes no progress this long, either way, has its stream reset; a frame or a
    header block that takes longer to come ends the connection."""
    min_body_bytes_per_s: int = 16 << 10
    """Least rate of the bodies of one connection together, averaged from
    `body_idle_timeout_s` after their beginning; a slower one has its stream reset."""
    head_timeout_s: float = 10.0
    """Longest wait for a new connection's preface and settings."""

    stream_window_bytes: int = 16 << 20
    """Flow-control window of a stream; larger bodies are credited as they arrive."""
    connection_window_bytes: int = (1 << 31) - 1
    """Flow-control window of a connection. Memory is bounded by admission, not by this."""
    max_frame_bytes: int = 1 << 20
    """Largest DATA frame accepted."""
    chunk_bytes: int = 1 << 20
    """Largest DATA frame sent: the grain at which concurrent bodies interleave."""
    max_control_frame_bytes: int = 32 << 10
    """Largest frame other than DATA, and the longest header block over all its frames."""

    max_resets_per_s: int = 200
    """Streams a client may reset in a second before it is cut off (CVE-2023-44487)."""
    max_control_frames_per_s: int = 20_000
    """Frames that cost their sender nothing (SETTINGS, PING, empty DATA and the like)."""
    max_unsent_control_bytes: int = 1 << 20
    """Answers to control frames that may wait for a peer that does not read."""
    write_high_water_bytes: int = 1 << 20
    """Bytes in the transport's buffer at which sending pauses."""

    connect_timeout_s: float = 5.0
    """Longest wait of one attempt to connect, until the peer's settings are here."""
    probe_timeout_s: float = 2.0
    """After a call without any answer by its deadline: longest wait for a PING's answer."""
    close_timeout_s: float = 2.0
    """Longest wait for a peer to read the last bytes before its connection is cut."""


DEFAULT_LIMITS = Limits()
"""The defaults."""
