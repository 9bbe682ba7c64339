"""How a tier on disk works, and what it says of itself."""

from dataclasses import dataclass, field

from paramfleet_shared.system.clock import Clock, SystemClock
from paramfleet_shared.tables.disk.access.buffers import Buffers
from paramfleet_shared.tables.disk.access.system import System
from paramfleet_shared.tables.disk.access.transfers import Engine

__all__ = ["TierOptions", "TierStats"]


@dataclass(frozen=True, slots=True)
class TierOptions:
    """How a tier works."""

    memory_bytes: int = 128 << 20
    """For the keys in the log, a third of it for those that come while others are merged."""
    salt: int | None = None
    """Of the hash of a new tier's keys, below 2^63; None for any."""
    engine: Engine = "auto"
    clock: Clock = field(default_factory=SystemClock)
    system: System = field(default_factory=System)
    buffers: Buffers = field(default_factory=Buffers)
    """Tiers may have them together, if one thread at a time uses one of these tiers."""


@dataclass(frozen=True, slots=True)
class TierStats:
    """What a tier has, and what it has done since it was opened."""

    engine: str
    """``ring`` or ``threads``."""
    engine_reason: str
    """Why there is no ring."""
    is_direct: bool
    """Whether reads of pages bypass the system's page cache."""
    merged_rows: int
    """On pages; rows in the log may be newer ones of the same keys."""
    logged_keys: int
    log_bytes: int
    pages: int
    page_bytes: int
    overflow_pages: int
    file_bytes: int
    memory_bytes: int
    """Of the keys in the log."""
    reads_per_s: float
    bytes_per_s: float
    """What the disk can do, as measured when the tier was opened."""
    gap: int
    """Pages read across."""
    page_requests: int
    second_reads: int
    """Keys for which an overflow page was read."""
    is_merging: bool
    batches: int
    """Of pages that were replaced, since there is the tier."""
