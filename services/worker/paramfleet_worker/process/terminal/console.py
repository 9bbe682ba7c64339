"""Where the lines of the processes go: worker 0's results to stdout, the rest labelled.

On a terminal the launcher's own lines have no label, and below all of them is one line that is
drawn again and again: how far the training is.
"""

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import BinaryIO

from paramfleet_shared.values.texts import printable
from paramfleet_worker.core.events import ProcessName
from paramfleet_worker.core.showing.held import HeldTracebacks
from paramfleet_worker.core.showing.lines import Amount, is_shown, level_of
from paramfleet_worker.process.log_file import LogFile
from paramfleet_worker.process.terminal.live_line import drawn
from paramfleet_worker.process.terminal.outlets import are_one, outlets

__all__ = ["Console", "LineSplitter"]

MAX_LINE_BYTES = 1 << 16
"""A longer line is broken: a process that never ends one must not fill our memory."""

COLOURS = {"worker": 36, "pserver": 35, "coordinator": 34, "launcher": 31}

_RED, _YELLOW = b"\x1b[1;31m", b"\x1b[33m"
_LEVELS = {"WARNING": _YELLOW, "ERROR": _RED, "CRITICAL": _RED}
_PLAIN = b"\x1b[0m"

_ERASE = b"\r\x1b[2K"

LAST_WITHIN_S = 1.0
"""Seconds in which who reads the last lines may take nothing, before the launcher ends."""

RESULTS_WITHIN_S = 10.0
"""The same of a program that reads the results of a job that ended well."""

_MOST_HELD = 1000
"""Lines that wait at most until worker 0 has ended its own."""

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

    Nothing here waits for who reads them. Lines that a reader that stands still doesn't take
    are left out in the end, and their number is told when it reads again; the logs have them.
    Results for a program are kept; who passes them on looks whether it ``takes_results``.

    Args:
        out: Gets the standard output of worker 0, byte for byte, and nothing else, so that
            a program may read the result of a job from there.
        err: Gets every other line, labelled ``[worker 1]``. If it is the same file or pipe as
            ``out``, that gets whole lines, so that no other line comes into one.
        environment: Says whether colours are wanted (``NO_COLOR``), and what the terminal is.
        amount: How much is shown.
    """

    def __init__(
        self,
        out: BinaryIO,
        err: BinaryIO,
        environment: Mapping[str, str],
        *,
        amount: Amount = "usual",
    ) -> None:
        self._out, self._err = outlets(out, err)
        self._amount: Amount = amount
        self._log: LogFile | None = None
        self.shows_all = amount == "verbose"
        """Whether each line of each process is shown as it comes."""
        self._tracebacks = HeldTracebacks()
        self.is_terminal = err.isatty()
        """Whether a person reads our lines, and nothing keeps them."""
        self._colours = self.is_terminal and not environment.get("NO_COLOR")
        is_dumb = environment.get("TERM") == "dumb"
        self.draws = self.is_terminal and not is_dumb and amount != "quiet"
        """Whether progress is a line that is drawn again and again."""
        self._unicode = _shows_unicode(environment)
        self._by_lines = not self.is_terminal and are_one(out, err)
        self._begun = b""
        """A line of worker 0 whose end hasn't come."""
        self._share_terminal = self.is_terminal and out.isatty()
        self._live = b""
        """The line at the bottom; empty before there is one."""
        self._is_drawn = False
        self._is_open = False
        """Whether the cursor stands in a line of worker 0."""
        self._is_redrawn = False
        """Whether that line is one that worker 0 draws again and again, as a bar of its own."""
        self._held: list[bytes] = []
        self._hears: Callable[[ProcessName, bytes], None] | None = None

    def keep(self, log: LogFile) -> None:
        """Write the launcher's own lines to its log, too, from now on."""
        self._log = log

    def listen(self, hears: "Callable[[ProcessName, bytes], None]") -> None:
        """Hand each line of pservers to this, too, whether it is shown or not."""
        self._hears = hears

    def close(self, *, keeps_results: bool) -> None:
        """Wait for who reads, but not for long, and show no more.

        Args:
            keeps_results: Whether a program that reads the results has more time.
        """
        is_program = keeps_results and not self._out.stream.isatty()
        lost = self._out.drain(RESULTS_WITHIN_S if is_program else LAST_WITHIN_S)
        if lost := lost + self._err.drain(LAST_WITHIN_S):
            self.say(_not_read(lost))
            self._err.drain(LAST_WITHIN_S)
        self._out.close()
        self._err.close()

    # -- the processes' lines

    @property
    def takes_results(self) -> bool:
        """Return whether more results may come; else a program must read some first."""
        return not self._out.has_enough

    def result(self, data: bytes) -> None:
        """Pass on what worker 0 wrote to its standard output."""
        self._tell_lost()
        if self._by_lines:  # a text and its newline may come apart
            lines, newline, rest = (self._begun + data).rpartition(b"\n")
            if len(rest) > MAX_LINE_BYTES:
                newline, rest = newline + rest, b""
            data, self._begun = lines + newline, rest
        if self._share_terminal and data:
            self._erase()
        is_taken = self._out.write(data)
        if self._share_terminal and data and is_taken:
            _, newline, rest = data.rpartition(b"\n")
            self._is_open = bool(rest)
            self._is_redrawn = b"\r" in rest or (not newline and self._is_redrawn)
            if not self._is_open:
                self._release()

    def end_result(self) -> None:
        """Pass on a last line of worker 0 that has no end."""
        data, self._begun = self._begun, b""
        self._out.write(data)
        self._release()

    def line(self, name: ProcessName, line: bytes, *, is_ending: bool = False) -> None:
        """Show a line of a process; of a progress bar only its last state.

        Colours are left out and other control characters escaped: a line may hold the text
        of an exception, and that whatever a stranger sent. What Redis says is for its log
        alone, and so is what ``is_shown`` leaves out. A traceback, and another line that says
        what ended the process, is held back until it is known whether the job goes on, unless
        all is shown.
        """
        shown = line.removesuffix(b"\r").rpartition(b"\r")[2]
        if self._hears is not None and name.role == "pserver":
            self._hears(name, shown)
        if name.role == "redis" or not is_shown(shown, self._amount):
            return
        if self.shows_all:
            self._line(name, shown)
            return
        for each in self._tracebacks.passed(name, shown, is_ending=is_ending):
            self._line(name, each)

    def let_go(self, name: ProcessName) -> None:
        """Show the traceback that is held back of a process: the job goes on."""
        for line in self._tracebacks.released(name):
            self._line(name, line)

    def let_all_go(self) -> None:
        """Show whatever is held back."""
        self._lines(self._tracebacks.all_released())

    def let_old_go(self, now: float) -> None:
        """Show what has been held back for long; call it about twice a second.

        Args:
            now: Seconds of a clock that never goes back.
        """
        self._tell_lost()
        self._lines(self._tracebacks.old(now))

    def leave_tracebacks(self) -> None:
        """Leave tracebacks to the logs from now on: the job ends, and its cause is told."""
        self._lines(self._tracebacks.dropped())

    def _lines(self, given: Iterable[tuple[ProcessName, list[bytes]]]) -> None:
        for name, lines in given:
            for line in lines:
                self._line(name, line)

    def _line(self, name: ProcessName, shown: bytes) -> None:
        text = _clean(shown.decode(errors="backslashreplace"))
        text = self._coloured(text, _LEVELS.get(level_of(shown), b""))
        self._show(self._label(name.role, name.label) + text + b"\n")

    # -- the launcher's own

    def say(self, text: str) -> None:
        """Show lines of the launcher itself that nobody should miss."""
        self._own(text, colour=_YELLOW if text.startswith("warning: ") else b"")

    def fail(self, text: str) -> None:
        """Show why the job ends badly."""
        self._own(text, colour=_RED)

    def tell(self, text: str, *, kept: str = "") -> None:
        """Show what is good to know; nothing if it is to be quiet.

        Args:
            text: Lines.
            kept: What the log has instead: it may be read by others.
        """
        self._own(text, kept=kept, is_shown=self._amount != "quiet")

    def note(self, text: str) -> None:
        """Show what only those see who ask for all; the log has it."""
        self._own(text, is_shown=self._amount == "verbose")

    def record(self, text: str) -> None:
        """Write to the log alone."""
        self._own(text, is_shown=False)

    def draw(self, parts: Sequence[str], share: float | None) -> None:
        """Draw the line at the bottom anew, if this draws one at all.

        Args:
            parts: What it says, the most important first.
            share: How long its bar is, from 0 to 1; None for no bar.
        """
        if not self.draws or not self._err.is_open:
            return
        if self._held:
            self._release()
        line = drawn(
            parts, share=share, width=_width(self._err.stream), colours=self._colours,
            unicode=self._unicode,
        )  # fmt: skip
        self._live = line.encode(errors="replace")
        if not self._is_open:
            self._put(b"")

    def end_drawing(self) -> None:
        """Take the line at the bottom away."""
        self._release()
        self._live = b""
        self._erase()

    def terminal_environment(self) -> dict[str, str]:
        """Return what makes worker 0 draw for our terminal; nothing if there is none."""
        if not self._out.is_open or not self._out.stream.isatty():
            return {}
        size = os.get_terminal_size(self._out.stream.fileno())
        return {"COLUMNS": str(size.columns), "LINES": str(size.lines), "FORCE_COLOR": "1"}

    # -- how

    def _tell_lost(self) -> None:
        """Say how many lines were not shown, once the reader reads again."""
        if lost := self._out.lost_lines() + self._err.lost_lines():
            self.say(_not_read(lost))

    def _own(
        self, text: str, *, kept: str = "", colour: bytes = b"", is_shown: bool = True
    ) -> None:
        if self._log is not None:
            at = datetime.now(UTC).strftime("%H:%M:%S.%f")[:-3].encode()
            for line in (kept or text).rstrip("\n").split("\n"):
                self._log.write(at + b" launcher " + _clean(line) + b"\n")
        if not is_shown:
            return
        label = b"" if self.is_terminal else self._label("launcher", "launcher")
        for line in text.rstrip("\n").split("\n"):
            self._show(label + self._coloured(_clean(line), colour) + b"\n")

    def _show(self, line: bytes) -> None:
        """Show a line; where a line at the bottom is drawn, not inside one of worker 0."""
        self._tell_lost()
        if self._live and self._is_open and len(self._held) < _MOST_HELD:
            self._held.append(line)
            return
        self._put(line)

    def _release(self) -> None:
        """Show what was held back, on lines of its own."""
        lines, self._held = b"".join(self._held), []
        was_open = self._is_open
        if was_open and self._live:
            lines = (_ERASE if self._is_redrawn else b"\n") + lines
            self._is_open = False
        if not self._put(lines):
            self._is_open = was_open

    def _put(self, lines: bytes) -> bool:
        """Write whole lines, and the one at the bottom below them.

        Returns:
            Whether they are taken; else the terminal stays as it is.
        """
        above = _ERASE if self._is_drawn else b""
        is_drawn = bool(self._live) and not self._is_open
        below = self._live if is_drawn else b""
        is_taken = self._err.write(above + lines + below, is_draft=not lines and is_drawn)
        if is_taken:
            self._is_drawn = is_drawn
        return is_taken

    def _erase(self) -> None:
        if self._is_drawn and self._err.write(_ERASE):
            self._is_drawn = False

    def _coloured(self, text: bytes, colour: bytes) -> bytes:
        return colour + text + _PLAIN if colour and self._colours else text

    def _label(self, role: str, text: str) -> bytes:
        if not self._colours:
            return f"[{text}] ".encode()
        return f"\x1b[{COLOURS[role]}m[{text}]\x1b[0m ".encode()


def _clean(line: str) -> bytes:
    return line.encode() if line.isprintable() else printable(_COLOUR.sub("", line)).encode()


def _shows_unicode(environment: Mapping[str, str]) -> bool:
    """Return whether the terminal shows more than ASCII, as its locale says."""
    names = (environment.get(name) for name in ("LC_ALL", "LC_CTYPE", "LANG"))
    return "utf" in next(filter(None, names), "").lower()


def _width(stream: BinaryIO) -> int:
    """Return the columns of a terminal."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):  # no file of the system's, or closed
        return 80


def _not_read(lost: int) -> str:
    lines = "1 line was" if lost == 1 else f"{lost} lines were"
    return f"warning: {lines} not shown, because nothing read them: they are in the logs"
