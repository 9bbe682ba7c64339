"""Answers at an admin address that aren't a coordinator's."""

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from paramfleet_worker.app.operating import AdminRefusedError, AdminUnreachableError, Operator


@pytest.fixture
def answering() -> Iterator[Callable[[bytes], Operator]]:
    """Return what asks a server that answers one request with some bytes."""
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as thread:

        def answer(data: bytes) -> None:
            taken, _ = server.accept()
            with taken:
                taken.recv(4096)
                taken.sendall(data)

        def make(data: bytes) -> Operator:
            thread.submit(answer, data)
            return Operator(url=f"http://127.0.0.1:{server.getsockname()[1]}", timeout_s=5.0)

        yield make


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"rubbish\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\n\r\n" + 100_000 * b"[",
    ],
)
def test_an_answer_that_is_none_is_no_answer(
    answering: Callable[[bytes], Operator], data: bytes
) -> None:
    with pytest.raises(AdminUnreachableError, match="no answer from"):
        answering(data).get("status")


@pytest.mark.parametrize("body", [b"{", b"no JSON", b"", b"[1]"])
def test_a_refusal_that_is_cut_off_is_a_refusal(
    answering: Callable[[bytes], Operator], body: bytes
) -> None:
    head = b"HTTP/1.1 503 No\r\nContent-Length: 5000\r\n\r\n"

    with pytest.raises(AdminRefusedError, match="503"):
        answering(head + body).get("status")
