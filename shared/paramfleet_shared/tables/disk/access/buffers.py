"""Memory that tiers read to and write from, within one call or step of a merge."""

from dataclasses import dataclass, field

from paramfleet_shared.tables.disk.access.threads import Threads
from paramfleet_shared.tables.disk.access.transfers import Arena

__all__ = ["Buffers"]


@dataclass(frozen=True, slots=True)
class Buffers:
    """Memory of one tier, or of several of which one at a time is used."""

    looked_up: Arena = field(default_factory=Arena)
    """For pages in which keys are looked up."""
    loaded: tuple[Arena, Arena] = field(default_factory=lambda: (Arena(), Arena()))
    """For pages that are replaced, and for those that are read meanwhile."""
    made: Arena = field(default_factory=Arena)
    """For those that replace them."""
    logged: Arena = field(default_factory=Arena)
    """For parts of the log."""
    threads: Threads = field(default_factory=Threads)
    """That transfer, where there is no ring."""
