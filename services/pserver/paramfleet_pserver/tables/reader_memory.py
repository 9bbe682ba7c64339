"""Memory of the ids that readers have yet to read: it ends before that of the tables does.

A reader that asks seldom costs memory, and may begin anew at any time; what trains may not be
refused for it. So readers get memory only while more of it is free than rows need to be let in,
and lose what is kept for them where rows would be refused otherwise.
"""

from collections.abc import Callable

from paramfleet_shared.tables.rows.touched import TouchedIds

__all__ = ["ReaderMemory"]


class ReaderMemory:
    """All that is kept for the readers of a server's tables. Any thread may use it.

    Args:
        has_memory: Returns whether readers may have so many bytes more.
    """

    def __init__(self, has_memory: Callable[[int], bool]) -> None:
        self._has_memory = has_memory
        self._kept: frozenset[TouchedIds] = frozenset()

    def touched(self) -> TouchedIds:
        """Return a new collection of ids, which memory is asked for."""
        made = TouchedIds(self._has_memory)
        self._kept |= {made}
        return made

    def end(self, touched: TouchedIds) -> None:
        """Count a collection no more. May be repeated."""
        self._kept -= {touched}

    @property
    def num_bytes(self) -> int:
        """Return the memory of all."""
        return sum(each.num_bytes for each in self._kept)

    def give_up(self) -> bool:
        """Have all lose what they keep; return whether that gives memory back."""
        num_bytes = self.num_bytes
        for each in self._kept:
            each.lose()
        return num_bytes > 0
