"""A redis-server of our own, started and stopped."""

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import weakref
from pathlib import Path
from urllib.parse import quote

from redis.exceptions import RedisError

from paramfleet_shared.discovery.redis.access_list import job_rights
from paramfleet_shared.discovery.redis.config import ServedRedis, User
from paramfleet_shared.discovery.redis.serving import (
    find_redis_server,
    load_scripts,
    private_folder,
    require_access_lists,
)
from paramfleet_shared.errors import UnavailableError
from paramfleet_shared.files.job_folder import write_private
from paramfleet_shared.files.regular_files import open_own
from paramfleet_shared.net.rpc.endpoint import join_endpoint
from paramfleet_shared.system.clock import Clock
from paramfleet_shared.system.processes.keeping import Keeper, behind_gate

__all__ = ["EmbeddedRedis", "RedisServerDiedError"]

_ADMIN = "admin"
_LOG_NAME = "redis-server.log"
_START_ATTEMPTS = 5
"""Times another port is tried when somebody took the one that was free a moment ago."""

_START_TIMEOUT_S = 10.0
_STOP_TIMEOUT_S = 5.0
_POLL_S = 0.02
_WILDCARDS = frozenset({"0.0.0.0", "*"})  # noqa: S104 (compared)


class RedisServerDiedError(UnavailableError):
    """A redis-server that was started ended or didn't answer."""

    code = "unavailable.redis_server_died"
    program: str
    reason: str
    log: str
    sentence = "{program} didn't start: {reason}; its log: {log}"


class EmbeddedRedis:
    """One redis-server process for jobs of any name; it ends with its starter at the latest.

    It listens on a Unix socket in a folder that this user alone may enter, or on a port with a
    password. ``url`` lets in the processes of a job, with no more rights than they need;
    ``admin_url`` may do everything.

    Args:
        directory: Where its log (and its data, if ``persist``) go; must exist.
        clock: For the wait until it answers.
        bind: Address to listen on; None takes a Unix socket.
        port: 0 picks a free one; it is kept over ``stop`` and ``start``.
        password: What clients of a port must give; None makes one.
        persist: Whether data outlive a restart.
    """

    def __init__(
        self,
        directory: Path,
        *,
        clock: Clock,
        bind: str | None = None,
        port: int = 0,
        password: str | None = None,
        persist: bool = False,
    ) -> None:
        self._directory = directory
        self._clock = clock
        self._bind = bind
        self._password = "" if bind is None else password or secrets.token_urlsafe()
        self._admin_password = secrets.token_urlsafe()
        self._persist = persist
        self._process: subprocess.Popen[bytes] | None = None
        self._keeper: Keeper | None = None
        self._private = private_folder()
        weakref.finalize(self, shutil.rmtree, self._private, ignore_errors=True)
        self.port = port

    @property
    def url(self) -> str:
        """Return what the ``redis`` setting of a job must be to reach it."""
        return self._url(f":{quote(self._password, safe='')}@" if self._password else "")

    @property
    def admin_url(self) -> str:
        """Return the address of the user who may do everything."""
        return self._url(f"{_ADMIN}:{self._admin_password}@")

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
            OldRedisServerError: if the one it has is too old.
            RedisServerDiedError: if it ends at once or doesn't answer in time.
        """
        program = find_redis_server()
        require_access_lists(program)
        attempts = _START_ATTEMPTS if self._bind is not None and not self.port else 1
        for attempt in range(attempts):
            port = 0 if self._bind is None else self.port or _free_port(self._bind)
            reason = await self._try_start(program, port)
            if reason is None:
                self.port = port
                await self._prepare()
                return
            if attempt == attempts - 1:
                log = str(self._directory / _LOG_NAME)
                raise RedisServerDiedError(program=str(program), reason=reason, log=log)

    def stop(self) -> None:
        """End it, by force if need be; blocks for up to some seconds; may be repeated."""
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            try:
                process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            self._release(process.pid)

    def kill(self) -> None:
        """End it at once, as a crash would."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            self._release(process.pid)

    async def _try_start(self, program: Path, port: int) -> str | None:
        """Return None when it answers, else why it doesn't."""
        process = self._process = self._spawn(program, port)
        deadline = self._clock.monotonic() + _START_TIMEOUT_S
        while self._clock.monotonic() < deadline:
            if process.poll() is not None:
                self._release(process.pid)
                return f"it ended with status {process.returncode}"
            if self._answers(port) and process.poll() is None:
                return None
            await self._clock.sleep(_POLL_S)
        self.kill()
        return f"no answer after {_START_TIMEOUT_S} s"

    def _spawn(self, program: Path, port: int) -> "subprocess.Popen[bytes]":
        file = self._private / "redis.conf"
        write_private(file, self._config(port).encode())
        with os.fdopen(open_own(self._directory / _LOG_NAME), "ab") as log:
            process = subprocess.Popen(  # noqa: S603 (a program we found, and no shell)
                behind_gate([str(program), str(file)]),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._keeper = Keeper()
        self._keeper.add(process.pid)
        assert process.stdin is not None, "it was asked for"
        with contextlib.suppress(BrokenPipeError), process.stdin:
            process.stdin.write(b"\n")
        return process

    def _config(self, port: int) -> str:
        users = (
            User(name="default", password=self._password, rights=job_rights("*")),
            User(name=_ADMIN, password=self._admin_password, rights="~* +@all"),
        )
        return ServedRedis(
            users=users,
            directory=self._directory,
            socket=self._socket if self._bind is None else None,
            bind=self._bind or "",
            port=port,
            persists=self._persist,
        ).text()

    async def _prepare(self) -> None:
        """Do what must be done before a job can use it.

        Raises:
            RedisServerDiedError: if it doesn't answer after all.
        """
        try:
            await load_scripts(self._url(), user=_ADMIN, password=self._admin_password)
        except (TimeoutError, RedisError, OSError) as error:
            log = str(self._directory / _LOG_NAME)
            raise RedisServerDiedError(
                program="redis-server", reason=str(error), log=log
            ) from error

    @property
    def _socket(self) -> Path:
        return self._private / "redis.sock"

    def _url(self, account: str = "") -> str:
        if self._bind is None:
            return f"unix://{account}{quote(str(self._socket))}?db=0"
        host = "127.0.0.1" if self._bind in _WILDCARDS else self._bind
        return f"redis://{account}{join_endpoint(host, self.port)}/0"

    def _release(self, pid: int) -> None:
        """End the keeper of a process that has ended."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.discard(pid)
            keeper.close()

    def _answers(self, port: int) -> bool:
        """Return whether a server that has its data in memory answers."""
        try:
            with self._connect(port) as connection:
                connection.sendall(b"PING\r\n")
                answer = connection.recv(64)
        except OSError:
            return False
        return answer.startswith((b"+PONG", b"-NOAUTH"))

    def _connect(self, port: int) -> socket.socket:
        patience_s = _POLL_S * 10
        if self._bind is not None:
            host = "127.0.0.1" if self._bind in _WILDCARDS else self._bind
            return socket.create_connection((host, port), timeout=patience_s)
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(patience_s)
        try:
            connection.connect(str(self._socket))
        except OSError:
            connection.close()
            raise
        return connection


def _free_port(bind: str) -> int:
    host = "" if bind in _WILDCARDS else bind
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port
