"""What a caller learns when requests, replies and connections are lost."""

import asyncio
from typing import Any

import numpy as np
import pytest

from paramfleet_shared.net.http2.frames import ErrorCode
from paramfleet_shared.net.rpc.client import (
    ConnectionLostError,
    DeadlineExceededError,
    PeerUnreachableError,
)
from paramfleet_shared.net.rpc.server import Handler, Request
from paramfleet_shared.net.wire.limits import Limits
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.testing.faults import FaultPlan, Fired
from paramfleet_shared.testing.http2_ends import PlainEnd
from paramfleet_shared.testing.patience import LATE_S
from paramfleet_shared.testing.proxy import Proxy

PSEUDO = [
    (b":method", b"POST"), (b":scheme", b"http"), (b":authority", b"x"), (b":path", b"/v1/push")
]  # fmt: skip


class Counter:
    """A push that counts how often it was applied."""

    def __init__(self) -> None:
        self.num_applied = 0

    def push(self, request: Request) -> Message:
        self.num_applied += 1
        return Message(fields={"applied": self.num_applied})

    @property
    def handlers(self) -> dict[str, Handler]:
        return {"push": self.push}


async def connect_with(peers: Any, counter: Counter, plan: FaultPlan, edge: str) -> Any:
    at_server, at_channel = (
        ({"faults": plan}, {}) if edge == "server" else ({}, {"faults": plan})
    )
    _, endpoint = await peers.serve(counter.handlers, **at_server)
    return peers.channel(endpoint, **at_channel)


async def call(channel: Any, **options: Any) -> Any:
    reply = await channel.call("push", Message(), **({"timeout_s": 5} | options))
    return reply.fields["applied"]


@pytest.mark.parametrize("edge", ["server", "channel"])
async def test_a_dropped_reply_is_asked_for_again(peers: Any, edge: str) -> None:
    counter, plan = Counter(), FaultPlan().drop_reply(of="push", nth=2)
    channel = await connect_with(peers, counter, plan, edge)

    assert [await call(channel), await call(channel)] == [1, 3]
    assert plan.fired == [Fired("drop_reply", "push", 2)]


@pytest.mark.parametrize("edge", ["server", "channel"])
async def test_a_dropped_reply_to_what_may_not_be_repeated_is_told(
    peers: Any, edge: str
) -> None:
    counter, plan = Counter(), FaultPlan().drop_reply(of="push")
    channel = await connect_with(peers, counter, plan, edge)

    with pytest.raises(ConnectionLostError, match="lost while it handled 'push'") as caught:
        await call(channel, idempotent=False)
    assert caught.value.peer == "pserver 0"
    assert counter.num_applied == 1


@pytest.mark.parametrize("edge", ["server", "channel"])
async def test_a_dropped_request_never_reaches_its_handler(peers: Any, edge: str) -> None:
    counter, plan = Counter(), FaultPlan().drop_request(of="push")
    channel = await connect_with(peers, counter, plan, edge)

    assert await call(channel) == 1
    assert plan.fired == [Fired("drop_request", "push", 1)]


@pytest.mark.parametrize("edge", ["server", "channel"])
async def test_a_duplicated_request_is_handled_twice(peers: Any, edge: str) -> None:
    counter, plan = Counter(), FaultPlan().duplicate_request(of="push", nth=2)
    channel = await connect_with(peers, counter, plan, edge)

    assert [await call(channel) for _ in range(3)] == [1, 3, 4]


@pytest.mark.parametrize("edge", ["server", "channel"])
async def test_a_delayed_reply_comes_when_the_test_says_so(peers: Any, edge: str) -> None:
    counter, plan = Counter(), FaultPlan().delay_reply(of="push", nth=1)
    channel = await connect_with(peers, counter, plan, edge)

    async with asyncio.TaskGroup() as group:
        delayed = group.create_task(call(channel))
        await plan.held_reply(of="push").held.wait()
        overtaking = await call(channel)
        assert not delayed.done()
        plan.held_reply(of="push").release()

    assert (delayed.result(), overtaking) == (1, 2)


async def test_a_planned_fault_meets_errors_too(peers: Any) -> None:
    async def fail(request: Request) -> Message:
        raise PeerUnreachableError(
            peer="x", endpoint="y:1", operation="z", waited_s=1.0, reason="r"
        )

    plan = FaultPlan().drop_reply(of="push")
    channel = await peers.connect({"push": fail}, faults=plan)

    with pytest.raises(PeerUnreachableError) as caught:
        await call(channel)
    assert caught.value.remote
    assert plan.fired


@pytest.mark.parametrize("num_bytes", [1, 5_000, 600_000, 1_500_000])
async def test_a_connection_lost_mid_body_is_opened_again(peers: Any, num_bytes: int) -> None:
    def echo(request: Request) -> Message:
        return request.message

    _, endpoint = await peers.serve({"echo": echo})
    async with Proxy(int(endpoint.rpartition(":")[2])) as proxy:
        channel = peers.channel(proxy.endpoint)
        await channel.call("echo", Message(), timeout_s=LATE_S)
        body = np.random.default_rng(0).random(100_000)

        proxy.cut_after(num_bytes)
        reply = await channel.call("echo", Message(tensors={"x": body}), timeout_s=LATE_S)

        assert np.array_equal(reply.tensors["x"], body)
        assert proxy.num_connections == 2
        await channel.close()


async def test_a_connection_lost_under_a_call_that_may_not_be_repeated_is_told(
    peers: Any,
) -> None:
    begun = asyncio.Event()

    async def never(request: Request) -> Message:
        begun.set()
        await asyncio.Event().wait()
        return request.message

    _, endpoint = await peers.serve({"never": never})
    async with Proxy(int(endpoint.rpartition(":")[2])) as proxy:
        channel = peers.channel(proxy.endpoint)
        lost = asyncio.gather(
            channel.call("never", Message(), timeout_s=LATE_S, idempotent=False),
            return_exceptions=True,
        )
        await begun.wait()
        proxy.cut()

        (error,) = await lost
        assert isinstance(error, ConnectionLostError)
        await channel.close()


async def test_a_call_that_waits_for_its_turn_moves_to_the_next_connection(peers: Any) -> None:
    begun = asyncio.Event()

    async def never(request: Request) -> Message:
        begun.set()
        await asyncio.Event().wait()
        return request.message

    counter = Counter()
    _, endpoint = await peers.serve(
        {"never": never} | counter.handlers, limits=Limits(max_streams=1)
    )
    async with Proxy(int(endpoint.rpartition(":")[2])) as proxy:
        channel = peers.channel(proxy.endpoint)
        lost = asyncio.gather(
            channel.call("never", Message(), timeout_s=LATE_S, idempotent=False),
            return_exceptions=True,
        )
        await begun.wait()
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(call(channel, idempotent=False))
            await asyncio.sleep(0)
            proxy.cut()

        assert waiting.result() == 1
        assert isinstance((await lost)[0], ConnectionLostError)
        await channel.close()


async def test_refused_connections_are_tried_until_the_server_appears(
    peers: Any, free_port: int
) -> None:
    counter = Counter()
    channel = peers.channel(f"127.0.0.1:{free_port}")

    async with asyncio.TaskGroup() as group:
        early = group.create_task(call(channel))
        await asyncio.sleep(0.05)  # some attempts are refused
        await peers.serve(counter.handlers, port=free_port)

    assert early.result() == 1


async def test_a_peer_that_never_appears_is_unreachable_by_the_deadline(
    peers: Any, free_port: int
) -> None:
    channel = peers.channel(f"127.0.0.1:{free_port}")
    started = peers.clock.monotonic()

    with pytest.raises(PeerUnreachableError, match=r"pserver 0 at 127\.0\.0\.1:") as caught:
        await call(channel, timeout_s=0.2)

    assert peers.clock.monotonic() - started < 0.2 + LATE_S
    assert caught.value.operation == "push"
    assert caught.value.reason
    assert 0.19 < caught.value.waited_s < 0.2 + LATE_S


async def test_a_peer_that_came_back_elsewhere_is_found(peers: Any) -> None:
    counter = Counter()
    first, endpoint = await peers.serve(counter.handlers)
    where: list[str] = [endpoint]

    async def resolve() -> str:
        return where[0]

    channel = peers.channel(endpoint, resolve=resolve)
    await call(channel)
    await first.close()
    _, where[0] = await peers.serve(counter.handlers)

    assert await call(channel) == 2
    assert channel.endpoint == where[0]


async def test_a_registry_that_does_not_know_yet_is_asked_again(peers: Any) -> None:
    counter, num_asked = Counter(), 0
    endpoint: str = (await peers.serve(counter.handlers))[1]

    async def resolve() -> str:
        nonlocal num_asked
        num_asked += 1
        if num_asked < 3:
            raise DeadlineExceededError(peer="redis", operation="get", waited_s=1.0)
        return endpoint

    assert await call(peers.channel("127.0.0.1:1", resolve=resolve)) == 1
    assert num_asked == 3


async def test_a_peer_that_speaks_something_else_is_unreachable(peers: Any) -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example.org ESMTP ready, and many more words\r\n")
        await reader.read()
        writer.close()

    listener = await asyncio.start_server(greet, "127.0.0.1", 0)
    channel = peers.channel(f"127.0.0.1:{listener.sockets[0].getsockname()[1]}")

    with pytest.raises(PeerUnreachableError, match="over the limit"):
        await call(channel, timeout_s=0.2)
    listener.close()
    await channel.close()


async def test_a_body_that_makes_no_progress_is_reset_by_the_server(peers: Any) -> None:
    counter = Counter()
    _, endpoint = await peers.serve(counter.handlers, limits=Limits(body_idle_timeout_s=0.1))
    reader, writer = await asyncio.open_connection(*endpoint.split(":"))
    plain = PlainEnd(client_side=True)
    plain.h2.send_headers(1, [*PSEUDO, (b"content-length", b"100")])
    plain.h2.send_data(1, b"begun")
    writer.write(plain.take())

    while not plain.reset:
        plain.feed(await reader.read(1000))

    assert plain.reset == {1: ErrorCode.CANCEL}
    assert counter.num_applied == 0
    writer.close()
    await writer.wait_closed()
