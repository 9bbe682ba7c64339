"""Answers at an admin address that aren't a coordinator's, and who is shown the token."""

import contextlib
import itertools
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from paramfleet_shared.system.processes.keeping import tied
from paramfleet_worker.app.commands.operating import COMMANDS, SHOW_TABLES
from paramfleet_worker.app.operating import (
    MAX_ANSWER_BYTES,
    AdminAnswerError,
    AdminRefusedError,
    AdminUnreachableError,
    Operator,
    reading,
)

TIMEOUT_S = 5.0

OK = b"HTTP/1.1 200 OK\r\n\r\n"


class Server:
    """Answers each request with the same pieces of bytes, and keeps what it was sent."""

    def __init__(self, listener: socket.socket, thread: ThreadPoolExecutor) -> None:
        self._listener = listener
        self._thread = thread
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self.requests: list[bytes] = []

    def answer(self, pieces: Iterable[bytes]) -> None:
        self._thread.submit(self._answer, pieces)

    def _answer(self, pieces: Iterable[bytes]) -> None:
        with contextlib.suppress(OSError):
            taken, _ = self._listener.accept()
            with taken, contextlib.suppress(OSError):
                self.requests.append(taken.recv(4096))
                for piece in pieces:
                    taken.sendall(piece)
                taken.shutdown(socket.SHUT_WR)
                while taken.recv(4096):  # else closing would reset the connection
                    pass


@pytest.fixture
def servers() -> Iterator[Callable[[], Server]]:
    """Return what makes a server; all are closed at the end."""
    with ThreadPoolExecutor(4) as thread, contextlib.ExitStack() as stack:

        def make() -> Server:
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            stack.callback(listener.shutdown, socket.SHUT_RDWR)  # which ends its accept
            return Server(listener, thread)

        yield make


@pytest.fixture
def answering(servers: Callable[[], Server]) -> Callable[[bytes], Operator]:
    """Return what asks a server that answers one request with some bytes."""

    def make(data: bytes) -> Operator:
        server = servers()
        server.answer([data])
        return Operator(url=server.url, timeout_s=TIMEOUT_S)

    return make


@pytest.mark.parametrize("data", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n{"])
def test_an_answer_that_is_cut_off_is_no_answer(
    answering: Callable[[bytes], Operator], data: bytes
) -> None:
    with pytest.raises(AdminUnreachableError, match="no answer from"):
        answering(data).get("status")


@pytest.mark.parametrize(
    "data",
    [
        b"rubbish\r\n\r\n",
        OK + b"{",
        OK + 100_000 * b"[",
        OK + b"\xff",
        b"HTTP/1.1 302 Found\r\nLocation: /other\r\n\r\n",
        b"HTTP/1.1 204 None\r\n\r\n",
    ],
)
def test_what_isnt_json_is_said_to_be_no_coordinators(
    answering: Callable[[bytes], Operator], data: bytes
) -> None:
    with pytest.raises(AdminAnswerError, match="isn't a coordinator's"):
        answering(data).get("status")


def test_an_answer_without_end_is_read_up_to_a_bound(servers: Callable[[], Server]) -> None:
    server = servers()
    server.answer(itertools.chain([OK], itertools.repeat(b"[" * 65536)))

    with pytest.raises(AdminAnswerError, match=f"more than {MAX_ANSWER_BYTES:,} bytes"):
        Operator(url=server.url, timeout_s=60.0).get("status")


@pytest.mark.parametrize("head", [b"", OK + b"["])
def test_an_answer_that_drips_must_be_whole_in_time(
    servers: Callable[[], Server], head: bytes
) -> None:
    server = servers()
    due = socket.socketpair()

    def drips() -> Iterator[bytes]:
        yield head
        with due[0]:
            due[0].settimeout(0.05)
            while True:
                with contextlib.suppress(TimeoutError):
                    due[0].recv(1)
                    return
                yield b"H"

    server.answer(drips())
    with due[1], pytest.raises(AdminUnreachableError, match=r"0\.5 s"):
        Operator(url=server.url, timeout_s=0.5).get("status")


def test_the_token_goes_to_no_proxy(
    servers: Callable[[], Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy, server = servers(), servers()
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, proxy.url)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for each in (proxy, server):
        each.answer([OK + b"{}"])

    assert Operator(url=server.url, token="it", timeout_s=TIMEOUT_S).get("status") == {}
    assert proxy.requests == []
    assert b"Authorization: Bearer it\r\n" in server.requests[0]


def test_the_token_follows_no_redirect(servers: Callable[[], Server]) -> None:
    other, server = servers(), servers()
    other.answer([OK + b"{}"])
    server.answer([b"HTTP/1.1 302 Found\r\nLocation: %b/\r\n\r\n" % other.url.encode()])

    with pytest.raises(AdminAnswerError, match="302"):
        Operator(url=server.url, token="it", timeout_s=TIMEOUT_S).get("status")
    assert other.requests == []


@pytest.mark.parametrize("url", ["file:///etc/hostname", "http://", "nonsense", "http://[::1"])
def test_an_address_that_is_none_is_not_asked(url: str) -> None:
    with pytest.raises(AdminUnreachableError, match="address"):
        Operator(url=url).get("status")


COMMANDS_OF_ANSWERS = [
    ["status"], ["top", "--once"], ["workers"], ["tables"], ["barriers"], ["audit"],
    ["page"], ["set", "lr=1"], ["scale", "pservers=2"], ["chaos", "kill", "worker:0"],
]  # fmt: skip
OF_LISTS = {"workers", "tables", "barriers", "audit"}
"""Commands whose answer is a list, which may be empty."""

OTHER_SHAPES: list[object] = [{}, 1, None, "x", [1], {"state": []}, []]


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (words, answer)
        for words in COMMANDS_OF_ANSWERS
        for answer in OTHER_SHAPES
        if answer != [] or words[0] not in OF_LISTS
    ],
)
def test_a_command_says_that_an_answer_of_another_shape_is_no_coordinators(
    servers: Callable[[], Server],
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    answer: object,
) -> None:
    server = servers()
    server.answer([OK + json.dumps(answer).encode()])
    command = next(each for each in (*COMMANDS, SHOW_TABLES) if each.name == words[0])

    with pytest.raises(SystemExit) as ended:
        command.main([*words[1:], "--url", server.url], standalone_mode=False)

    said = capsys.readouterr().err
    assert (ended.value.code, said.count("\n")) == (1, 1)
    assert "isn't a coordinator's" in said


TAKEN_BY_ANOTHER = """
import os, socket
os.setuid(65534)
with socket.create_server(("127.0.0.1", 0)) as server:
    print(server.getsockname()[1], flush=True)
    taken, _ = server.accept()
    print(taken.recv(4096), flush=True)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="no /proc of Linux")
def test_another_user_at_the_port_of_an_own_coordinator_is_not_shown_the_token() -> None:
    command = tied([sys.executable, "-c", TAKEN_BY_ANOTHER])
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = f"http://127.0.0.1:{process.stdout.readline().strip()}"

        with pytest.raises(AdminUnreachableError, match="another user"):
            Operator(url=url, token="it", is_own=True, timeout_s=TIMEOUT_S).get("status")

        assert process.stdout.read() == "b''\n"


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_an_own_coordinator_is_shown_the_token(host: str) -> None:
    family = socket.AF_INET6 if host == "::1" else socket.AF_INET
    with socket.create_server((host, 0), family=family) as listener:
        shown = f"[{host}]" if family == socket.AF_INET6 else host
        url = f"http://{shown}:{listener.getsockname()[1]}"
        with ThreadPoolExecutor(1) as thread:
            server = Server(listener, thread)
            server.answer([OK + b"{}"])

            operator = Operator(url=url, token="it", is_own=True, timeout_s=TIMEOUT_S)
            assert operator.get("status") == {}
    assert b"Authorization: Bearer it" in server.requests[0]


def test_an_error_of_the_terminal_is_no_answers() -> None:
    with pytest.raises(UnicodeEncodeError), reading("http://127.0.0.1:1"):
        "é".encode("ascii")


@pytest.mark.parametrize("body", [b"{", b"no JSON", b"", b"[1]"])
def test_a_refusal_that_is_cut_off_is_a_refusal(
    answering: Callable[[bytes], Operator], body: bytes
) -> None:
    head = b"HTTP/1.1 503 No\r\nContent-Length: 5000\r\n\r\n"

    with pytest.raises(AdminRefusedError, match="503"):
        answering(head + body).get("status")
