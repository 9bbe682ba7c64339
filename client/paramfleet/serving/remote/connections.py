"""Connections of HTTP/1.1 that threads share, each request with a deadline for all of it.

Python's own client sends a head and a body apart, which wakes the server twice, reads heads by
the parser of mails, and has a deadline for each part alone. An answer here has a length, or is
in chunks, or ends with its connection.
"""

import socket
import ssl
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, final
from urllib.parse import SplitResult

from paramfleet.serving.remote.errors import ServerUnreachableError

__all__ = ["Answer", "Connections", "Request"]

_MAX_IDLE = 32
"""Connections that are kept while nobody asks."""

_MAX_HEAD, _MAX_BODY = 1 << 16, 1 << 32
_PIECE_BYTES = 1 << 16


class _NoAnswerError(ConnectionError):
    """A connection ended before the first byte of an answer."""


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
    body: bytes | bytearray


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
                except (_NoAnswerError, ConnectionResetError, BrokenPipeError):
                    pass  # the server had closed it meanwhile
            return self._asked(self._opened(deadline), request, deadline)
        except TimeoutError as error:
            reason = f"not in {timeout_s:g} s"
            raise ServerUnreachableError(url=self._shown, reason=reason) from error
        except (OSError, ValueError) as error:
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
            ValueError: if the answer is none of HTTP.
        """
        connection.deadline = deadline
        is_done = False
        try:
            connection.send(self._bytes_of(request))
            answer = connection.answer()
            stays = answer.headers.get("connection", "").lower() != "close"
            is_done = stays and connection.is_clean and len(self._idle) < _MAX_IDLE
            return answer
        finally:
            if is_done:
                self._idle.append(connection)
            else:
                connection.close()

    def _bytes_of(self, request: Request) -> bytes:
        lines = [
            f"{request.method} {self._url.path.rstrip('/')}{request.path} HTTP/1.1",
            f"Host: {self._url.netloc}",
            "Accept-Encoding: identity",
        ]
        lines += [f"{name}: {value}" for name, value in (request.headers or {}).items()]
        if request.body or request.method != "GET":
            lines.append(f"Content-Length: {len(request.body)}")
        return "\r\n".join([*lines, "\r\n"]).encode("latin-1") + request.body

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
        return _Connection(end, self._now)


@final
class _Connection:
    """One connection, which one thread uses at a time.

    Args:
        end: Of the socket.
        monotonic: Time.
    """

    def __init__(self, end: socket.socket, monotonic: Callable[[], float]) -> None:
        self._end = end
        self._now = monotonic
        self.deadline = 0.0
        self._rest = bytearray()
        """What came behind what was read."""
        self.is_clean = True
        """Whether nothing is left of an answer."""

    def close(self) -> None:
        """Close it."""
        self._end.close()

    def send(self, content: bytes) -> None:
        """Send, before the deadline.

        Raises:
            OSError: if it breaks, or time is over.
        """
        self._end.settimeout(_left(self.deadline, self._now))
        self._end.sendall(content)

    def answer(self) -> Answer:
        """Read an answer, before the deadline.

        Raises:
            OSError: if it breaks, or time is over.
            ValueError: if it is none of HTTP.
        """
        self.is_clean = False
        status, headers = self._head()
        while 100 <= status < 200:
            status, headers = self._head()
        if status in {204, 304}:
            body = bytearray()
        elif "content-length" in headers:
            body = self._exactly(_whole(headers["content-length"], 10))
        elif headers.get("transfer-encoding", "").lower() == "chunked":
            body = bytearray().join(self._chunks())
        else:
            return Answer(status, headers, self._all())
        self.is_clean = not self._rest
        return Answer(status, headers, body)

    def _head(self) -> tuple[int, dict[str, str]]:
        """Read status and headers.

        Raises:
            OSError: if it breaks, or time is over.
            ValueError: if they are none.
        """
        first, *lines = self._until(b"\r\n\r\n", is_first=True).decode("latin-1").split("\r\n")
        version, _, status = first.partition(" ")
        if version not in {"HTTP/1.1", "HTTP/1.0"}:
            raise ValueError("isn't HTTP")
        headers = {}
        for line in lines:
            name, colon, value = line.partition(":")
            if not colon:
                raise ValueError("has a header without a name")
            headers[name.lower()] = value.strip()
        return _whole(status[:3], 10), headers

    def _chunks(self) -> Iterator[bytearray]:
        """Read a body in chunks, and what is behind it.

        Raises:
            OSError: if it breaks, or time is over.
            ValueError: if it isn't in chunks.
        """
        while size := _whole(self._until(b"\r\n").split(b";")[0].decode("latin-1"), 16):
            yield self._exactly(size)
            self._until(b"\r\n")
        while self._until(b"\r\n"):
            pass

    def _until(self, mark: bytes, *, is_first: bool = False) -> bytearray:
        """Read to a mark, which is left out.

        Raises:
            OSError: if it breaks, or time is over.
            ValueError: if it is too far.
        """
        while (place := self._rest.find(mark)) < 0:
            if len(self._rest) > _MAX_HEAD:
                raise ValueError("has a head without an end")
            piece = self._received()
            if not piece:
                kind = _NoAnswerError if is_first and not self._rest else ConnectionError
                raise kind("the connection ended")
            self._rest += piece
        found, self._rest = self._rest[:place], self._rest[place + len(mark) :]
        return found

    def _exactly(self, count: int) -> bytearray:
        """Read so many bytes.

        Raises:
            ConnectionError: if it ends before.
            ValueError: if they are too many.
            OSError: if it breaks, or time is over.
        """
        if count > _MAX_BODY:
            raise ValueError("is too long")
        body = bytearray(count)
        done = min(count, len(self._rest))
        body[:done] = self._rest[:done]
        del self._rest[:done]
        view = memoryview(body)
        while done < count:
            self._end.settimeout(_left(self.deadline, self._now))
            received = self._end.recv_into(view[done:])
            if not received:
                problem = f"the connection ended after {done} of {count} bytes"
                raise ConnectionError(problem)
            done += received
        return body

    def _all(self) -> bytearray:
        """Read to the connection's end.

        Raises:
            OSError: if it breaks, or time is over.
        """
        while piece := self._received():
            self._rest += piece
        return self._rest

    def _received(self) -> bytes:
        self._end.settimeout(_left(self.deadline, self._now))
        return self._end.recv(_PIECE_BYTES)


def _whole(text: str, base: int) -> int:
    """Return a number that isn't negative.

    Raises:
        ValueError: if it is none.
    """
    if not text.isalnum():
        raise ValueError("has a length or status that is no number")
    return int(text, base)


def _left(deadline: float, monotonic: Callable[[], float]) -> float:
    """Return the seconds that are left.

    Raises:
        TimeoutError: if none are.
    """
    left = deadline - monotonic()
    if left <= 0:
        raise TimeoutError
    return left
