"""Settings of the log."""

from dataclasses import dataclass

__all__ = ["LogSettings"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LogSettings:
    """How the log is written."""

    sync_every_s: float = 0.01
    """Seconds between the beginnings of two syncs, at least; all commands that were appended
    between them become durable together."""

    segment_bytes: int = 64 << 20
    """Bytes of a segment, which are preallocated; one that must hold more gets more."""

    batch_bytes: int = 4 << 20
    """A batch takes no more commands once it has so many bytes; one command may have more."""

    max_waiting_bytes: int = 64 << 20
    """Bytes of commands that may wait for the disk; what would exceed it is refused."""

    retry_s: float = 1.0
    """Seconds until a disk that is full or failing is tried again."""
