"""One request by HTTP, to the address itself: without proxies, redirects or long answers.

``urllib.request`` obeys ``http_proxy`` and follows redirects; what is sent here has a token.
"""

import io
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPResponse, IncompleteRead
from typing import Any, final
from urllib.parse import SplitResult, urlsplit

from typing_extensions import override

from paramfleet_worker.process.probes.peers import is_own

__all__ = ["HttpAnswer", "HttpRequest", "NoAddressError", "TooLongError", "send"]

_MAX_REFUSAL_BYTES = 1 << 16


class NoAddressError(ValueError):
    """What is to be asked isn't an address."""


class TooLongError(HTTPException):
    """An answer has more bytes than are read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HttpAnswer:
    """What came back."""

    status: int
    body: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class HttpRequest:
    """What is asked."""

    url: str
    """``http://host:port/path`` or ``https://host:port/path``."""

    body: bytes | None
    """None asks by GET, else by POST."""

    headers: Mapping[str, str] = field(default_factory=dict)

    tls: ssl.SSLContext | None = None
    """For https; None trusts this machine's authorities."""

    timeout_s: float
    """Seconds until the answer must be whole."""

    only_own: bool = False
    """Whether nothing is sent to another user's process of this machine."""

    max_bytes: int
    """Bytes of the longest answer that is read."""


def send(request: HttpRequest, monotonic: Callable[[], float]) -> HttpAnswer:
    """Ask, and return the answer, whatever its status is.

    Args:
        request: What is asked, and where.
        monotonic: Seconds, for the deadline.

    Raises:
        NoAddressError: if the address is none.
        OSError: if no whole answer comes in time.
        IncompleteRead: if it ends too early.
        HTTPException: if what comes isn't HTTP.
        TooLongError: if it is longer than ``max_bytes``.
        ValueError: if a header can't be sent.
    """
    parts = _parts_of(request.url)
    timed = _TimedSocket(request.timeout_s, monotonic)
    try:
        timed.connect(parts, request)
        path = f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}"
        connection = HTTPConnection(str(parts.hostname))
        connection.sock = timed
        headers = {"Host": parts.netloc, "Accept-Encoding": "identity", **request.headers}
        method = "GET" if request.body is None else "POST"
        connection.request(method, path, body=request.body, headers=headers)
        answer = connection.getresponse()
        if answer.status >= 400:
            return HttpAnswer(status=answer.status, body=_words_of(answer))
        return HttpAnswer(status=answer.status, body=_whole(answer, request.max_bytes))
    finally:
        timed.end()


def _whole(answer: HTTPResponse, max_bytes: int) -> bytes:
    """Return all of an answer.

    Raises:
        IncompleteRead: if it ends too early.
        OSError: if it breaks, or time is over.
        TooLongError: if it is longer than that.
    """
    body = answer.read(max_bytes + 1)
    if len(body) > max_bytes:
        too_long = f"it has more than {max_bytes:,} bytes"
        raise TooLongError(too_long)
    if answer.length:  # so many bytes are missing
        raise IncompleteRead(body, answer.length)
    return body


def _words_of(refusal: HTTPResponse) -> bytes:
    """Return what a refusal says, as far as it can be read."""
    try:
        return refusal.read(_MAX_REFUSAL_BYTES)
    except (OSError, HTTPException):
        return b""


def _parts_of(url: str) -> SplitResult:
    """Return the parts of an address.

    Raises:
        NoAddressError: if it is none.
    """
    rule = "the address must be http://host:port or https://host:port, without a login"
    try:
        parts = urlsplit(url)
        is_whole = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError as error:
        wrong = f"{rule}: {error}"
        raise NoAddressError(wrong) from error
    if not is_whole or "@" in parts.netloc:
        raise NoAddressError(rule)
    return parts


@final
class _TimedSocket:
    """A socket for ``http.client`` whose every use ends at one deadline.

    Args:
        timeout_s: Seconds until the deadline.
        monotonic: Time.
    """

    def __init__(self, timeout_s: float, monotonic: Callable[[], float]) -> None:
        self._timeout_s = timeout_s
        self._now = monotonic
        self._deadline = monotonic() + timeout_s
        self._end: socket.socket | None = None

    def connect(self, parts: SplitResult, request: HttpRequest) -> None:
        """Connect, by TLS for https.

        Raises:
            OSError: if that fails, or time is over.
            PermissionError: if another user's process is there, and must not be.
        """
        port = parts.port or (443 if parts.scheme == "https" else 80)
        self._end = socket.create_connection((parts.hostname, port), timeout=self.left())
        self._end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if request.only_own and not is_own(self._end):
            anothers = (
                "a process of another user of this machine has this port, and is not shown "
                "the token: the coordinator has ended"
            )
            raise PermissionError(anothers)
        if parts.scheme == "https":
            context = request.tls or ssl.create_default_context()
            self._end.settimeout(self.left())
            self._end = context.wrap_socket(self._end, server_hostname=parts.hostname)

    def left(self) -> float:
        """Return the seconds that are left.

        Raises:
            TimeoutError: if there are none.
        """
        left = self._deadline - self._now()
        if left <= 0:
            raise self._late()
        return left

    def sendall(self, data: bytes) -> None:
        """Send all; raises as ``read_into``."""
        end = self._ready()
        try:
            end.sendall(data)
        except TimeoutError as error:
            raise self._late() from error

    def read_into(self, buffer: Any) -> int:
        """Read what has come, and return how many bytes; 0 at the end.

        Raises:
            OSError: if the connection breaks, or time is over.
        """
        end = self._ready()
        try:
            return end.recv_into(buffer)
        except TimeoutError as error:
            raise self._late() from error

    def makefile(self, _mode: str) -> io.BufferedReader:
        """Return what ``http.client`` reads the answer from."""
        return io.BufferedReader(_Reading(self))

    def close(self) -> None:
        """Do nothing: ``http.client`` calls this before it has read the answer."""

    def end(self) -> None:
        """Close the connection."""
        if self._end is not None:
            self._end.close()

    def _ready(self) -> socket.socket:
        assert self._end is not None, "connect first"
        self._end.settimeout(self.left())
        return self._end

    def _late(self) -> TimeoutError:
        return TimeoutError(f"there was no whole answer in {self._timeout_s:g} s")


@final
class _Reading(io.RawIOBase):
    def __init__(self, end: _TimedSocket) -> None:
        super().__init__()
        self._end = end

    @override
    def readable(self) -> bool:
        return True

    @override
    def readinto(self, buffer: Any) -> int:
        return self._end.read_into(buffer)
