"""The settings of a Redis that we start: where it listens, its users, what it keeps."""

from dataclasses import dataclass
from pathlib import Path

from paramfleet_shared.discovery.redis.access_list import user_line

__all__ = ["MAX_SOCKET_BYTES", "ServedRedis", "User"]

MAX_SOCKET_BYTES = 107
"""The longest address of a Unix socket, on Linux."""


@dataclass(frozen=True, kw_only=True, slots=True)
class User:
    """Somebody whom Redis lets in."""

    name: str
    password: str
    """Empty lets in everybody who reaches it."""
    rights: str
    """Keys and commands, as an access list has them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServedRedis:
    """A Redis on a Unix socket, or on a port."""

    users: tuple[User, ...]
    directory: Path
    """Where it works; its data are there if it ``persists``."""
    socket: Path | None = None
    bind: str = ""
    port: int = 0
    """Without a socket."""
    persists: bool = False

    def text(self) -> str:
        """Return its configuration; of passwords it has the hashes alone."""
        if self.socket is not None:
            where = ["port 0", f"unixsocket {_quoted(str(self.socket))}", "unixsocketperm 700"]
        else:
            # Whoever chose the address meant it: what protects it is the access list.
            where = [f"bind {self.bind}", f"port {self.port}", "protected-mode no"]
        lines = [
            *where,
            f"dir {_quoted(str(self.directory))}",
            f"appendonly {'yes' if self.persists else 'no'}",
            "appendfsync always",
            'save ""',
            "daemonize no",
            *(user_line(user.name, user.password, user.rights) for user in self.users),
        ]
        return "\n".join([*lines, ""])


def _quoted(text: str) -> str:
    """Return a string as Redis reads it, with what would end it escaped."""
    plain = "".join(
        c if c.isprintable() and c.isascii() and c not in '"\\' else _bytes_of(c) for c in text
    )
    return f'"{plain}"'


def _bytes_of(character: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in character.encode())
