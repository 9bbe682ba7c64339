"""What ended a process of a launch, as the process itself writes it down for its launcher.

Its output can't tell: a traceback may be of an error that was handled, of a thread, or part of
another error's text. The launcher names a folder in ``VARIABLE``, and the process has a file
there with its id: empty while nothing has ended it, then one JSON object. The lines of the
source are in it: a launcher opens no file whose name comes of a script, which may be anything.

Imported by whoever imports paramfleet: it imports next to nothing.
"""

import atexit
import contextlib
import os
import stat
import sys
import threading
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any, NoReturn

__all__ = ["VARIABLE", "note_ending", "note_exit"]

VARIABLE = "PARAMFLEET_ENDINGS"
"""Names the folder; without it nothing is written."""

_MAX_FRAMES = 1000
"""The innermost ones are kept."""

_MAX_FRAMES_BYTES = 500_000
"""Of all frames as JSON."""

_MAX_TEXT = 10_000
"""Characters."""

_MAX_FILE = 4096
"""Characters of the name of a file."""

_MAX_LINE = 500
"""Characters of a line of the source, and of a function's name."""

_MAX_SOURCE_BYTES = 4 << 20
"""Of a file; lines behind that aren't shown."""

_Frame = tuple[str, int, str]
"""File, line and function."""

_noting: "list[_Noting]" = []
"""What this process has, once it has any."""


def note_ending() -> None:
    """Write down, from now on, which exception or which call of ``sys.exit`` ends this process.

    Only where a launcher asks for it, and only in the process that it has started, which leads
    a session: not in what that starts. May be called again.
    """
    folder = os.environ.get(VARIABLE)  # noqa: TID251 - before settings are imported
    if not folder or os.getsid(0) != os.getpid():
        return
    if _noting and _noting[0].is_own:
        return
    noting = _Noting(os.path.join(folder, str(os.getpid())))  # noqa: PTH118 - not imported
    with contextlib.suppress(OSError):  # no such folder here
        noting.begin()
        _noting[:] = [noting]


def note_exit(ended: SystemExit) -> None:
    """Write down what has ended the program, where somebody has caught it."""
    if _noting:
        _noting[0].exits(ended.code, list(_of_trace(ended.__traceback__)))


class _Noting:
    """Writes the file of this process. All but ``begin`` may be called from any thread.

    Args:
        path: The file.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._pid = os.getpid()
        self._known: BaseException | None = None
        """What the interpreter had raised to the top when something was written last."""

    @property
    def is_own(self) -> bool:
        """Return whether this process has made it, and not one whose fork it is."""
        return os.getpid() == self._pid

    def begin(self) -> None:
        """Make the file, and be called when the process ends.

        Raises:
            OSError: if it can't be made.
        """
        self._write(b"")
        report, leave = sys.excepthook, sys.exit

        def hook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
            # else a script, or a library, shows one that it has handled
            if error is _uncaught() and not _is_running(sys._getframe(1)):  # noqa: SLF001
                self.raised(error, trace)
            report(kind, error, trace)

        def exit_(*status: Any) -> NoReturn:
            caller = sys._getframe(1)  # noqa: SLF001
            if _is_running(caller):
                self.exits(status[0] if status else None, list(_of_stack(caller)))
            elif self._may_write():
                self._look()  # a script's own hook ends it so
            leave(*status)

        sys.excepthook = hook
        sys.exit = exit_
        atexit.register(self._look)

    def raised(self, error: BaseException, trace: TracebackType | None) -> None:
        """Write down an exception that nobody has caught."""
        if not self._may_write():
            return
        self._known = error
        kind = type(error).__name__
        try:
            text = str(error).strip()
        except Exception:  # noqa: BLE001 - the script's own code
            text = "(its text can't be made)"
        frames = list(_of_trace(trace))
        if isinstance(error, SyntaxError) and error.filename:
            frames.append((error.filename, error.lineno or 0, ""))
        self._note("error", f"{kind}: {text}" if text else kind, 1, frames)

    def exits(self, status: Any, frames: list[_Frame]) -> None:
        """Write down a call that is to end the process.

        Args:
            status: A code, a text, or None.
            frames: File, line and function of each frame, the innermost last.
        """
        if not self._may_write():
            return
        self._known = _uncaught()
        if status is None or isinstance(status, int):
            self._note("exit", "", _code_of(status or 0), frames)
            return
        with contextlib.suppress(Exception):  # the script's own code
            self._note("exit", str(status), 1, frames)

    def _look(self) -> None:
        """Write down what a script's own hook, put in the place of ours, was called with."""
        error = _uncaught()
        if error is not None and error is not self._known:
            self.raised(error, error.__traceback__)

    def _may_write(self) -> bool:
        return self.is_own and threading.current_thread() is threading.main_thread()

    def _note(self, kind: str, text: str, code: int, frames: list[_Frame]) -> None:
        import json  # noqa: PLC0415 - once

        kept: list[tuple[str, int, str, str]] = []
        sources, left_bytes = _Sources(), _MAX_FRAMES_BYTES
        for file, line, name in reversed(frames[-_MAX_FRAMES:]):
            one = file[:_MAX_FILE], line, name[:_MAX_LINE], sources.line(file, line)
            left_bytes -= len(json.dumps(one))
            if left_bytes < 0:
                break
            kept.append(one)
        fact = {"kind": kind, "text": text[:_MAX_TEXT], "code": code}
        data = json.dumps({**fact, "frames": kept[::-1]}).encode()
        with contextlib.suppress(OSError):  # the launcher has ended, or the disk is full
            self._write(data)

    def _write(self, data: bytes) -> None:
        """Write the file whole or not at all.

        Raises:
            OSError: if it can't be written.
        """
        part = f"{self._path}.part"
        file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            while data:
                data = data[os.write(file, data) :]
        finally:
            os.close(file)
        os.replace(part, self._path)  # noqa: PTH105 - not imported


class _Sources:
    """The lines of the files of frames; each file is read once, if it is one at all."""

    def __init__(self) -> None:
        self._files: dict[str, list[bytes]] = {}

    def line(self, file: str, number: int) -> str:
        """Return a line of a file, from 1 on, without blanks around it; empty if unknown."""
        known = sys.modules.get("linecache")
        with contextlib.suppress(Exception):  # what a script has put there may be anything
            entry = None if known is None else known.cache.get(file)
            if entry is not None and len(entry) > 1 and number > 0:
                return str(entry[2][number - 1])[: 2 * _MAX_LINE].strip()[:_MAX_LINE]
        if file not in self._files:
            self._files[file] = _lines_of(file)
        lines = self._files[file]
        if not 0 < number <= len(lines):
            return ""
        text = lines[number - 1][: 8 * _MAX_LINE].decode("utf-8", "replace")
        return text.strip("\ufeff \t\r\f")[:_MAX_LINE]


def _lines_of(file: str) -> list[bytes]:
    """Return the lines of a regular file; none of anything else, which could block a reader."""
    with contextlib.suppress(OSError, ValueError, MemoryError):
        if not stat.S_ISREG(os.stat(file).st_mode):  # noqa: PTH116 - not imported
            return []
        opened = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            if stat.S_ISREG(os.fstat(opened).st_mode):
                return os.read(opened, _MAX_SOURCE_BYTES).split(b"\n")
        finally:
            os.close(opened)
    return []


def _code_of(status: int) -> int:
    """Return the exit code that the interpreter makes of a whole number of any size."""
    return status & 0xFF if -(1 << 63) <= status < 1 << 63 else 0xFF


def _uncaught() -> BaseException | None:
    """Return what the interpreter has raised to the top, before it calls its hook."""
    error: BaseException | None = getattr(sys, "last_value", None)
    return error


def _is_running(frame: FrameType | None) -> bool:
    """Return whether the program itself runs in a frame: it hasn't raised to the top yet."""
    program = sys.modules["__main__"].__dict__
    while frame is not None:
        if frame.f_globals is program and frame.f_code.co_name == "<module>":
            return True
        frame = frame.f_back
    return False


def _of_trace(trace: TracebackType | None) -> Iterator[_Frame]:
    while trace is not None:
        code = trace.tb_frame.f_code
        yield code.co_filename, trace.tb_lineno, code.co_name
        trace = trace.tb_next


def _of_stack(frame: FrameType | None) -> Iterator[_Frame]:
    """Yield a frame and those around it, the outermost first."""
    frames = []
    while frame is not None:
        frames.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    yield from reversed(frames)
