"""Calls of a thread that waits for them itself, over a connection without an event loop."""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from paramfleet_shared.errors.served import TablesNotDeclaredError
from paramfleet_shared.net.http2.events import ResponseReceived
from paramfleet_shared.net.rpc.client import Channel
from paramfleet_shared.net.rpc.connection.direct import (
    DirectLink,
    DirectLostError,
    Waker,
    WokenError,
)
from paramfleet_shared.net.rpc.server import Request
from paramfleet_shared.net.secret import JobSecret
from paramfleet_shared.net.wire.message import Message, encode
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.testing.faults import FaultPlan
from paramfleet_shared.testing.proxy import Proxy

SECRET = JobSecret("s" * 40, "flights")
LONG_S = 10.0


@pytest.fixture
def waker() -> Iterator[Waker]:
    with contextlib.closing(Waker()) as waker:
        yield waker


def echo(request: Request) -> Message:
    return request.message


def refuse(request: Request) -> Message:
    raise TablesNotDeclaredError(operation=request.op)


async def never(request: Request) -> Message:
    await asyncio.Event().wait()
    return request.message


HANDLERS = {"echo": echo, "refuse": refuse, "never": never}


def call(
    link: DirectLink, op: str, message: Message, *, until_s: float = LONG_S
) -> ResponseReceived:
    link.send(op, encode(message), timeout_s=LONG_S)
    return link.receive(until=now() + until_s)


def now() -> float:
    return SystemClock().monotonic()


async def opened(channel: Channel, waker: Waker) -> DirectLink:
    link = await channel.open_direct(waker)
    assert link is not None
    return link


@pytest.mark.parametrize("secret", [None, SECRET], ids=["open", "secret"])
async def test_a_thread_asks_and_reads_its_answers(
    peers: Any, waker: Waker, secret: JobSecret | None
) -> None:
    _, endpoint = await peers.serve(HANDLERS, secret=secret)
    channel = peers.channel(endpoint, secret=secret)
    link = await opened(channel, waker)

    for size in (0, 3, 40_000, 3_000_000):
        numbers = np.arange(size, dtype=np.int64)
        response = await asyncio.to_thread(call, link, "echo", Message(tensors={"x": numbers}))

        answer = channel.read("echo", 1, response)
        np.testing.assert_array_equal(answer.tensors["x"], numbers)
        assert link.usable
    again = await channel.call("echo", Message(fields={"a": 1}), timeout_s=LONG_S)
    assert again.fields == {"a": 1}, "the channel has a connection of its own"
    link.close()


async def test_an_error_is_raised_as_the_peer_meant_it(peers: Any, waker: Waker) -> None:
    channel = await peers.connect(HANDLERS)
    link = await opened(channel, waker)

    response = await asyncio.to_thread(call, link, "refuse", Message())

    with pytest.raises(TablesNotDeclaredError):
        channel.read("refuse", 1, response)
    link.close()


async def test_a_wait_ends_at_its_deadline(peers: Any, waker: Waker) -> None:
    channel = await peers.connect(HANDLERS)
    link = await opened(channel, waker)

    with pytest.raises(TimeoutError):
        await asyncio.to_thread(call, link, "never", Message(), until_s=0.2)
    assert not link.usable, "an answer may still come"
    link.close()


async def test_a_wait_ends_when_it_is_woken_and_so_do_all_that_follow(
    peers: Any, waker: Waker
) -> None:
    async def wake(request: Request) -> Message:
        waker.wake()
        return await never(request)

    link = await opened(await peers.connect({"wake": wake}), waker)

    with pytest.raises(WokenError):
        await asyncio.to_thread(call, link, "wake", Message())
    with pytest.raises(WokenError):
        await asyncio.to_thread(link.receive, until=now() + LONG_S)
    link.close()


async def test_a_connection_that_breaks_is_lost(peers: Any, waker: Waker) -> None:
    wires: list[Proxy] = []

    async def cut(request: Request) -> Message:
        wires[0].cut()
        return await never(request)

    _, endpoint = await peers.serve({"cut": cut})
    async with Proxy(int(endpoint.rpartition(":")[2])) as wire:
        wires.append(wire)
        link = await opened(peers.channel(wire.endpoint), waker)

        with pytest.raises(DirectLostError):
            await asyncio.to_thread(call, link, "cut", Message())
        link.close()


async def test_a_server_that_leaves_ends_the_connection(peers: Any, waker: Waker) -> None:
    server, endpoint = await peers.serve(HANDLERS)
    link = await opened(peers.channel(endpoint), waker)

    await server.close()

    with pytest.raises(DirectLostError):
        await asyncio.to_thread(call, link, "echo", Message())
    link.close()


async def test_there_is_none_where_it_cannot_be(peers: Any, free_port: int) -> None:
    with contextlib.closing(Waker()) as waker:
        nobody = peers.channel(f"127.0.0.1:{free_port}")
        assert await nobody.open_direct(waker) is None
        planned = peers.channel(f"127.0.0.1:{free_port}", faults=FaultPlan())
        assert await planned.open_direct(waker) is None
