"""One process of the job: started behind a gate, read to its end, killed with its group."""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Protocol

from paramfleet_shared.system.processes.keeping import Keeper, behind_gate
from paramfleet_worker.core.events import ProcessName
from paramfleet_worker.core.showing.lines import level_of
from paramfleet_worker.process.children.ending import Ending, read_ending
from paramfleet_worker.process.children.standby import Standby
from paramfleet_worker.process.children.starting import start_with_pipes
from paramfleet_worker.process.log_file import LogFile
from paramfleet_worker.process.prepared.sharing import SharedImports
from paramfleet_worker.process.terminal.console import LineSplitter

__all__ = ["Child", "Listener"]

READ_BYTES = 1 << 16

PAUSE_S = 0.05
"""Seconds between two looks at whether results are taken again."""


class Listener(Protocol):
    """Takes what a process writes: the launcher's console, or what stands for it elsewhere."""

    def say(self, text: str) -> None:
        """Take a line of the launcher's own."""

    def line(self, name: ProcessName, line: bytes, *, is_ending: bool = False) -> None:
        """Take a line, without its end, and whether it says what ended the process."""

    def result(self, data: bytes) -> None:
        """Take what worker 0 wrote to its standard output."""

    def end_result(self) -> None:
        """Learn that no more of it comes."""

    @property
    def takes_results(self) -> bool:
        """Whether more of it may come now."""
        ...


class Child:
    """A process in a session of its own, so that its group is all that it started.

    Belongs to the task that runs the launcher's event loop.

    Args:
        name: Its place in the job.
        command: Program and arguments.
        environment: All of its environment.
        log: File that gets everything the process writes.
        console: Where its lines go.
        keeper: Receives the process group before the command starts.
        append: Keep what an old log has; else it is replaced.
        standby: What may become the command.
        imports: What the process may be a fork of.
        endings: Folder in which it writes down what ends it, if it does.

    Raises:
        OSError: if the log can't be written or no process can be started.
    """

    def __init__(  # noqa: PLR0913 (all but the first two by keyword)
        self,
        name: ProcessName,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        log: Path,
        console: Listener,
        keeper: Keeper,
        append: bool = False,
        standby: Standby | None = None,
        imports: SharedImports | None = None,
        endings: Path | None = None,
    ) -> None:
        self.name = name
        self.log = log
        self._endings = endings
        self._keeper = keeper
        self._log = LogFile(log, console.say, append=append)
        ready = standby.take(command, environment) if standby is not None else None
        self._process = ready or self._started(command, environment, imports)
        self._drained = asyncio.Event()
        self._open_streams = 0
        self._reads_all = False
        """Whether it has ended, so that what it left in its pipes is read in any case."""
        self._last_words = b""
        lines = LineSplitter(self._hear(name, console))
        out = LineSplitter(lambda line: console.line(name, line))
        if name == ProcessName("worker", 0):
            self._follow(
                self._process.stdout,
                console.result,
                console.end_result,
                lambda: console.takes_results or self._reads_all,
            )
        else:
            self._follow(self._process.stdout, out.feed, out.end)
        self._follow(self._process.stderr, lines.feed, lines.end)

    @property
    def pid(self) -> int:
        """Return the process's id, which is also its group's."""
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Tell whether ``poll`` has seen its end."""
        return self._process.returncode is not None

    def poll(self) -> int | None:
        """Return how it ended, None while it runs. What it left behind is killed."""
        if self._process.returncode is not None:
            return self._process.returncode
        code = self._process.poll()
        if code is not None:
            self._signal_group(signal.SIGKILL)
            self._keeper.discard(self._process.pid)
        return code

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the whole group, unless the process has ended."""
        if self._process.returncode is None:
            self._signal_group(number)

    async def drained(self, timeout_s: float) -> None:
        """Wait until everything is in the log that it wrote, which has ended.

        Args:
            timeout_s: How long to wait at most.
        """
        self._reads_all = True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._drained.wait(), timeout_s)

    def tail(self, num_lines: int) -> list[str]:
        """Return the last lines of the log."""
        return self._log.last_lines(num_lines)

    @property
    def last_words(self) -> str:
        """Return its last line on standard error that isn't one of our log's."""
        return self._last_words.decode(errors="replace").strip()

    @property
    def ending(self) -> Ending | None:
        """Return what it has written down of its end; None if it writes nothing down."""
        return None if self._endings is None else read_ending(self._endings, self.pid)

    def close(self) -> None:
        """Stop following the output, even if another process still holds the pipe.

        What it has written down of its end is removed: processes may be restarted often.
        """
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None and not stream.closed:
                asyncio.get_running_loop().remove_reader(stream.fileno())
                stream.close()
        self._log.close()
        if self._endings is not None:
            with contextlib.suppress(OSError):  # a process may put anything there
                (self._endings / str(self.pid)).unlink()

    def _started(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        imports: SharedImports | None,
    ) -> subprocess.Popen[bytes]:
        gated = behind_gate(command)
        process = start_with_pipes(gated, environment, self._keeper, imports)
        assert process.stdin is not None, "it was asked for"
        with contextlib.suppress(BrokenPipeError):  # killed already: poll will tell
            process.stdin.write(b"\n")
        process.stdin.close()
        return process

    def _hear(self, name: ProcessName, console: Listener) -> Callable[[bytes], None]:
        """Return what takes the lines of standard error."""

        def take(line: bytes) -> None:
            is_ending = False
            if line.strip() and not level_of(line):
                self._last_words = line
                ending = self.ending
                text = line.decode(errors="replace")
                is_ending = ending is not None and ending.has_line(text)
            console.line(name, line, is_ending=is_ending)

        return take

    def _signal_group(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _follow(
        self,
        stream: IO[bytes] | None,
        feed: Callable[[bytes], None],
        end: Callable[[], None],
        takes_more: Callable[[], bool] = lambda: True,
    ) -> None:
        """Read a stream to its end; while nobody takes more of it the process waits, too."""
        assert stream is not None, "it was asked for"
        loop = asyncio.get_running_loop()
        descriptor = stream.fileno()

        def read() -> None:
            data = os.read(descriptor, READ_BYTES)
            if data:
                self._log.write(data)
                feed(data)
                if not takes_more():
                    loop.remove_reader(descriptor)
                    loop.call_later(PAUSE_S, go_on)
                return
            loop.remove_reader(descriptor)
            stream.close()
            self._open_streams -= 1
            if self._open_streams == 0:
                self._drained.set()
            end()

        def go_on() -> None:
            if stream.closed:
                return
            if takes_more():
                loop.add_reader(descriptor, read)
            else:
                loop.call_later(PAUSE_S, go_on)

        self._open_streams += 1
        loop.add_reader(descriptor, read)
