"""The command that runs a Redis for one job."""

import os
from pathlib import Path

from paramfleet_worker.core.topology import RedisAddress

__all__ = ["redis_command"]


def redis_command(program: Path, address: RedisAddress, directory: Path) -> list[str]:
    """Return a command that serves ``address`` and keeps nothing on disk.

    Args:
        program: The ``redis-server`` to run.
        address: Where it listens, and its password. It goes into a file that only this
            user may read: a command line is visible to all.
        directory: A private folder for that file.

    Raises:
        OSError: if the file can't be written.
    """
    lines = [
        f"bind {address.host}",
        f"port {address.port}",
        'save ""',
        "appendonly no",
        "loglevel warning",
        # The address was chosen by whoever wrote --redis; without a password Redis would
        # else refuse every other machine.
        "protected-mode no",
    ]
    if address.password:
        lines.append(f'requirepass "{_quoted(address.password)}"')
    file = directory / "redis.conf"
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as written:
        written.write("\n".join(lines) + "\n")
    return [str(program), str(file)]


def _quoted(text: str) -> str:
    """Escape what ends a quoted string of a Redis configuration, line ends included."""
    return "".join(
        c if c.isprintable() and c.isascii() and c not in '"\\' else _bytes_of(c) for c in text
    )


def _bytes_of(character: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in character.encode())
