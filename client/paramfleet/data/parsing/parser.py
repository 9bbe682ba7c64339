"""MultiSlot text to rows, block by block."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paramfleet.data.parsing.bad_lines import BadLine, BadLineError, BadLines, reason_of
from paramfleet.data.parsing.rows import Rows
from paramfleet.data.parsing.slots import Layout
from paramfleet.data.parsing.text_kernels import at_line, parse

__all__ = ["Block", "Parser", "Scratch"]

_MAX_LINE_BYTES = 64 << 20
"""Of a line without an end; a file of something else must not fill the memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """Rows of one file that follow each other."""

    file: int
    """Number of the file in the list."""
    rows: Rows
    lines: NDArray[np.int64]
    """Line of each row, from 1, [R]."""
    end_line: int
    """Lines of the file that have been read behind this block, bad and blank ones too."""
    is_last: bool = False
    """Whether the file ends with it."""


class Scratch:
    """Memory for what a text can hold at most, kept from text to text; of one thread.

    A value takes two bytes of text at least, so does a slot.

    Args:
        layout: The slots of the texts.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._size = -1
        self.fit(0)

    def fit(self, size: int) -> None:
        """Take memory for a text of so many bytes."""
        if size <= self._size:
            return
        self._size = size
        num_rows, num_values = size // (2 * len(self._layout)) + 1, size // 2 + 1
        self.out = (
            np.empty((num_rows, len(self._layout)), np.int32),
            np.empty(num_values, np.int64),
            np.empty(num_values, np.float32),
            np.empty((num_values, 3), np.int64),
        )
        starts = np.zeros(num_rows + 1, np.int64), np.zeros(num_rows + 1, np.int64)
        self.marks = (*starts, np.empty(num_rows, np.int64))


class Parser:
    """Reads the pieces of one file's text, in order; used by one thread.

    Args:
        layout: The slots.
        scratch: Of the thread.
        bad_lines: Gets the lines that are no samples.
        source: How errors name the text.
        file: The file's name and number.
        skip: Lines to pass over at the beginning.
    """

    def __init__(
        self,
        layout: Layout,
        scratch: Scratch,
        bad_lines: BadLines,
        *,
        source: str,
        file: tuple[str, int],
        skip: int = 0,
    ) -> None:
        self._layout = layout
        self._bad_lines = bad_lines
        self._source = source
        self._file = file
        self._left = skip
        self._line = 0
        self._rest = bytearray()
        self._scratch = scratch

    def feed(self, data: bytes) -> Iterator[Block]:
        """Yield the rows of all lines that are complete now.

        Raises:
            BadLineError: at a bad line, if that is to end the reading; all rows before
                have been yielded.
        """
        self._rest += data
        end = self._rest.rfind(b"\n") + 1
        if end:
            text, self._rest = self._rest[:end], self._rest[end:]
            yield from self._parse(text)
        if len(self._rest) > _MAX_LINE_BYTES:
            reason = f"the line does not end within {_MAX_LINE_BYTES >> 20} MiB"
            facts = {"slot": self._layout.names[0], "column": 1, "reason": reason}
            raise BadLineError(source=self._source, line=self._line + 1, **facts)  # type: ignore[arg-type]

    @property
    def rest(self) -> bytes:
        """What follows the last newline."""
        return bytes(self._rest)

    @property
    def num_lines(self) -> int:
        """Lines until the last newline, those passed over too."""
        return self._line

    def finish(self) -> Iterator[Block]:
        """Yield what follows the last newline; the last block says that it is the last.

        Raises:
            BadLineError: as ``feed`` does.
        """
        if self._rest:
            yield from self.feed(b"\n")
        rows = Rows.empty(len(self._layout))
        yield self._block(rows, np.empty(0, np.int64), is_last=True)

    def _parse(self, text: bytearray) -> Iterator[Block]:
        array = np.frombuffer(text, np.uint8)
        begin = 0
        if self._left:
            begin = self._skip(text, array)
        self._scratch.fit(len(text))
        while begin < len(text):
            span = np.array([begin, len(text), self._line, 0], np.int64)
            used = np.zeros(5, np.int64)
            scratch = self._scratch
            code = parse(array, span, self._layout.rules, scratch.out, scratch.marks, used)
            self._line = int(span[2])
            if span[3]:
                yield self._taken(text, int(span[3]), used)
            if code:
                self._bad_lines.take(self._describe(text, int(span[0]), code, used))
            begin = int(span[0])

    def _skip(self, text: bytearray, array: NDArray[np.uint8]) -> int:
        begin = at_line(array, self._left)
        passed = self._left if begin >= 0 else text.count(b"\n")
        self._left -= passed
        self._line += passed
        return begin if begin >= 0 else len(text)

    def _taken(self, text: bytearray, num_rows: int, used: NDArray[np.int64]) -> Block:
        """Return a copy of the rows in the scratch memory."""
        id_starts, float_starts, lines = self._scratch.marks
        counts, ids, floats, unsure = self._scratch.out
        for place, begin, end in unsure[: used[2]]:
            floats[place] = np.float32(float(text[begin:end]))
        rows = Rows(
            counts=counts[:num_rows].copy(),
            ids=ids[: used[0]].copy(),
            floats=floats[: used[1]].copy(),
            id_starts=id_starts[: num_rows + 1].copy(),
            float_starts=float_starts[: num_rows + 1].copy(),
        )
        return self._block(rows, lines[:num_rows].copy(), is_last=False)

    def _block(self, rows: Rows, lines: NDArray[np.int64], *, is_last: bool) -> Block:
        return Block(
            file=self._file[1], rows=rows, lines=lines, end_line=self._line, is_last=is_last
        )

    def _describe(
        self, text: bytearray, after: int, code: int, used: NDArray[np.int64]
    ) -> BadLine:
        begin, at = text.rfind(b"\n", 0, after - 1) + 1, int(used[4])
        line = bytes(text[begin : after - 1])
        number = min(int(used[3]), len(self._layout) - 1)
        words = line[at - begin :].split(maxsplit=1)
        slot = self._layout.slots[number]
        word = words[0] if words else b""
        return BadLine(
            source=self._source,
            file=self._file[0],
            line=self._line,
            slot=slot.name,
            column=at - begin + 1,
            reason=reason_of(code, word=word, width=slot.width or 1),
            text=line.rstrip(b"\r"),
        )
