"""Connections of HTTP/1.1 that threads share, each request with a deadline for all of it."""

import http.client
import io
import socket
import ssl
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import IO, Any, NamedTuple, cast, final
from urllib.parse import SplitResult

from typing_extensions import override

from paramfleet.serving.remote.errors import ServerUnreachableError

__all__ = ["Answer", "Connections", "Request"]

_MAX_IDLE = 32
"""Connections that are kept while nobody asks."""

_STALE = (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError)
"""How a kept connection ends that the server has closed meanwhile."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request; it may be sent again."""

    method: str
    path: str
    body: bytes = b""
    headers: Mapping[str, str] | None = None


class Answer(NamedTuple):
    """What came."""

    status: int
    headers: Mapping[str, str]
    """By lower-case name."""
    body: bytes


@final
class Connections:
    """Asks one server.

    Args:
        url: Of it.
        context: Of TLS; None is without.
        check: Called with each new connection of TLS; raises if its server isn't the one.
        monotonic: Time.
    """

    def __init__(
        self,
        url: SplitResult,
        *,
        context: ssl.SSLContext | None,
        check: Callable[[ssl.SSLSocket], None],
        monotonic: Callable[[], float],
    ) -> None:
        self._url = url
        self._shown = f"{url.scheme}://{url.netloc}"
        self._context = context
        self._check = check
        self._now = monotonic
        self._idle: deque[_Connection] = deque()  # whose ends are safe to use from all threads

    def ask(self, request: Request, *, timeout_s: float) -> Answer:
        """Send a request, and wait for its answer.

        Args:
            request: What.
            timeout_s: Seconds until the answer must be whole.

        Raises:
            ServerUnreachableError: if none came.
        """
        deadline = self._now() + timeout_s
        connection = self._kept()
        try:
            if connection is not None:
                try:
                    return self._asked(connection, request, deadline)
                except _STALE:
                    pass
            return self._asked(self._opened(deadline), request, deadline)
        except TimeoutError as error:
            reason = f"not in {timeout_s:g} s"
            raise ServerUnreachableError(url=self._shown, reason=reason) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise ServerUnreachableError(url=self._shown, reason=reason) from error

    def close(self) -> None:
        """Close the connections that nobody uses."""
        while (connection := self._kept()) is not None:
            connection.close()

    def _asked(self, connection: "_Connection", request: Request, deadline: float) -> Answer:
        """Ask on a connection, which is kept if it can be.

        Raises:
            OSError: if it breaks, or time is over.
            HTTPException: if the answer is none of HTTP.
        """
        connection.deadline = deadline
        is_done = False
        try:
            path = f"{self._url.path.rstrip('/')}{request.path}"
            body = request.body or None
            connection.request(request.method, path, body, dict(request.headers or {}))
            response = connection.getresponse()
            content = response.read()
            headers = {name.lower(): value for name, value in response.getheaders()}
            is_done = not response.will_close and len(self._idle) < _MAX_IDLE
            return Answer(response.status, headers, content)
        finally:
            if is_done:
                self._idle.append(connection)
            else:
                connection.close()

    def _kept(self) -> "_Connection | None":
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _opened(self, deadline: float) -> "_Connection":
        """Return a new connection.

        Raises:
            OSError: if there is none.
        """
        assert self._url.hostname is not None, "checked"
        port = self._url.port or (443 if self._context else 80)
        left = _left(deadline, self._now)
        end = socket.create_connection((self._url.hostname, port), timeout=left)
        try:
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            end.settimeout(_left(deadline, self._now))
            if self._context is not None:
                end = secured = self._context.wrap_socket(
                    end, server_hostname=self._url.hostname
                )
                self._check(secured)
        except BaseException:
            end.close()
            raise
        return _Connection(end, self._url, self._now)


@final
class _Connection(http.client.HTTPConnection):
    """A connection that is open already."""

    def __init__(
        self, end: socket.socket, url: SplitResult, monotonic: Callable[[], float]
    ) -> None:
        assert url.hostname is not None, "checked"
        super().__init__(url.hostname, url.port or (443 if url.scheme == "https" else 80))
        self.deadline = 0.0
        self._now = monotonic
        self._end = end
        self.auto_open = 0
        self.sock = cast("socket.socket", self)

    def sendall(self, content: Any) -> None:
        """Send, before the deadline."""
        self._end.settimeout(_left(self.deadline, self._now))
        self._end.sendall(content)

    def makefile(self, _mode: str) -> IO[bytes]:
        """Return a file of what comes."""
        return io.BufferedReader(_Incoming(self), 1 << 16)

    def receive(self, buffer: Any) -> int:
        """Receive, before the deadline."""
        self._end.settimeout(_left(self.deadline, self._now))
        return self._end.recv_into(buffer)

    @override
    def close(self) -> None:
        self.sock = None  # as the library does
        super().close()
        self._end.close()


class _Incoming(io.RawIOBase):
    """What comes on a connection; closing it doesn't close that."""

    def __init__(self, connection: _Connection) -> None:
        super().__init__()
        self._connection = connection

    @override
    def readable(self) -> bool:
        return True

    @override
    def readinto(self, buffer: Any) -> int:
        return self._connection.receive(buffer)


def _left(deadline: float, monotonic: Callable[[], float]) -> float:
    """Return the seconds that are left.

    Raises:
        TimeoutError: if none are.
    """
    left = deadline - monotonic()
    if left <= 0:
        raise TimeoutError
    return left
