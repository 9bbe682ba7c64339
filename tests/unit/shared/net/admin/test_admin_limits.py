"""What callers of an admin address may not pass, by real sockets."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from aiohttp import web

from paramfleet_shared.net.access import Gate, Identity, requires
from paramfleet_shared.net.admin import AdminLimits, AdminServer
from paramfleet_shared.system.clock import Clock, SystemClock
from paramfleet_shared.telemetry.logs_and_metrics import MetricRegistry
from paramfleet_shared.testing.clock import FakeClock
from paramfleet_shared.testing.patience import LATE_S

LIMITS = AdminLimits(
    max_connections=40,
    max_connections_per_peer=16,
    head_timeout_s=0.4,
    body_timeout_s=0.4,
    unread_timeout_s=0.6,
    max_body_bytes=1000,
)
FOLLOWED = 20
"""Parts of an answer that takes longer than each limit: 50 ms lie between two."""
GET_KNOWN = b"GET /known HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer it\r\n\r\n"
GET = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


IT = Identity(roles=frozenset({"read"}), name="it")


@dataclass
class Place:
    """An admin server, and connections to it."""

    stack: AsyncExitStack
    port: int = 0
    bodies: list[bytes] = field(default_factory=list)
    clock: Clock = field(default_factory=SystemClock)

    async def serve(self, **changes: Any) -> None:
        server = AdminServer(
            status=lambda: {"long": "x" * 50_000_000},
            ready=lambda: (True, "serving"),
            metrics=MetricRegistry(),
            routes=[
                web.post("/take", self._take),
                web.get("/follow", self._follow),
                web.get("/known", self._know),
            ],
            gate=Gate(by_token={"it": IT}.get),
            limits=replace(LIMITS, **changes),
            clock=self.clock,
        )
        self.stack.push_async_callback(server.close)
        self.port = await server.start("127.0.0.1", 0)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.stack.callback(writer.close)
        return reader, writer

    @requires("read")
    async def _know(self, _request: web.Request) -> web.Response:
        return web.Response(text="known")

    @requires("open")
    async def _take(self, request: web.Request) -> web.Response:
        self.bodies.append(await request.read())
        return web.Response(text="taken")

    @requires("open")
    async def _follow(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for number in range(FOLLOWED):
            await response.write(b"%d\n" % number)
            await asyncio.sleep(0.05)
        return response


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    async with AsyncExitStack() as stack:
        place = Place(stack)
        yield place


async def until_cut(reader: asyncio.StreamReader) -> bytes:
    """Return what came until the other end cut."""
    come = bytearray()
    async with asyncio.timeout(LATE_S):
        with suppress(ConnectionError):
            while piece := await reader.read(1 << 16):
                come += piece
    return bytes(come)


async def answer_to(place: Place, request: bytes = GET) -> bytes:
    reader, writer = await place.connect()
    writer.write(request)
    async with asyncio.timeout(LATE_S):
        return await reader.readuntil(b"\r\n")


@pytest.mark.parametrize(
    "begun", [b"", b"GET", b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"]
)
async def test_a_head_that_never_ends_is_cut(place: Place, begun: bytes) -> None:
    await place.serve()
    reader, writer = await place.connect()
    writer.write(begun)

    assert await until_cut(reader) == b""


async def test_a_head_of_a_byte_now_and_then_is_cut(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    await place.serve()
    reader, writer = await place.connect()
    cut = asyncio.ensure_future(until_cut(reader))  # noqa: TID251 (awaited below)
    for byte in GET * 20:
        if cut.done():
            break
        writer.write(bytes([byte]).replace(b"\n", b"x"))
        await asyncio.sleep(0.05)

    assert await cut == b""
    (line,) = [vars(each) for each in caplog.records if each.message == "connections.cut"]
    assert line["reason"] == "the head of its request took too long"
    assert line["peer"].startswith("127.0.0.1:")


@pytest.mark.parametrize(
    "bytes_of",
    [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00" * 9000,
        b"GET /" + b"a" * 60_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /take HTTP/1.1\r\nHost: x\r\nContent-Length: " + b"9" * 40 + b"\r\n\r\n",
        b"POST /take HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nSTRANGE\r\n",
    ],
)
async def test_what_a_stranger_sends_is_a_line_of_the_log_now_and_then(
    place: Place, caplog: pytest.LogCaptureFixture, bytes_of: bytes
) -> None:
    await place.serve()
    for _ in range(20):
        assert b" 400 " in await answer_to(place, bytes_of)

    (line,) = caplog.records
    assert (line.message, line.levelname) == ("admin.request_refused", "WARNING")
    assert line.exc_info is None
    assert "STRANGE" not in repr(vars(line))
    assert await answer_to(place) == b"HTTP/1.1 200 OK\r\n"


async def test_a_fault_of_a_handler_keeps_its_traceback(
    place: Place, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, "bodies", None)
    await place.serve()

    request = b"POST /take HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n\r\n"
    assert b" 500 " in await answer_to(place, request)

    (line,) = caplog.records
    assert (line.message, line.levelname) == ("admin.request_failed", "ERROR")
    assert line.exc_info is not None


async def test_a_known_callers_connection_may_be_silent_between_two_requests(
    place: Place,
) -> None:
    await place.serve()
    reader, writer = await known(place)

    strange, _ = await place.connect()  # which is cut after a silence as long
    assert await until_cut(strange) == b""
    await ask_known(reader, writer)


async def test_silence_has_an_end(place: Place) -> None:
    await place.serve(keep_alive_s=0.3)
    reader, writer = await place.connect()
    writer.write(GET_KNOWN)

    assert (await until_cut(reader)).endswith(b"known")


async def test_who_shows_nothing_keeps_no_place(place: Place) -> None:
    await place.serve(keep_alive_s=3600.0)
    reader, writer = await place.connect()
    writer.write(GET)

    assert (await until_cut(reader)).endswith(b'{"ok": true}')


async def test_a_body_that_never_ends_is_answered_and_cut(place: Place) -> None:
    await place.serve()
    reader, writer = await place.connect()
    writer.write(b"POST /take HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\nbegun")

    assert (await until_cut(reader)).startswith(b"HTTP/1.1 408 ")
    assert place.bodies == []


async def test_a_body_over_the_limit_is_refused_and_one_in_parts_is_taken(
    place: Place,
) -> None:
    await place.serve()
    head = b"POST /take HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n"

    assert b" 413 " in await answer_to(place, head % 2000 + bytes(2000))
    reader, writer = await place.connect()
    writer.write(head % 1000 + b"a" * 400)
    await asyncio.sleep(0.1)
    writer.write(b"a" * 600)
    async with asyncio.timeout(LATE_S):
        assert b" 200 " in await reader.readuntil(b"\r\n")
    assert place.bodies == [b"a" * 1000]


async def test_a_long_answer_that_nobody_reads_is_cut(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    await place.serve()
    _, writer = await place.connect()  # whose stream reads little ahead
    writer.write(GET_KNOWN.replace(b"/known", b"/status"))

    async with asyncio.timeout(LATE_S):
        while "connections.cut" not in caplog.messages:  # noqa: ASYNC110 (a log has no event)
            await asyncio.sleep(0.05)

    reasons = [vars(each)["reason"] for each in caplog.records]
    assert reasons == ["it doesn't read its answers"]


async def test_an_answer_that_goes_on_for_long_is_not_cut(place: Place) -> None:
    await place.serve()
    reader, writer = await place.connect()
    writer.write(b"GET /follow HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")

    assert b"%d\n" % (FOLLOWED - 1) in await until_cut(reader)


async def known(place: Place) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Return a connection whose caller has shown a token."""
    reader, writer = await place.connect()
    await ask_known(reader, writer)
    return reader, writer


async def ask_known(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(GET_KNOWN)
    async with asyncio.timeout(LATE_S):
        assert await reader.readuntil(b"\r\n") == b"HTTP/1.1 200 OK\r\n"
        await reader.readuntil(b"known")


async def test_one_peer_has_so_many_connections_and_more_are_closed_and_said_once(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    await place.serve(head_timeout_s=60.0)
    steady = [await known(place) for _ in range(16)]

    for _ in range(20):
        reader, _ = await place.connect()
        assert await until_cut(reader) == b""

    lines = [vars(each) for each in caplog.records if each.message == "connections.refused"]
    assert [line["times"] for line in lines] == [1]
    assert "16 connections of this machine are open" in lines[0]["reason"]
    for _, writer in steady:
        writer.close()
    async with asyncio.timeout(LATE_S):
        while True:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                assert await answer_to(place) == b"HTTP/1.1 200 OK\r\n"
                break


@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"GET /healthz HTTP/1.1\r\n",
        b"POST /take HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\n",
        GET_KNOWN.replace(b"Bearer it", b"Bearer made-up")[:-2],
    ],
)
async def test_connections_that_show_no_token_give_way_to_new_ones_and_known_ones_stay(
    place: Place, caplog: pytest.LogCaptureFixture, begun: bytes
) -> None:
    place.clock = FakeClock()  # so that none is closed for being slow
    await place.serve()
    steady = await known(place)
    held = [await place.connect() for _ in range(15)]
    for _, writer in held:
        writer.write(begun)

    for _ in range(8):
        assert await answer_to(place) == b"HTTP/1.1 200 OK\r\n"
        await known(place)

    async with asyncio.timeout(LATE_S):
        for reader, _ in held[:8]:
            assert await until_cut(reader) == b""
    await ask_known(*steady)
    line, *_ = [vars(each) for each in caplog.records if each.message == "connections.evicted"]
    assert line["peer"].startswith("127.0.0.1:")
    assert "connections.refused" not in caplog.messages


async def test_a_connection_without_a_whole_request_is_closed_within_a_few_seconds(
    place: Place,
) -> None:
    place.clock = clock = FakeClock()
    usual = AdminLimits()
    await place.serve(
        head_timeout_s=usual.head_timeout_s, unread_timeout_s=usual.unread_timeout_s
    )
    steady = await known(place)
    held = [await place.connect() for _ in range(15)]
    for _, writer in held:
        writer.write(b"GET /healthz HTTP/1.1\r\n")
    assert await answer_to(place) == b"HTTP/1.1 200 OK\r\n"  # the others are taken by now

    await clock.advance(5.1)

    for reader, _ in held:
        assert await until_cut(reader) == b""
    await ask_known(*steady)


async def test_many_slow_heads_are_gone_soon_and_others_are_served(place: Place) -> None:
    await place.serve()
    slow = [await place.connect() for _ in range(16)]

    async with asyncio.timeout(LATE_S):
        await asyncio.gather(*(until_cut(reader) for reader, _ in slow))

    assert await answer_to(place) == b"HTTP/1.1 200 OK\r\n"
