"""The newest commands of a group, as bytes, for those who follow it.

They are kept in memory from when somebody begins to follow, and only as many as have room. Who
lags by more can't go on with them, and begins with a new snapshot.
"""

from collections.abc import Sequence

__all__ = ["LIMIT_BYTES", "CommandStream"]

LIMIT_BYTES = 64 << 20
"""Of all commands that are kept."""

LIMIT_COMMANDS = 1 << 20
"""As many may be kept: short ones take more memory than their bytes."""

_COMPACTED = 1024
"""Commands that were let go of before the lists are made shorter."""


class CommandStream:
    """The newest commands. One task uses it.

    Args:
        position: Of the last command before.
        limit_bytes: Of all commands that are kept.
    """

    def __init__(self, *, position: int = 0, limit_bytes: int = LIMIT_BYTES) -> None:
        self.position = position
        """Of the last command."""
        self.limit_bytes = limit_bytes
        self.is_kept = False
        """Whether commands are kept: somebody follows."""
        self._bodies: list[bytes] = []
        self._ends: list[int] = []
        """How many bytes had been appended with each."""
        self._start = 0
        """Of the lists: what is before was let go of."""
        self._appended = 0
        self._before = 0
        """Bytes of what is kept no more."""

    @property
    def first(self) -> int:
        """Return the position of the oldest command that is kept, or of the next one."""
        return self.position + 1 - (len(self._bodies) - self._start)

    @property
    def num_bytes(self) -> int:
        """Return the bytes of all that is kept."""
        return self._appended - self._before

    def begin(self) -> None:
        """Keep commands from now on."""
        self.is_kept = True

    def end(self) -> None:
        """Keep none any more: nobody follows."""
        self.is_kept = False
        self._clear()

    def append(self, body: bytes) -> int:
        """Count a command, and keep it if somebody follows; return its position."""
        self.position += 1
        if self.is_kept:
            self._appended += len(body)
            self._bodies.append(body)
            self._ends.append(self._appended)
            while self.num_bytes > self.limit_bytes or self._num > LIMIT_COMMANDS:
                self._drop(1)
        return self.position

    def skip(self) -> int:
        """Count a command that can't be sent; who lacks it begins with a new snapshot."""
        self._clear()
        self.position += 1
        return self.position

    def has(self, position: int) -> bool:
        """Return whether who has all up to a position can go on with what is kept."""
        return self.first - 1 <= position <= self.position

    def lag_bytes(self, position: int) -> int:
        """Return the bytes of the commands behind a position, as far as they are kept."""
        index = self._start + position - self.first
        before = self._before if index < self._start else self._ends[index]
        return self._appended - before

    def after(self, position: int, *, most_bytes: int, most: int) -> Sequence[bytes]:
        """Return commands behind a position, at least one if there are any.

        Args:
            position: ``has`` it.
            most_bytes: Of all but the first.
            most: How many.
        """
        begin = self._start + position + 1 - self.first
        found: list[bytes] = []
        for body in self._bodies[begin : begin + most]:
            most_bytes -= len(body)
            if found and most_bytes < 0:
                break
            found.append(body)
        return found

    def release(self, position: int) -> None:
        """Let go of the commands up to a position."""
        self._drop(min(self._num, max(0, position + 1 - self.first)))

    @property
    def _num(self) -> int:
        return len(self._bodies) - self._start

    def _drop(self, num: int) -> None:
        for index in range(self._start, self._start + num):
            self._before = self._ends[index]
            self._bodies[index] = b""
        self._start += num
        if self._start >= _COMPACTED and self._start * 2 >= len(self._bodies):
            del self._bodies[: self._start], self._ends[: self._start]
            self._start = 0

    def _clear(self) -> None:
        self._bodies.clear()
        self._ends.clear()
        self._start = 0
        self._before = self._appended
