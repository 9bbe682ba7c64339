"""Which call of a script waits for other workers, for messages."""

import sys
import threading
from types import FrameType

__all__ = ["waits_in"]

_BETWEEN = frozenset({"asyncio", "click", "contextlib", "functools", "runpy", "torch"})
"""Packages that call functions for whoever called them."""

_SPELLED = {
    "paramfleet.api.collectives": "fleet.util",
    "paramfleet.telemetry.job_metrics": "fleet.metrics",
}
"""How scripts reach the methods of a module's classes; those of a session are ``fleet``'s."""


def waits_in(name: str) -> str:
    """Return what the script called, and where, as ``fleet.util.barrier (train.py:12)``.

    Args:
        name: Of what the workers do together, for a caller that isn't a script.

    Returns:
        Empty in another thread than the main one, which doesn't hold up the training.
    """
    if threading.current_thread() is not threading.main_thread():
        return ""
    ours: FrameType | None = None
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - the cheap way to a line
    while frame is not None:
        package = _package_of(frame)
        if package.startswith("paramfleet"):
            ours = frame
        elif package not in _BETWEEN and ours is not None:
            file = frame.f_code.co_filename.rpartition("/")[2]
            return f"{_spelled(ours)} ({file}:{frame.f_lineno})"
        frame = frame.f_back
    return name


def _package_of(frame: FrameType) -> str:
    names = frame.f_globals
    return str(names.get("__package__") or names.get("__name__") or "").partition(".")[0]


def _spelled(frame: FrameType) -> str:
    """Return a function as scripts spell it."""
    module, code = str(frame.f_globals.get("__name__")), frame.f_code
    within = "fleet" if module.startswith("paramfleet.session.") else _SPELLED.get(module)
    return code.co_qualname if within is None else f"{within}.{code.co_name}"
