"""A server with a secret reads no call of anybody who doesn't prove it."""

import asyncio
import contextlib
import re
import socket
import time
from typing import Any

import pytest

from paramfleet_shared.errors import FleetError
from paramfleet_shared.net.rpc.client import Channel, PeerUnprovenError, PeerUnreachableError
from paramfleet_shared.net.rpc.server import Request
from paramfleet_shared.net.secret import JobSecret
from paramfleet_shared.net.wire.limits import Limits
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.testing.patience import LATE_S

SECRET = JobSecret("s" * 40, "flights")
OTHER = JobSecret("t" * 40, "flights")
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000040000000000")

CLOSED = (
    "it ended the connection instead of proving itself: it has another secret or job, or "
    "means another server"
)


class Counting:
    """A handler that knows how often it was asked."""

    def __init__(self) -> None:
        self.num_calls = 0

    def __call__(self, request: Request) -> Message:
        self.num_calls += 1
        return request.message


SETTINGS, WINDOW_UPDATE = 4, 8


def frame_types(data: bytes) -> list[int]:
    """Return the types of whole HTTP/2 frames."""
    types = []
    while data:
        types.append(data[3])
        data = data[9 + int.from_bytes(data[:3], "big") :]
    return types


async def raw(endpoint: str, text: bytes, *, within_s: float = 5.0) -> bytes:
    """Send bytes, and return all that comes until the server closes."""
    host, _, port = endpoint.rpartition(":")
    async with asyncio.timeout(within_s):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(text)
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""
        finally:
            writer.close()


async def test_members_of_one_secret_call_each_other(peers: Any) -> None:
    echo = Counting()
    channel = await peers.connect({"echo": echo}, secret=SECRET)
    _, endpoint = await peers.serve({"echo": echo}, secret=SECRET)
    channel = peers.channel(endpoint, secret=SECRET)
    answers = await asyncio.gather(
        *(channel.call("echo", Message(fields={"n": n}), timeout_s=LATE_S) for n in range(20))
    )
    assert [answer.fields["n"] for answer in answers] == list(range(20))


@pytest.mark.parametrize(
    ("theirs", "ours", "reason"),
    [
        (SECRET, OTHER, "another secret"),
        (SECRET, None, "requires the job's secret"),
        (None, SECRET, "doesn't require the job's secret"),
        (SECRET, JobSecret("s" * 40, "census"), "another secret"),
    ],
    ids=["another", "no client's", "no server's", "another job's"],
)
async def test_ends_of_different_secrets_say_so_at_once(
    peers: Any, theirs: JobSecret | None, ours: JobSecret | None, reason: str
) -> None:
    echo = Counting()
    _, endpoint = await peers.serve({"echo": echo}, secret=theirs)
    began = time.perf_counter()
    with pytest.raises(PeerUnprovenError, match=reason):
        await peers.channel(endpoint, secret=ours).call("echo", Message(), timeout_s=60)
    assert time.perf_counter() - began < 30, "it isn't tried until the deadline"
    assert echo.num_calls == 0


def unproven(caplog: pytest.LogCaptureFixture) -> list[tuple[str, int, str]]:
    """Return who was logged as unproven: server, times, reason."""
    lines = [each.__dict__ for each in caplog.records if each.msg == "connections.unproven"]
    assert all(re.fullmatch(r"127\.0\.0\.1:\d+|process \d+", each["peer"]) for each in lines)
    return [(each["server"], each["times"], each["reason"]) for each in lines]


@pytest.mark.parametrize(
    "ours", [OTHER, JobSecret("s" * 40, "census")], ids=["another", "another job's"]
)
async def test_a_server_logs_a_caller_of_another_secret_once_in_a_while(
    peers: Any, ours: JobSecret, caplog: pytest.LogCaptureFixture
) -> None:
    server, endpoint = await peers.serve({"echo": Counting()}, secret=SECRET)
    for _ in range(5):
        with pytest.raises(PeerUnprovenError):
            await peers.channel(endpoint, secret=ours).call("echo", Message(), timeout_s=60)
    await raw(endpoint, PREFACE)  # all before have been seen

    assert unproven(caplog) == [
        ("pserver 0", 1, CLOSED),
        ("pserver 0", 1, "it doesn't know of the job's secret"),
    ]
    assert server.num_connections == 0


async def test_a_stranger_writes_nothing_into_the_log_and_floods_it_not(
    peers: Any, caplog: pytest.LogCaptureFixture
) -> None:
    _, endpoint = await peers.serve({"echo": Counting()}, secret=SECRET)
    evil = b"\n2026-01-01 ERROR all is lost \x1b[2J\r\n"
    hello = b"paramfleet-1\r\n\r\n" + b"n" * 32
    for text in (evil, hello + evil, b"") * 10:
        if text:
            await raw(endpoint, text)
        else:
            _, writer = await asyncio.open_connection(*endpoint.split(":"))
            writer.close()  # as one does who looks whether somebody listens

    assert unproven(caplog) == [
        ("pserver 0", 1, "it doesn't know of the job's secret"),
        ("pserver 0", 1, "it doesn't wait for the challenge"),
    ]
    assert "lost" not in caplog.text


async def test_a_server_that_ends_blames_nobody(
    peers: Any, caplog: pytest.LogCaptureFixture
) -> None:
    server, endpoint = await peers.serve({"echo": Counting()}, secret=SECRET)
    reader, writer = await asyncio.open_connection(*endpoint.split(":"))
    writer.write(b"paramfleet-1\r\n\r\n" + b"n" * 32)
    await reader.readexactly(80)

    await server.close()

    with contextlib.suppress(ConnectionResetError):
        assert frame_types(await reader.read()) == [SETTINGS, WINDOW_UPDATE]  # no GOAWAY
    writer.close()
    assert unproven(caplog) == []


async def test_a_proof_leaves_in_one_write_with_what_http2_begins_with(peers: Any) -> None:
    _, endpoint = await peers.serve({"echo": Counting()}, secret=SECRET)
    host, _, port = endpoint.rpartition(":")
    loop = asyncio.get_running_loop()
    # a relay, which sees each write of both ends
    async with contextlib.AsyncExitStack() as tasks:
        stack = tasks.enter_context(contextlib.ExitStack())
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        far = stack.enter_context(socket.create_connection((host, int(port))))
        listening.setblocking(False)
        far.setblocking(False)
        channel = peers.channel(f"127.0.0.1:{listening.getsockname()[1]}", secret=SECRET)
        group = await tasks.enter_async_context(asyncio.TaskGroup())
        call = group.create_task(channel.call("echo", Message(), timeout_s=LATE_S))
        near = stack.enter_context((await loop.sock_accept(listening))[0])

        hello = await loop.sock_recv(near, 4096)
        await loop.sock_sendall(far, hello)
        challenge = await loop.sock_recv(far, 4096)
        await loop.sock_sendall(near, challenge)
        proof = await loop.sock_recv(near, 4096)

        call.cancel()
    await channel.close()

    assert len(hello) == 48
    assert frame_types(challenge[80:]) == [SETTINGS, WINDOW_UPDATE]
    magic = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    assert proof[32:].startswith(magic)
    assert frame_types(proof[32 + len(magic) :])[:3] == [SETTINGS, WINDOW_UPDATE, SETTINGS]


async def test_a_server_of_another_name_isnt_the_one_that_is_meant(peers: Any) -> None:
    _, endpoint = await peers.serve({"echo": Counting()}, secret=SECRET)
    channel = Channel(endpoint, peer="pserver 1", clock=peers.clock, secret=SECRET)
    with pytest.raises(PeerUnprovenError, match="isn't pserver 1"):
        await channel.call("echo", Message(), timeout_s=LATE_S)
    await channel.close()


async def test_a_stranger_is_told_in_http2_and_cut(peers: Any) -> None:
    server, endpoint = await peers.serve({"echo": Counting()}, secret=SECRET)
    answer = await raw(endpoint, PREFACE)
    assert answer.startswith(bytes.fromhex("000000040000000000"))
    assert answer.endswith(bytes.fromhex("0000000c")), "INADEQUATE_SECURITY"
    assert server.num_connections == 0


async def test_whoever_says_nothing_is_cut_in_time(peers: Any) -> None:
    limits = Limits(connect_timeout_s=0.2)
    _, endpoint = await peers.serve({"echo": Counting()}, secret=SECRET, limits=limits)
    silent = [
        raw(endpoint, text) for text in (b"", b"para", b"paramfleet-1\r\n\r\n" + bytes(32))
    ]
    for answer in await asyncio.gather(*silent):
        assert answer.endswith(bytes.fromhex("0000000c"))


async def test_a_crowd_of_strangers_keeps_nobody_out(peers: Any) -> None:
    _, endpoint = await peers.serve({"echo": Counting()}, secret=SECRET)
    host, _, port = endpoint.rpartition(":")
    crowd = [socket.create_connection((host, int(port))) for _ in range(400)]
    try:
        channel = peers.channel(endpoint, secret=SECRET)
        answer = await channel.call("echo", Message(fields={"n": 7}), timeout_s=20)
        assert answer.fields == {"n": 7}
    finally:
        for each in crowd:
            each.close()


async def test_callers_wait_until_a_server_knows_its_own_name(peers: Any) -> None:
    server, endpoint = await peers.serve({"echo": Counting()}, secret=SECRET, is_named=False)
    channel = peers.channel(endpoint, secret=SECRET)
    call = asyncio.gather(channel.call("echo", Message(fields={"n": 1}), timeout_s=20))
    stranger = asyncio.gather(raw(endpoint, PREFACE))
    await stranger  # it has been accepted and answered: so the caller has been accepted, too
    assert not call.done()
    server.identify("pserver 0")
    (answer,) = await call
    assert answer.fields == {"n": 1}


async def test_a_channel_proves_itself_again_on_a_new_connection(
    peers: Any, free_port: int
) -> None:
    first, endpoint = await peers.serve({"echo": Counting()}, secret=SECRET, port=free_port)
    channel = peers.channel(endpoint, secret=SECRET)
    await channel.call("echo", Message(), timeout_s=LATE_S)
    await first.close()
    await peers.serve({"echo": Counting()}, secret=SECRET, port=free_port)
    answer = await channel.call("echo", Message(fields={"n": 2}), timeout_s=20)
    assert answer.fields == {"n": 2}


async def test_a_large_message_follows_the_proof_at_once(peers: Any) -> None:
    import numpy as np  # noqa: PLC0415 -- for this test alone

    _, endpoint = await peers.serve({"echo": Counting()}, secret=SECRET)
    array = np.arange(1 << 21, dtype=np.int64)
    channel = peers.channel(endpoint, secret=SECRET)
    answer = await channel.call("echo", Message(tensors={"x": array}), timeout_s=30)
    np.testing.assert_array_equal(answer.tensors["x"], array)


async def test_a_server_that_closes_ends_those_it_doesnt_know(peers: Any) -> None:
    server, endpoint = await peers.serve({"echo": Counting()}, secret=SECRET)
    host, _, port = endpoint.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    await raw(endpoint, PREFACE)  # now the first has been accepted
    await server.close()
    async with asyncio.timeout(LATE_S):
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
    writer.close()
    with pytest.raises((PeerUnreachableError, FleetError)):
        await peers.channel(endpoint, secret=SECRET).call("echo", Message(), timeout_s=0.5)
