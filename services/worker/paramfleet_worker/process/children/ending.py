"""What a process says of its own end, as ``paramfleet_shared`` has written it down there."""

import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from paramfleet_shared.files.regular_files import open_regular
from paramfleet_worker.core.causes import Cause, as_reason

__all__ = ["Ending", "read_ending"]

_MAX_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """What ended a process that imports paramfleet."""

    kind: Literal["", "error", "exit"] = ""
    """An exception, a call of ``sys.exit``; empty: neither has ended it so far."""

    text: str = ""
    """``ValueError: no rows``, or what ``sys.exit`` was given if that is a text."""

    code: int = 0
    """The exit code that comes of it."""

    frames: tuple[tuple[str, int, str, str], ...] = ()
    """File, line, function and source of each frame, the innermost last."""

    def has_line(self, line: str) -> bool:
        """Return whether a line is one of the text, which the interpreter shows at the end."""
        return line.rstrip() in map(str.rstrip, self.text.splitlines())

    def cause(self, is_library: Callable[[str], bool]) -> Cause:
        """Return it as a traceback would tell it.

        Args:
            is_library: Tells of a file whether it is another's code, which isn't named.
        """
        for file, line, name, source in reversed(self.frames):
            if not is_library(file):
                where = f", in {name}" if name else ""
                return Cause(as_reason(self.text), f"{file}:{line}{where}", source)
        return Cause(as_reason(self.text))


def read_ending(folder: Path, pid: int) -> Ending | None:
    """Return what a process has written down of its end.

    Args:
        folder: That the launcher has named to it.
        pid: Its id.

    Returns:
        None if it doesn't import paramfleet, or its file can't be read.
    """
    try:
        with open_regular(folder / str(pid)) as file:  # the process may put anything there
            data = file.read(_MAX_BYTES)
    except (OSError, ValueError):
        return None
    if not data:
        return Ending()
    with contextlib.suppress(ValueError, TypeError, KeyError):
        said: dict[str, Any] = json.loads(data)
        frames = tuple(
            (str(file), int(line), str(name), str(source))
            for file, line, name, source in said["frames"]
        )
        text, code = str(said["text"]), int(said["code"])
        return Ending(
            kind="exit" if said["kind"] == "exit" else "error",
            text=text,
            code=code,
            frames=frames,
        )
    return None
