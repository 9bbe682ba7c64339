"""Why a script ended, in the words of its log: the error of its last traceback."""

import re
from collections.abc import Iterable

from paramfleet_shared.values.texts import shortened

__all__ = ["MAX_REASON", "TRACEBACK_LINES", "as_reason", "cause_in"]

TRACEBACK_LINES = 1000
"""Lines at a log's end in which a traceback is looked for."""

MAX_REASON = 500
"""Characters of a reason in the launcher's last line."""

_BEGIN = "Traceback (most recent call last):"
_FRAME = '  File "'
"""Begins a frame, and a SyntaxError, which has no line before."""

_RANK = re.compile(r"^\[rank\d+\]: ")
"""What torch.distributed puts before each line of a traceback."""


def as_reason(text: str) -> str:
    """Return the first line of an error, shortened."""
    return shortened(text.strip().partition("\n")[0], MAX_REASON)


def cause_in(lines: Iterable[str]) -> str:
    """Return the error of the last traceback in a log, as ``ValueError: no rows``.

    Returns:
        Empty if there is no traceback.
    """
    cause = ""
    is_within = False
    for each in lines:
        line = _RANK.sub("", each)
        if line == _BEGIN or line.startswith(_FRAME):
            is_within = True
        elif is_within and line and not line[0].isspace():
            kind, colon, words = line.partition(":")
            cause = f"{kind.rpartition('.')[2]}{colon}{words}"
            is_within = False
    return as_reason(cause)
