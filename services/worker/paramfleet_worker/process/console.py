"""Where the lines of the processes go: worker 0's results to stdout, the rest labelled."""

import os
import re
from collections.abc import Callable, Mapping
from typing import BinaryIO

from paramfleet_shared.values.texts import printable
from paramfleet_worker.core.events import ProcessName

__all__ = ["Console", "LineSplitter"]

MAX_LINE_BYTES = 1 << 16
"""A longer line is broken: a process that never ends one must not fill our memory."""

COLOURS = {"worker": 36, "pserver": 35, "coordinator": 34, "launcher": 31}


_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")


class LineSplitter:
    """Cuts a stream of bytes into lines.

    Args:
        take: Called with each line, without its end.
    """

    def __init__(self, take: Callable[[bytes], None]) -> None:
        self._take = take
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the stream."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._take(line)
        while len(self._rest) > MAX_LINE_BYTES:
            self._take(self._rest[:MAX_LINE_BYTES])
            self._rest = self._rest[MAX_LINE_BYTES:]

    def end(self) -> None:
        """Hand out a last line that has no end."""
        if self._rest:
            self._take(self._rest)
            self._rest = b""


class Console:
    """The launcher's own stdout and stderr.

    Args:
        out: Gets the standard output of worker 0, byte for byte, and nothing else, so that
            a program may read the result of a job from there.
        err: Gets every other line, labelled ``[worker 1]``. If it is the same file or pipe as
            ``out``, that gets whole lines, so that no other line comes into one.
        environment: Says whether colours are wanted (``NO_COLOR``).
    """

    def __init__(self, out: BinaryIO, err: BinaryIO, environment: Mapping[str, str]) -> None:
        self._out: BinaryIO | None = out
        self._err: BinaryIO | None = err
        self._colours = err.isatty() and not environment.get("NO_COLOR")
        self.is_terminal = err.isatty()
        """Whether a person reads our lines, and nothing keeps them."""
        self._by_lines = not self.is_terminal and _are_one(out, err)
        self._begun = b""
        """A line of worker 0 whose end hasn't come."""

    def result(self, data: bytes) -> None:
        """Pass on what worker 0 wrote to its standard output."""
        if self._by_lines:  # a text and its newline may come apart
            lines, newline, rest = (self._begun + data).rpartition(b"\n")
            if len(rest) > MAX_LINE_BYTES:
                newline, rest = newline + rest, b""
            data, self._begun = lines + newline, rest
        self._out = _write(self._out, data)

    def end_result(self) -> None:
        """Pass on a last line of worker 0 that has no end."""
        data, self._begun = self._begun, b""
        self._out = _write(self._out, data)

    def line(self, name: ProcessName, line: bytes) -> None:
        """Show a line of a process; of a progress bar only its last state.

        Colours are left out and other control characters escaped: a line may hold the text
        of an exception, and that whatever a stranger sent. What Redis says is for its log
        alone.
        """
        if name.role == "redis":
            return
        shown = line.removesuffix(b"\r").rpartition(b"\r")[2]
        line = _clean(shown.decode(errors="backslashreplace"))
        self._err = _write(self._err, self._label(name.role, name.label) + line + b"\n")

    def say(self, text: str) -> None:
        """Show a line of the launcher itself."""
        for line in text.rstrip("\n").split("\n"):
            label = self._label("launcher", "launcher")
            self._err = _write(self._err, label + _clean(line) + b"\n")

    def terminal_environment(self) -> dict[str, str]:
        """Return what makes worker 0 draw for our terminal; nothing if there is none."""
        if self._out is None or not self._out.isatty():
            return {}
        size = os.get_terminal_size(self._out.fileno())
        return {"COLUMNS": str(size.columns), "LINES": str(size.lines), "FORCE_COLOR": "1"}

    def _label(self, role: str, text: str) -> bytes:
        if not self._colours:
            return f"[{text}] ".encode()
        return f"\x1b[{COLOURS[role]}m[{text}]\x1b[0m ".encode()


def _clean(line: str) -> bytes:
    return line.encode() if line.isprintable() else printable(_COLOUR.sub("", line)).encode()


def _are_one(out: BinaryIO, err: BinaryIO) -> bool:
    """Return whether both lead to the same file or pipe."""
    try:
        return os.path.sameopenfile(out.fileno(), err.fileno())
    except (OSError, ValueError):  # one is none of the system's, or closed
        return False


def _write(stream: BinaryIO | None, data: bytes) -> BinaryIO | None:
    """Write now; return None once no process reads the output. The logs are still written."""
    if stream is None:
        return None
    try:
        stream.write(data)
        stream.flush()
    except BrokenPipeError:
        return None
    return stream
