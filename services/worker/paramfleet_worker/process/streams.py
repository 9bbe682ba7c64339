"""What workers write, where somebody else starts them: pipes that are followed to their end.

torch's agent opens a path for each worker's standard output and error. The paths are pipes
of ours, so that console and logs get their lines as those of any other job.
"""

import os
import selectors
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from paramfleet_shared.system.clock import SystemClock
from paramfleet_worker.core.events import ProcessName
from paramfleet_worker.process.log_file import LogFile
from paramfleet_worker.process.terminal.console import Console, LineSplitter

__all__ = ["Streams"]

READ_BYTES = 1 << 16

LOOK_EVERY_S = 0.5
"""Seconds between two looks at whether a traceback was held back for too long."""

PAUSE_S = 0.05
"""Seconds between two looks at whether results are taken again."""


class Streams:
    """The output of a launcher's workers; one thread of its own reads it.

    Args:
        names: The workers.
        log_dir: Gets ``workerlog.N`` of each; an old one is replaced.
        console: Where lines are shown.

    Raises:
        OSError: if a log can't be written.
    """

    def __init__(self, names: Sequence[ProcessName], log_dir: Path, console: Console) -> None:
        self._console = console
        self._clock = SystemClock()
        self._logs = {
            name: LogFile(log_dir / f"workerlog.{name.index}", console.say) for name in names
        }
        self._selector = selectors.DefaultSelector()
        self._write_ends: list[int] = []
        self._paused: list[selectors.SelectorKey] = []
        """Of worker 0, while nobody takes more of its results."""
        self._reads_all = False
        """Whether the workers have ended, so that what they left is read in any case."""
        self._paths = {name: (self._pipe(name, out=True), self._pipe(name)) for name in names}
        self._thread = threading.Thread(target=self._read, name="streams", daemon=True)
        self._thread.start()

    def paths_of(self, name: ProcessName) -> tuple[str, str]:
        """Return the files that are a worker's standard output and error."""
        return self._paths[name]

    def log_of(self, name: ProcessName) -> Path:
        """Return the file that gets everything a worker writes."""
        return self._logs[name].path

    def tail(self, name: ProcessName, num_lines: int) -> list[str]:
        """Return the last lines of a worker's log."""
        return self._logs[name].last_lines(num_lines)

    def drain(self, timeout_s: float) -> None:
        """Read what the workers, which have ended, left; for ``timeout_s`` at most."""
        self._reads_all = True
        for descriptor in self._write_ends:
            os.close(descriptor)
        self._write_ends.clear()
        self._thread.join(timeout_s)  # longer only if another process still holds a pipe

    def _pipe(self, name: ProcessName, *, out: bool = False) -> str:
        reading, writing = os.pipe()
        self._write_ends.append(writing)
        lines = LineSplitter(lambda line: self._console.line(name, line))
        feed, end = lines.feed, lines.end
        has_results = out and name == ProcessName("worker", 0)
        if has_results:
            feed, end = self._console.result, self._console.end_result
        follow = _Stream(reading, self._logs[name].write, feed, end, has_results=has_results)
        self._selector.register(reading, selectors.EVENT_READ, follow)
        return f"/dev/fd/{writing}"

    def _read(self) -> None:
        while self._selector.get_map() or self._paused:
            self._console.let_old_go(self._clock.monotonic())
            if self._paused and self._takes_results():
                key = self._paused.pop()
                self._selector.register(key.fd, key.events, key.data)
            for key, _ in self._selector.select(PAUSE_S if self._paused else LOOK_EVERY_S):
                stream: _Stream = key.data
                goes_on = stream.read()
                is_paused = goes_on and stream.has_results and not self._takes_results()
                if is_paused:
                    self._paused.append(key)
                if is_paused or not goes_on:
                    self._selector.unregister(key.fd)
                if not goes_on:
                    os.close(key.fd)

    def _takes_results(self) -> bool:
        return self._reads_all or self._console.takes_results


class _Stream:
    """One pipe's read end, and who gets its bytes."""

    def __init__(
        self,
        descriptor: int,
        log: Callable[[bytes], object],
        feed: Callable[[bytes], None],
        end: Callable[[], None],
        *,
        has_results: bool,
    ) -> None:
        self.has_results = has_results
        """Whether a program may read the bytes, and slowly."""
        self._descriptor = descriptor
        self._log = log
        self._feed = feed
        self._end = end

    def read(self) -> bool:
        """Pass on what is there; return whether more may come."""
        data = os.read(self._descriptor, READ_BYTES)
        if data:
            self._log(data)
            self._feed(data)
            return True
        self._end()
        return False
