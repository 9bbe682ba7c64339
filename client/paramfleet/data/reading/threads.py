"""Reader threads: they share the files, and one consumer takes their blocks.

The queue between them is bounded: when it is full, readers wait, and the pipe commands
behind them too. The consumer gets a file's blocks in order, whatever comes in between.
"""

import logging
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import IO

from paramfleet.data.parsing.bad_lines import BadLines
from paramfleet.data.parsing.parser import Block, Parser, Scratch
from paramfleet.data.reading.files import located, open_file, read_some
from paramfleet.data.reading.pipe import Pipe, PipeCutOffError
from paramfleet.data.settings import DatasetSettings
from paramfleet_shared.system.clock import SystemClock

__all__ = ["Readers"]

log = logging.getLogger(__name__)

_SHOWN_BYTES = 40
"""Of a line that was cut off."""


class Readers:
    """The threads that read some files once; ``close`` ends them at any time.

    Args:
        files: All files of the dataset.
        numbers: Which of them to read, in this order.
        skip: Lines to pass over, by number of the file.
        settings: Of the dataset.
        bad_lines: Gets the lines that are no samples.
    """

    def __init__(
        self,
        files: Sequence[str],
        numbers: Sequence[int],
        *,
        skip: Mapping[int, int],
        settings: DatasetSettings,
        bad_lines: BadLines,
    ) -> None:
        self._files = files
        self._numbers = deque(numbers)
        self._skip = skip
        self._settings = settings
        self._bad_lines = bad_lines
        self._blocks: deque[Block] = deque()
        self._error: BaseException | None = None
        self._closed = False
        self._noted_end = False
        """Whether the log says that a file ends without a newline: once an epoch is enough."""
        self._changed = threading.Condition()
        self._pipes: set[Pipe] = set()
        self._num_working = min(settings.thread_num, len(self._numbers))
        self._threads = [
            threading.Thread(target=self._work, name=f"paramfleet-reader-{number}", daemon=True)
            for number in range(self._num_working)
        ]
        for thread in self._threads:
            thread.start()

    def __iter__(self) -> Iterator[Block]:
        """Yield blocks as they come; an error comes behind the blocks read before it.

        Raises:
            FleetError: what went wrong in a reader.
        """
        while True:
            with self._changed:
                while not self._blocks and self._num_working and self._error is None:
                    self._changed.wait()
                block = self._blocks.popleft() if self._blocks else None
                self._changed.notify_all()
            if block is not None:
                yield block
            elif self._error is not None:
                raise self._error
            else:
                return

    def close(self) -> None:
        """End the reading and wait for the threads. May be called twice."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            pipes = list(self._pipes)
        for pipe in pipes:
            pipe.close()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        scratch = Scratch(self._settings.layout)
        try:
            while not self._closed and (number := self._next_file()) is not None:
                self._read(number, scratch)
        except BaseException as error:  # noqa: BLE001 - the end of a thread: the consumer raises it
            with self._changed:
                if self._is_wanted:
                    self._error = error
        finally:
            with self._changed:
                self._num_working -= 1
                self._changed.notify_all()

    def _next_file(self) -> int | None:
        with self._changed:
            return self._numbers.popleft() if self._numbers and self._error is None else None

    def _read(self, number: int, scratch: Scratch) -> None:
        file, settings = self._files[number], self._settings
        lines_read = self._skip.get(number, 0)
        name = located(file, settings)
        is_plain = settings.pipe_command.strip() == "cat"
        command = settings.pipe_command
        self._bad_lines.begin(name, lines_read=lines_read)
        parser = Parser(
            settings.layout,
            scratch,
            self._bad_lines,
            source=name if is_plain else f"the output of {command!r} for {name}",
            file=(name, number),
            skip=lines_read,
        )
        opened = open_file(file, settings)
        if is_plain:
            with opened:
                if self._pass_on(_pieces(opened, name), parser):
                    self._end(parser, name)
            return
        pipe = Pipe(
            command,
            opened,
            file=name,
            silence_s=settings.pipe_timeout_s,
            clock=SystemClock(),
            slots=settings.layout.names,
        )
        with self._changed:
            self._pipes.add(pipe)
            closed = self._closed
        if closed:  # before close() could know of it
            pipe.close()
        try:
            if self._pass_on(iter(pipe.read, b""), parser):
                _require_whole(parser, command, name)
                self._end(parser, name)
        finally:
            with self._changed:
                self._pipes.discard(pipe)
            pipe.close()
            pipe.release()

    def _pass_on(self, pieces: Iterator[bytes], parser: Parser) -> bool:
        """Parse all pieces; return False if no more blocks are wanted."""
        return all(self._put(block) for piece in pieces for block in parser.feed(piece))

    def _end(self, parser: Parser, file: str) -> None:
        """Parse the last line, which may lack a newline: in a file that was cut off, too."""
        if parser.rest and not self._noted_end:
            self._noted_end = True
            facts = {
                "file": file,
                "line": parser.num_lines + 1,
                "remedy": "none if the file is complete: its last line is read",
            }
            log.warning("worker.no_final_newline", extra=facts)
        all(self._put(block) for block in parser.finish())

    def _put(self, block: Block) -> bool:
        """Wait for room; returns False if no more blocks are wanted."""
        with self._changed:
            while len(self._blocks) >= self._settings.num_blocks and self._is_wanted:
                self._changed.wait()
            if self._is_wanted:
                self._blocks.append(block)
                self._changed.notify_all()
            return self._is_wanted

    @property
    def _is_wanted(self) -> bool:
        return not self._closed and self._error is None


def _require_whole(parser: Parser, command: str, file: str) -> None:
    """See that the output of a command ends with a newline.

    Raises:
        PipeCutOffError: if not: a command that stops inside a number leaves another number.
    """
    if rest := parser.rest:
        line, tail = parser.num_lines + 1, rest[-_SHOWN_BYTES:]
        raise PipeCutOffError(command=command, file=file, line=line, tail=tail)


def _pieces(opened: IO[bytes], file: str) -> Iterator[bytes]:
    while data := read_some(opened, file):
        yield data
