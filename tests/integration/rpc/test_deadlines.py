"""Nobody waits longer than he said, whatever the other side does."""

import asyncio
from typing import Any

import pytest

from paramfleet_shared.errors import OutcomeUnknownError, UnavailableError
from paramfleet_shared.net.rpc.client import DeadlineExceededError, PeerUnreachableError
from paramfleet_shared.net.rpc.server import Request
from paramfleet_shared.net.wire.limits import Limits
from paramfleet_shared.net.wire.message import Message, encode
from paramfleet_shared.testing.http2_ends import PlainEnd
from paramfleet_shared.testing.patience import LATE_S
from paramfleet_shared.testing.proxy import Proxy

EARLY_S = 0.098
"""What 0.1 s may be at least: uvloop counts whole milliseconds, from a rounded time, too."""

PSEUDO = [(b":method", b"POST"), (b":scheme", b"http"), (b":authority", b"x")]


class Sleeper:
    """A handler that never answers, and knows how it ended."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.ended = asyncio.Event()

    async def never(self, request: Request) -> Message:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.set()
        return request.message


def echo(request: Request) -> Message:
    return request.message


async def test_a_server_that_never_answers_is_given_up_at_the_deadline(peers: Any) -> None:
    sleeper = Sleeper()
    channel = await peers.connect({"never": sleeper.never, "echo": echo})
    started = peers.clock.monotonic()

    with pytest.raises(DeadlineExceededError) as caught:
        await channel.call("never", Message(), timeout_s=0.1)

    assert EARLY_S <= peers.clock.monotonic() - started < 0.1 + LATE_S
    assert isinstance(caught.value, OutcomeUnknownError)
    assert (caught.value.peer, caught.value.operation) == ("pserver 0", "never")
    assert caught.value.waited_s >= EARLY_S
    await sleeper.ended.wait()
    await channel.call("echo", Message(), timeout_s=LATE_S)  # the connection goes on


async def test_a_black_hole_is_unreachable_at_the_deadline(peers: Any) -> None:
    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(-1)
        writer.close()

    listener = await asyncio.start_server(swallow, "127.0.0.1", 0)
    endpoint = f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    channel = peers.channel(endpoint)
    impatient = peers.channel(endpoint, limits=Limits(connect_timeout_s=0.05))

    with pytest.raises(PeerUnreachableError) as caught:
        await channel.call("echo", Message(), timeout_s=0.1)
    assert isinstance(caught.value, UnavailableError)
    with pytest.raises(PeerUnreachableError, match=r"no answer within 0\.05 s"):
        await impatient.call("echo", Message(), timeout_s=0.2)

    await channel.close()
    await impatient.close()
    listener.close()


async def test_a_peer_that_falls_silent_is_left_for_a_new_connection(peers: Any) -> None:
    _, endpoint = await peers.serve({"echo": echo})
    async with Proxy(int(endpoint.rpartition(":")[2])) as proxy:
        channel = peers.channel(proxy.endpoint, limits=Limits(probe_timeout_s=0.05))
        await channel.call("echo", Message(), timeout_s=LATE_S)

        proxy.freeze()
        with pytest.raises(DeadlineExceededError):
            await channel.call("echo", Message(), timeout_s=0.1)
        with pytest.raises((DeadlineExceededError, PeerUnreachableError)):
            await channel.call("echo", Message(), timeout_s=0.1)
        proxy.thaw()

        await channel.call("echo", Message(), timeout_s=LATE_S)
        assert proxy.num_connections >= 2
        await channel.close()


async def test_a_slow_peer_that_shows_life_keeps_its_connection(peers: Any) -> None:
    sleeper = Sleeper()
    _, endpoint = await peers.serve({"echo": echo, "never": sleeper.never})
    async with Proxy(int(endpoint.rpartition(":")[2])) as proxy:
        channel = peers.channel(proxy.endpoint, limits=Limits(probe_timeout_s=0.05))
        await channel.call("echo", Message(), timeout_s=LATE_S)

        for _ in range(2):
            with pytest.raises(DeadlineExceededError):
                await channel.call("never", Message(), timeout_s=0.1)

        await channel.call("echo", Message(), timeout_s=LATE_S)
        assert proxy.num_connections == 1
        await channel.close()


async def test_the_server_gives_a_handler_up_that_is_past_its_deadline(peers: Any) -> None:
    sleeper = Sleeper()
    _, endpoint = await peers.serve({"never": sleeper.never})

    status, body = await ask(endpoint, b"never", deadline_ms=b"50")

    assert status == 504
    assert b"outcome_unknown.deadline_exceeded" in body
    assert sleeper.ended.is_set()


async def test_a_deadline_that_is_no_number_is_malformed(peers: Any) -> None:
    _, endpoint = await peers.serve({"echo": echo})

    status, body = await ask(endpoint, b"echo", deadline_ms=b"soon")

    assert status == 400
    assert b"pf-deadline-ms" in body


async def test_a_call_without_a_deadline_is_served(peers: Any) -> None:
    seen: list[float | None] = []

    def note(request: Request) -> Message:
        seen.append(request.deadline)
        return Message()

    _, endpoint = await peers.serve({"note": note})

    assert (await ask(endpoint, b"note"))[0] == 200
    assert seen == [None]


async def test_a_cancelled_call_cancels_its_handler(peers: Any) -> None:
    sleeper = Sleeper()
    channel = await peers.connect({"never": sleeper.never})

    async with asyncio.TaskGroup() as group:
        call = group.create_task(channel.call("never", Message(), timeout_s=LATE_S))
        await sleeper.begun.wait()
        call.cancel()

    await sleeper.ended.wait()


async def test_a_call_given_up_before_its_handler_began_leaves_nothing_behind(
    peers: Any,
) -> None:
    begun: list[str] = []

    async def handler(request: Request) -> Message:
        begun.append(request.op)
        return request.message

    _, endpoint = await peers.serve({"op": handler})
    reader, writer = await asyncio.open_connection(*endpoint.split(":"))
    plain = PlainEnd(client_side=True)
    plain.h2.send_headers(1, [*PSEUDO, (b":path", b"/v1/op")])
    plain.h2.send_data(1, b"".join(encode(Message())), end_stream=True)
    plain.h2.reset_stream(1, 8)
    plain.h2.ping(b"12345678")
    writer.write(plain.take())  # in one packet: the handler's task is cancelled before it runs

    while b"12345678" not in await reader.read(1000):
        pass

    assert begun == []
    writer.close()
    await writer.wait_closed()


async def ask(
    endpoint: str, op: bytes, *, deadline_ms: bytes | None = None
) -> tuple[int, bytes]:
    """Ask with plain h2 rather than a channel; return status and body."""
    reader, writer = await asyncio.open_connection(*endpoint.split(":"))
    plain = PlainEnd(client_side=True)
    headers = [*PSEUDO, (b":path", b"/v1/" + op)]
    if deadline_ms is not None:
        headers.append((b"pf-deadline-ms", deadline_ms))
    plain.h2.send_headers(1, headers)
    plain.h2.send_data(1, b"".join(encode(Message())), end_stream=True)
    writer.write(plain.take())
    while 1 not in plain.ended:
        plain.feed(await reader.read(65_536))
    writer.close()
    await writer.wait_closed()
    return plain.status[1], bytes(plain.received.get(1, b""))
