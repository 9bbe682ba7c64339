"""What was written and no reader has taken yet: pieces in their order, and a bound on them."""

from collections import deque
from collections.abc import Hashable

__all__ = ["Backlog"]


class _Waiting:
    """What one output has waiting, and what it was refused."""

    __slots__ = ("is_full", "lost_lines", "num_bytes")

    def __init__(self) -> None:
        self.num_bytes = 0
        self.lost_lines = 0
        self.is_full = False


class Backlog:
    """Pieces for some outputs, which are taken in the order in which they came.

    An output that has too many bytes waiting is refused more until half of them are taken, so
    that what is missing is missing in one place.
    """

    def __init__(self) -> None:
        self._pieces: deque[tuple[Hashable, bytes, bool]] = deque()
        self._outputs: dict[Hashable, _Waiting] = {}

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def add(
        self, to: Hashable, data: bytes, *, most_bytes: int, is_draft: bool = False
    ) -> bool:
        """Append a piece.

        Args:
            to: The output.
            data: What it is to get.
            most_bytes: How many may wait for this output.
            is_draft: Whether the piece is worth nothing once the next one like it is there:
                one that still waits at the end is replaced.

        Returns:
            Whether it was taken; else its lines are counted.
        """
        output = self._outputs.setdefault(to, _Waiting())
        if is_draft and self._pieces and self._pieces[-1][::2] == (to, True):
            output.num_bytes -= len(self._pieces.pop()[1])
        if output.num_bytes <= most_bytes // 2:
            output.is_full = False
        if output.is_full or output.num_bytes + len(data) > most_bytes:
            output.is_full = True
            output.lost_lines += data.count(b"\n")
            return False
        output.num_bytes += len(data)
        self._pieces.append((to, data, is_draft))
        return True

    def num_bytes(self, to: Hashable) -> int:
        """Return how many bytes wait for an output."""
        output = self._outputs.get(to)
        return 0 if output is None else output.num_bytes

    def take(self, most_bytes: int) -> tuple[Hashable, bytes]:
        """Take what comes next: some whole pieces for one output, or a part of a large one.

        Args:
            most_bytes: How many to take.

        Raises:
            IndexError: if nothing waits.
        """
        to, data, _ = self._pieces.popleft()
        if len(data) > most_bytes:
            self._pieces.appendleft((to, data[most_bytes:], False))
            data = data[:most_bytes]
        while self._pieces and self._pieces[0][0] == to:
            if len(data) + len(self._pieces[0][1]) > most_bytes:
                break
            data += self._pieces.popleft()[1]
        self._outputs[to].num_bytes -= len(data)
        return to, data

    def lost_lines(self, to: Hashable, *, most_bytes: int) -> int:
        """Return how many lines an output was refused, once, when it has room again."""
        output = self._outputs.get(to)
        if output is None or not output.lost_lines or output.num_bytes > most_bytes // 2:
            return 0
        lost, output.lost_lines = output.lost_lines, 0
        return lost

    def drop(self, to: Hashable) -> int:
        """Drop what waits for an output; return how many lines it doesn't get, in all."""
        output = self._outputs.pop(to, _Waiting())
        dropped = [data for owner, data, _ in self._pieces if owner == to]
        self._pieces = deque(piece for piece in self._pieces if piece[0] != to)
        return output.lost_lines + sum(data.count(b"\n") for data in dropped)
