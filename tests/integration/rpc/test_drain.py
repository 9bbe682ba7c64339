"""A server that stops loses nothing it has begun."""

import asyncio
from typing import Any

from paramfleet_shared.net.rpc.client import PeerUnreachableError
from paramfleet_shared.net.rpc.server import Request
from paramfleet_shared.net.wire.limits import Limits
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.testing.http2_ends import PlainEnd
from paramfleet_shared.testing.patience import LATE_S


class Gate:
    """Handlers that wait until the test lets them go on."""

    def __init__(self) -> None:
        self.num_begun = 0
        self.all_begun = asyncio.Event()
        self.open = asyncio.Event()

    async def wait(self, request: Request) -> Message:
        self.num_begun += 1
        if self.num_begun == 5:
            self.all_begun.set()
        await self.open.wait()
        return Message(fields=request.message.fields)


async def test_draining_finishes_the_calls_in_flight(peers: Any) -> None:
    gate = Gate()
    server, endpoint = await peers.serve({"wait": gate.wait})
    channel = peers.channel(endpoint)

    async with asyncio.TaskGroup() as group:
        calls = [
            group.create_task(channel.call("wait", Message(fields={"i": i}), timeout_s=LATE_S))
            for i in range(5)
        ]
        await gate.all_begun.wait()
        draining = group.create_task(server.drain(5))
        await asyncio.sleep(0)
        gate.open.set()

    assert [call.result().fields["i"] for call in calls] == list(range(5))
    assert draining.result()
    assert server.num_connections == 0


async def test_calls_during_a_drain_go_to_the_next_server(peers: Any) -> None:
    gate = Gate()
    server, endpoint = await peers.serve({"wait": gate.wait})
    channel = peers.channel(endpoint)

    async with asyncio.TaskGroup() as group:
        old = [
            group.create_task(channel.call("wait", Message(fields={"i": i}), timeout_s=LATE_S))
            for i in range(5)
        ]
        await gate.all_begun.wait()
        draining = group.create_task(server.drain(5))
        await asyncio.sleep(0)
        await peers.serve(
            {"wait": lambda request: Message(fields={"i": "new"})},
            port=int(endpoint.rpartition(":")[2]),
        )
        while channel._link is not None and channel._link.usable:  # noqa: ASYNC110 (it has no event)
            await asyncio.sleep(0)
        new = [
            await channel.call("wait", Message(fields={"i": 0}), timeout_s=LATE_S)
            for _ in range(3)
        ]
        gate.open.set()

    assert [call.result().fields["i"] for call in old] == list(range(5))
    assert [reply.fields["i"] for reply in new] == ["new"] * 3
    assert draining.result()


async def test_a_call_waiting_for_its_turn_leaves_a_draining_server(peers: Any) -> None:
    gate = Gate()
    server, endpoint = await peers.serve({"wait": gate.wait}, limits=Limits(max_streams=5))
    channel = peers.channel(endpoint)

    async with asyncio.TaskGroup() as group:
        for _ in range(5):
            group.create_task(channel.call("wait", Message(), timeout_s=LATE_S))
        await gate.all_begun.wait()
        waiting = group.create_task(channel.call("wait", Message(), timeout_s=LATE_S))
        await asyncio.sleep(0)
        draining = group.create_task(server.drain(5))
        await asyncio.sleep(0)
        await peers.serve(
            {"wait": lambda request: Message(fields={"i": "new"})},
            port=int(endpoint.rpartition(":")[2]),
        )
        assert (await waiting).fields == {"i": "new"}
        gate.open.set()

    assert draining.result()


async def test_a_drain_that_takes_too_long_says_so(peers: Any) -> None:
    gate = Gate()
    server, endpoint = await peers.serve({"wait": gate.wait})
    channel = peers.channel(endpoint)
    calls = asyncio.gather(
        *(
            channel.call("wait", Message(), timeout_s=LATE_S, idempotent=False)
            for _ in range(5)
        ),
        return_exceptions=True,
    )
    await gate.all_begun.wait()

    assert not await server.drain(0.05)

    await server.close()
    assert all(isinstance(lost, Exception) for lost in await calls)


async def test_a_drained_server_is_not_there_any_more(peers: Any) -> None:
    server, endpoint = await peers.serve({"echo": lambda request: request.message})
    channel = peers.channel(endpoint)
    await channel.call("echo", Message(), timeout_s=LATE_S)

    assert await server.drain(5)

    gone = await asyncio.gather(
        channel.call("echo", Message(), timeout_s=0.05), return_exceptions=True
    )
    assert isinstance(gone[0], PeerUnreachableError)


async def test_a_client_that_reads_nothing_is_cut_off_at_the_end(peers: Any) -> None:
    server, endpoint = await peers.serve({})
    reader, writer = await asyncio.open_connection(*endpoint.split(":"))
    plain = PlainEnd(client_side=True)
    writer.write(plain.take())
    plain.feed(await reader.read(1000))
    writer.transport.pause_reading()  # type: ignore[attr-defined]  # of this transport it is

    assert not await server.drain(0.05)
    await server.close()

    assert server.num_connections == 0
    writer.close()
    await writer.wait_closed()
