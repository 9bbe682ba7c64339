"""Why a script ended, in the words of its log: the error of its last traceback, and where.

That is a guess: the last traceback may be of an error that was handled. A process that imports
paramfleet writes down what ended it (``paramfleet_shared.system.processes.ending``).
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from paramfleet_shared.values.texts import printable, shortened

__all__ = [
    "MAX_REASON",
    "TRACEBACK_LINES",
    "Cause",
    "Tracebacks",
    "as_reason",
    "find_cause",
    "is_same_reason",
]

TRACEBACK_LINES = 1000
"""Lines at a log's end in which a traceback is looked for."""

MAX_REASON = 500
"""Characters of a reason in the launcher's last line."""

_BEGIN = "Traceback (most recent call last):"
_FRAME = '  File "'
"""Begins a frame, and a SyntaxError, which has no line before."""

_PLACE = re.compile(r'  File "(?P<file>.+)", line (?P<line>\d+)(?:, in (?P<name>.+))?$')

_RANK = re.compile(r"^\[rank\d+\]: ")
"""What torch.distributed puts before each line of a traceback."""

_OF_OTHERS = ("Exception ignored in", "Exception in thread ")
"""Begins of the line before a traceback of what ends no process."""

_BETWEEN = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)


@dataclass(frozen=True, slots=True)
class Cause:
    """What the last traceback of a log says; all empty if there is none."""

    error: str = ""
    """``ValueError: no rows``."""

    place: str = ""
    """``train.py:10, in read``: the innermost frame of the user's own code, if there is one."""

    source: str = ""
    """That line, as far as the traceback shows it."""


class Tracebacks:
    """Tells which lines of one process belong to a traceback."""

    def __init__(self) -> None:
        self._is_within = False
        self._is_behind = False
        """Whether the last lines were a traceback's error, and blank ones."""

    def has(self, line: str) -> bool:
        """Take the next line; return whether it belongs to one."""
        line = _RANK.sub("", line)
        if line.endswith(_BEGIN) or line.startswith(_FRAME):
            self._is_within, self._is_behind = True, False
            return True
        if self._is_within:
            if line and not line[0].isspace():
                self._is_within, self._is_behind = False, True
            return True
        if self._is_behind and (not line.strip() or line in _BETWEEN):
            return True
        self._is_behind = False
        return False


def as_reason(text: str) -> str:
    """Return the first line of an error, shortened and without control characters."""
    return shortened(printable(text.strip().partition("\n")[0]), MAX_REASON)


def is_same_reason(found: str, published: str) -> bool:
    """Return whether what a process wrote down is what it has published, both ``as_reason``.

    A text is cut at other lengths there, and may begin with empty lines.
    """
    one, other = found[:MAX_REASON].rstrip(": "), published[:MAX_REASON].rstrip(": ")
    is_begin = one.startswith(other) or other.startswith(one)
    return is_begin and bool(one and other)


def find_cause(lines: Iterable[str], is_library: Callable[[str], bool]) -> Cause:
    """Return what the last traceback in a log says that isn't a thread's or a destructor's.

    Args:
        lines: Of the log.
        is_library: Tells of a file whether it is another's code, which isn't named.
    """
    cause = Cause()
    place = source = ""
    is_within = takes_source = is_others = False
    last = ""
    for each in lines:
        line = _RANK.sub("", each)
        if line == _BEGIN:
            is_others = last.startswith(_OF_OTHERS) or (is_others and last in _BETWEEN)
            place = source = ""
            is_within, takes_source = True, False
        elif line.startswith(_FRAME):
            is_others = is_others and is_within
            is_within, takes_source = True, False
            found = _PLACE.fullmatch(line)
            if found is not None and not is_library(found["file"]):
                where = f", in {found['name']}" if found["name"] else ""
                place, source = f"{found['file']}:{found['line']}{where}", ""
                takes_source = True
        elif is_within and line and not line[0].isspace():
            kind, colon, words = line.partition(":")
            error = as_reason(f"{kind.rpartition('.')[2]}{colon}{words}")
            cause = cause if is_others else Cause(error, place, source)
            place = source = ""
            is_within = False
        elif takes_source:
            source, takes_source = line.strip(), False
        last = line or last
    return cause
