"""What a process was started with, as Linux keeps it."""

from collections.abc import Mapping
from pathlib import Path

__all__ = ["changed_variables"]

_OF_PYTHON = frozenset({"LC_CTYPE"})
"""The interpreter sets it where no language is set."""


def changed_variables(now: Mapping[str, str]) -> frozenset[str] | None:
    """Return which variables of the environment this process has set, changed or removed.

    Args:
        now: Its environment.

    Returns:
        Their names; None where the system doesn't say what the first environment was.
    """
    try:
        first = Path("/proc/self/environ").read_bytes()
    except OSError:
        return None
    pairs = (entry.decode(errors="surrogateescape") for entry in first.split(b"\0") if entry)
    before = {name: value for name, _, value in (pair.partition("=") for pair in pairs)}
    return frozenset(
        name
        for name in (before.keys() | now.keys()) - _OF_PYTHON
        if before.get(name) != now.get(name)
    )
