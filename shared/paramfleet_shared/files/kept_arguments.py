"""The arguments with which a script runs a server, kept for the server's next process.

A script may take seconds to come to its server: it imports torch first. So the first process
writes what the script gave to the server, and the launcher starts the next one without the
script. The rest of a server's settings comes of the environment, which is the same for both.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paramfleet_shared.files.job_folder import write_private
from paramfleet_shared.files.regular_files import read_regular

__all__ = ["keep_arguments", "kept_arguments"]

NAMES = frozenset({"host", "port", "index", "load", "checkpoint_dirs"})
"""What a script may give; none of it is a secret."""

MAX_BYTES = 1 << 16
"""Longest file: a command line has room for it."""


def keep_arguments(path: Path, arguments: Mapping[str, Any]) -> bool:
    """Write the arguments of a server that this process runs, whole or not at all.

    Args:
        path: The file; its folder is this user's alone.
        arguments: Settings by name.

    Returns:
        Whether the next process can be started with them.

    Raises:
        OSError: if the file can't be written.
    """
    known = {"folder": str(Path.cwd()), "arguments": dict(arguments)}
    if _arguments_of(known) is None:
        return False
    data = json.dumps(known).encode() + b"\n"
    if len(data) > MAX_BYTES:
        return False
    write_private(path, data)
    return True


def kept_arguments(path: Path) -> dict[str, str] | None:
    """Return the arguments in a file as texts; None if no server has written one there.

    Nor are there any if the server ran in another working folder: relative paths among its
    settings would mean something else.
    """
    try:
        data = read_regular(path, most_bytes=MAX_BYTES + 1)
        known: Any = json.loads(data) if len(data) <= MAX_BYTES else None
    except (OSError, ValueError, RecursionError):
        return None
    arguments = _arguments_of(known)
    if arguments is None or known is None or known["folder"] != str(Path.cwd()):
        return None
    return {name: str(value) for name, value in arguments.items()}


def _arguments_of(known: Any) -> dict[str, str | int] | None:
    """Return the arguments of a file's content, if it is such a content."""
    match known:
        case {"folder": str(), "arguments": dict() as arguments, **more} if not more:
            is_plain = all(type(value) in {str, int} for value in arguments.values())
            return arguments if is_plain and arguments.keys() <= NAMES else None
        case _:
            return None
