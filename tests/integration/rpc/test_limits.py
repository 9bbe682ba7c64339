"""What strangers' connections may take of a server, by real sockets on both loops."""

import asyncio
import errno
import logging
import os
import resource
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, suppress
from typing import Any

import numpy as np
import pytest

from paramfleet_shared.net.http2.client import ClientConnection
from paramfleet_shared.net.http2.frames import PREFACE, ErrorCode, FrameType, frame, settings
from paramfleet_shared.net.rpc.server import RpcServer
from paramfleet_shared.net.wire.limits import Limits
from paramfleet_shared.net.wire.message import Message, encode
from paramfleet_shared.testing.http2_ends import PlainEnd
from paramfleet_shared.testing.patience import LATE_S

ECHO = {"echo": lambda request: request.message}
GREETING = PREFACE + settings({})
FAST = Limits(
    head_timeout_s=0.4,
    body_idle_timeout_s=0.4,
    min_body_bytes_per_s=20_000,
    close_timeout_s=0.2,
)
POST = [
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":authority", b"x"),
    (b":path", b"/v1/echo"),
]


class Stranger:
    """A connection that does what a test says, and no more."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.h2 = PlainEnd(client_side=True)

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def greet(self) -> None:
        self.send(self.h2.take())

    def begin(self, num_bytes: int) -> int:
        """Send the headers of a request with such a body."""
        stream: int = self.h2.h2.get_next_available_stream_id()
        self.h2.h2.send_headers(stream, [*POST, (b"content-length", b"%d" % num_bytes)])
        self.send(self.h2.take())
        return stream

    async def until_cut(self) -> None:
        async with asyncio.timeout(LATE_S):
            with suppress(ConnectionError):
                while await self.reader.read(1 << 16):
                    pass

    async def until_reset(self, stream: int) -> int:
        """Read until a stream is reset; return the code."""
        async with asyncio.timeout(LATE_S):
            while stream not in self.h2.reset:
                data = await self.reader.read(1 << 16)
                assert data, "the connection should have stayed"
                self.h2.feed(data)
        return self.h2.reset[stream]


@pytest.fixture
async def strangers() -> AsyncIterator[Any]:
    async with AsyncExitStack() as stack:

        async def come(endpoint: str) -> Stranger:
            reader, writer = await asyncio.open_connection(*endpoint.split(":"))
            stack.callback(writer.close)
            return Stranger(reader, writer)

        yield come


async def until(is_so: Callable[[], object]) -> None:
    """Wait for what the other side does, of which there is no event here."""
    async with asyncio.timeout(LATE_S):
        while not is_so():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def lines_of(caplog: pytest.LogCaptureFixture, event: str) -> list[dict[str, Any]]:
    return [vars(each) for each in caplog.records if each.message == event]


@pytest.mark.parametrize(
    "begun",
    [
        b"",
        PREFACE[:7],
        PREFACE,
        GREETING[:-1],
        GREETING + frame(FrameType.HEADERS, 0, 1, b"\x82"),
        GREETING + frame(FrameType.PING, 0, 0, bytes(8))[:12],
    ],
)
async def test_a_head_that_never_ends_is_cut_and_named(
    peers: Any, strangers: Any, caplog: pytest.LogCaptureFixture, begun: bytes
) -> None:
    server, endpoint = await peers.serve(ECHO, limits=FAST)
    stranger = await strangers(endpoint)
    stranger.send(begun)

    await stranger.until_cut()

    assert server.num_connections == 0
    (line,) = lines_of(caplog, "connections.cut")
    assert line["peer"].startswith("127.0.0.1:")
    assert "took the peer too long" in line["reason"]


async def test_many_slow_heads_are_gone_soon_and_workers_are_served(
    peers: Any, strangers: Any
) -> None:
    server, endpoint = await peers.serve(ECHO, limits=FAST)
    slow = [await strangers(endpoint) for _ in range(200)]
    channel = peers.channel(endpoint)

    await channel.call("echo", Message(), timeout_s=LATE_S)
    await asyncio.gather(*(each.until_cut() for each in slow))

    assert server.num_connections == 1


async def test_who_has_said_its_settings_may_be_silent(peers: Any) -> None:
    channel = await peers.connect(ECHO, limits=FAST)
    await channel.call("echo", Message(), timeout_s=LATE_S)
    link = channel._link

    await asyncio.sleep(5 * FAST.body_idle_timeout_s)

    await channel.call("echo", Message(), timeout_s=LATE_S)
    assert channel._link is link


async def test_a_body_that_trickles_is_reset(peers: Any, strangers: Any) -> None:
    server, endpoint = await peers.serve(ECHO, limits=FAST)
    stranger = await strangers(endpoint)
    stranger.greet()
    stream = stranger.begin(60 << 20)
    async with asyncio.TaskGroup() as group:
        reset = group.create_task(stranger.until_reset(stream))
        while not reset.done():
            stranger.send(frame(FrameType.DATA, 0, stream, b"x"))
            await asyncio.sleep(0.05)

    assert await reset == ErrorCode.CANCEL
    assert server.num_held.receiving == 0
    assert server.num_connections == 1


async def test_bodies_of_many_connections_hold_no_more_than_their_server_may(
    peers: Any, strangers: Any, caplog: pytest.LogCaptureFixture
) -> None:
    limits = Limits(server_budget_bytes=20 << 20, body_idle_timeout_s=1.0)
    server, endpoint = await peers.serve(ECHO, limits=limits)
    part = frame(FrameType.DATA, 0, 1, bytes(1000))
    for _ in range(25):
        stranger = await strangers(endpoint)
        stranger.greet()
        stranger.begin(6 << 20)
        stranger.send(part)
    channel = peers.channel(endpoint)
    rows = np.zeros(1 << 20, np.float32)

    await until(lambda: lines_of(caplog, "bodies.refused"))
    assert 6 << 20 <= server.num_held.receiving <= 20 << 20
    reply = await channel.call("echo", Message(tensors={"rows": rows}), timeout_s=LATE_S)

    assert reply.tensors["rows"].nbytes == rows.nbytes
    assert lines_of(caplog, "bodies.refused")[0]["limit"] == 20 << 20


async def test_more_than_all_may_hold_goes_one_after_the_other(peers: Any) -> None:
    _, endpoint = await peers.serve(ECHO, limits=Limits(server_budget_bytes=3 << 20))
    channels = [peers.channel(endpoint) for _ in range(6)]
    rows = np.arange(1 << 18, dtype=np.float64)  # 2 MiB

    replies = await asyncio.gather(
        *(
            each.call("echo", Message(tensors={"rows": rows}), timeout_s=LATE_S)
            for each in channels
        )
    )

    assert all(np.array_equal(reply.tensors["rows"], rows) for reply in replies)


async def test_a_worker_whose_push_waits_for_others_does_not_keep_theirs_out(
    peers: Any,
) -> None:
    waiting: list[Message] = []
    all_here = asyncio.Event()

    async def push(request: Any) -> Message:
        waiting.append(request.message)
        if len(waiting) == 4:
            all_here.set()
        await all_here.wait()
        return Message()

    _, endpoint = await peers.serve({"push": push}, limits=Limits(server_budget_bytes=1 << 20))
    rows = np.zeros(1 << 17, np.float64)  # the whole budget each

    await asyncio.gather(
        *(
            peers.channel(endpoint).call(
                "push", Message(tensors={"rows": rows}), timeout_s=LATE_S
            )
            for _ in range(4)
        )
    )

    assert len(waiting) == 4


async def test_an_answer_that_nobody_reads_is_cut(
    peers: Any, strangers: Any, caplog: pytest.LogCaptureFixture
) -> None:
    answer = Message(tensors={"rows": np.zeros(1 << 17, np.float64)})  # less than a window
    server, endpoint = await peers.serve({"echo": lambda _: answer}, limits=FAST)
    stranger = await strangers(endpoint)
    reading: Any = stranger.writer.transport
    reading.pause_reading()
    client = ClientConnection(Limits(), 0.0)
    message = b"".join(encode(Message()))
    for _ in range(32):
        client.request([*POST, (b"content-length", b"%d" % len(message))], [message], 0.0)
    stranger.send(b"".join(client.take_buffers(0.0)))

    await until(lambda: server.num_connections)
    await until(lambda: not server.num_connections)
    assert server.num_held.sending == 0
    (line,) = lines_of(caplog, "connections.cut")
    assert line["reason"] == "the peer doesn't read its answers"


async def test_one_peer_has_so_many_connections_and_more_are_closed_at_once(
    peers: Any, strangers: Any, caplog: pytest.LogCaptureFixture
) -> None:
    _, endpoint = await peers.serve(ECHO, limits=Limits(max_connections=20))
    first = [await strangers(endpoint) for _ in range(10)]
    for each in first:
        each.greet()

    for _ in range(5):
        await (await strangers(endpoint)).until_cut()

    (line,) = lines_of(caplog, "connections.refused")
    assert line["times"] == 1
    assert line["peer"].startswith("127.0.0.1:")
    assert "10 connections of this machine are open" in line["reason"]
    first[0].writer.close()
    async with asyncio.timeout(LATE_S):
        await peers.channel(endpoint).call("echo", Message(), timeout_s=LATE_S)


async def test_a_job_of_64_workers_on_one_machine_connects_at_once(peers: Any) -> None:
    server, endpoint = await peers.serve(ECHO)
    one_attempt = Limits(connect_timeout_s=LATE_S)  # this process is all 65 that there would be
    channels = [peers.channel(endpoint, limits=one_attempt) for _ in range(4 * 64)]

    await asyncio.gather(*(each.call("echo", Message(), timeout_s=LATE_S) for each in channels))

    assert server.num_connections == len(channels)


@pytest.fixture
def few_files() -> Iterator[int]:
    """Leaves this process 120 more descriptors; returns its limit."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as lowest_free:
        limit = lowest_free.fileno() + 120
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
    yield limit
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def take_sockets(taken: list[socket.socket]) -> None:
    """Open sockets until there is no descriptor for another."""
    while True:
        taken.append(socket.socket())


async def test_without_a_free_descriptor_it_is_said_once_and_accepting_goes_on(
    peers: Any, few_files: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    _, endpoint = await peers.serve(ECHO)
    host, port = endpoint.split(":")
    taken: list[socket.socket] = []
    with socket.socket() as waiting:
        waiting.setblocking(False)
        with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
            take_sockets(taken)
        with suppress(BlockingIOError):
            waiting.connect((host, int(port)))
        await until(lambda: lines_of(caplog, "connections.not_accepted"))
        await asyncio.sleep(1.5)  # more looks, and more attempts to accept
        for each in taken:
            each.close()

        await peers.channel(endpoint).call("echo", Message(), timeout_s=LATE_S)

    (line,) = lines_of(caplog, "connections.not_accepted")
    assert line["times"] == 1
    assert "no free file descriptor" in line["reason"]
    assert "ulimit -n" in line["reason"]


async def test_connections_leave_descriptors_for_files(
    peers: Any, few_files: int, strangers: Any, caplog: pytest.LogCaptureFixture
) -> None:
    server, endpoint = await peers.serve(ECHO, limits=Limits(max_connections_per_peer=10**6))
    assert isinstance(server, RpcServer)
    idle: list[Stranger] = []
    async with asyncio.timeout(LATE_S):
        while not lines_of(caplog, "connections.refused"):
            idle.append(await strangers(endpoint))
            idle[-1].greet()
            await asyncio.sleep(0)

    (line,) = lines_of(caplog, "connections.refused")
    assert "open" in line["reason"]
    assert server.num_connections <= few_files - few_files // 4
