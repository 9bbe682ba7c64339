"""Memory that tiers read to and write from, within one call or step of a merge."""

import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from paramfleet_shared.tables.disk.access.threads import Threads
from paramfleet_shared.tables.disk.access.transfers import Arena, Engine, Transfers

__all__ = ["AheadBuffer", "Buffers"]


def _nothing() -> None:
    """Have nobody to take it from."""


class AheadBuffer:
    """Memory that is read to while something else is done, and what reads.

    One holds it at a time, for longer than a call, until another one takes it. The garbage
    collector may close who holds it on any thread, while the thread of the others uses it.
    """

    def __init__(self) -> None:
        self.arena = Arena()
        self._transfers: Transfers | None = None
        self._holder: object = None
        self._note_taken: Callable[[], None] = _nothing
        self._lock = threading.RLock()  # a collection may come within a call

    def lend(
        self,
        holder: object,
        note_taken: Callable[[], None],
        engine: Engine,
        threads: Threads,
    ) -> tuple[Transfers, Arena]:
        """Take it from whoever holds it, and return what reads, and where to.

        Args:
            holder: Who holds it from now on.
            note_taken: Called when it is taken from them.
            engine: How to read, if nothing was read before.
            threads: That do it, where there is no ring.
        """
        with self._lock:
            self._take()
            if self._transfers is None:
                self._transfers = Transfers(engine, may_begin=True, threads=threads)
                weakref.finalize(self, self._transfers.close)
            self._holder, self._note_taken = holder, note_taken
            return self._transfers, self.arena

    def wait(self, holder: object) -> None:
        """Wait for what is read for a holder; pass if it was taken from them.

        Raises:
            OSError: if the system refuses, or the file ends before an extent does.
        """
        with self._lock:
            if self._holder is holder and self._transfers is not None:
                self._transfers.finish()

    def give_back(self, holder: object) -> None:
        """Wait for what is read for a holder, and have it nobody's; pass if it isn't theirs."""
        with self._lock:
            if self._holder is holder:
                self._take()

    def _take(self) -> None:
        if self._transfers is not None:
            self._transfers.forget()
        note_taken, self._note_taken, self._holder = self._note_taken, _nothing, None
        note_taken()


@dataclass(frozen=True, slots=True)
class Buffers:
    """Memory of one tier, or of several of which one at a time is used."""

    looked_up: Arena = field(default_factory=Arena)
    """For pages in which keys are looked up."""
    ahead: deque[AheadBuffer] = field(
        default_factory=lambda: deque([AheadBuffer(), AheadBuffer()])
    )
    """For such pages that are read before; the one that was taken longest ago comes first."""
    loaded: tuple[Arena, Arena] = field(default_factory=lambda: (Arena(), Arena()))
    """For pages that are replaced, and for those that are read meanwhile."""
    made: Arena = field(default_factory=Arena)
    """For those that replace them."""
    logged: Arena = field(default_factory=Arena)
    """For parts of the log."""
    when_read: Callable[[], None] = _nothing
    """Called when a call has read what it needs: what the next one needs may be read then."""
    threads: Threads = field(default_factory=Threads)
    """That transfer, where there is no ring."""
