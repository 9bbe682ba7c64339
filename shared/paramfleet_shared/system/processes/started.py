"""What a process was started with, as Linux keeps it."""

from collections.abc import Mapping
from pathlib import Path

__all__ = ["changed_variables", "note_environment"]

_OF_PYTHON = frozenset({"LC_CTYPE"})
"""The interpreter sets it where no language is set."""

_noted: list[dict[str, str]] = []
"""What a fork began with, of which Linux doesn't know."""


def note_environment(environment: Mapping[str, str]) -> None:
    """Note with what this process begins, where it is a fork that becomes a program.

    Args:
        environment: All of it.
    """
    _noted[:] = [dict(environment)]


def changed_variables(now: Mapping[str, str]) -> frozenset[str] | None:
    """Return which variables of the environment this process has set, changed or removed.

    Args:
        now: Its environment.

    Returns:
        Their names; None where the system doesn't say what the first environment was.
    """
    before = _noted[0] if _noted else _first()
    if before is None:
        return None
    return frozenset(
        name
        for name in (before.keys() | now.keys()) - _OF_PYTHON
        if before.get(name) != now.get(name)
    )


def _first() -> dict[str, str] | None:
    try:
        first = Path("/proc/self/environ").read_bytes()
    except OSError:
        return None
    pairs = (entry.decode(errors="surrogateescape") for entry in first.split(b"\0") if entry)
    return {name: value for name, _, value in (pair.partition("=") for pair in pairs)}
