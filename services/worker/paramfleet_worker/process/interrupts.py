"""What Ctrl-C does while the command is still importing: it ends with one line.

The import of this module sets it, where the program is the command; ``restore`` ends it, and
from then on an interrupt is Python's ``KeyboardInterrupt``.
"""

import os
import signal
import sys
from types import FrameType

__all__ = ["INTERRUPTED", "restore"]

INTERRUPTED = 128 + int(signal.SIGINT)
"""Exit status of a command that was interrupted."""

_COMMANDS = ("paramfleet", "paramfleet_worker.__main__")


def restore() -> None:
    """Let an interrupt raise an exception again, if it is this module that takes it."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, frame: FrameType | None) -> None:
    """End at once: nothing has been started."""
    del number, frame
    os.write(2, b"paramfleet: interrupted\n")
    os._exit(INTERRUPTED)


def _is_command() -> bool:
    """Return whether this process was started as the command, and Ctrl-C isn't ignored."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    name = os.path.basename(sys.argv[0]) if spec is None else spec.name  # noqa: PTH119 -- quick
    return name in _COMMANDS and signal.getsignal(signal.SIGINT) is signal.default_int_handler


if _is_command():
    signal.signal(signal.SIGINT, _end)
