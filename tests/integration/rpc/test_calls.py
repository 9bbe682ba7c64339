"""Calls over a real socket, on both event loops."""

import asyncio
import contextlib
import gc
import weakref
from typing import Any

import numpy as np
import pytest

from paramfleet_shared.errors import FleetError, JobFailedError
from paramfleet_shared.net.rpc.answers import UnknownOperationError
from paramfleet_shared.net.rpc.client import (
    Channel,
    ChannelClosedError,
    ConnectionLostError,
    DeadlineExceededError,
    PeerUnreachableError,
)
from paramfleet_shared.net.rpc.endpoint import MalformedEndpointError
from paramfleet_shared.net.rpc.server import (
    CannotListenError,
    PortInUseError,
    Request,
    RpcServer,
)
from paramfleet_shared.net.wire.limits import BodyTooLargeError, Limits
from paramfleet_shared.net.wire.message import Message, UnencodableMessageError, encode
from paramfleet_shared.testing.patience import LATE_S
from paramfleet_shared.testing.proxy import Proxy


def echo(request: Request) -> Message:
    return request.message


async def slow_echo(request: Request) -> Message:
    await asyncio.sleep(0)
    return request.message


def message_of(**tensors: Any) -> Message:
    return Message(tensors=tensors)


@pytest.mark.parametrize("handler", [echo, slow_echo])
async def test_a_message_comes_back(peers: Any, handler: Any) -> None:
    channel = await peers.connect({"echo": handler})

    reply = await channel.call(
        "echo",
        Message(fields={"step": 3}, tensors={"rows": np.ones((2, 3), np.float32)}),
        timeout_s=LATE_S,
    )

    assert reply.fields == {"step": 3}
    assert reply.tensors["rows"].tolist() == [[1.0] * 3] * 2
    assert reply.tensors["rows"].ctypes.data % 64 == 0
    assert reply.tensors["rows"].flags.writeable


async def test_a_handler_knows_its_caller_and_its_deadline(peers: Any) -> None:
    seen: list[Request] = []

    def note(request: Request) -> Message:
        seen.append(request)
        return Message()

    channel = await peers.connect({"note": note})
    began = peers.clock.monotonic()
    await channel.call("note", Message(), timeout_s=LATE_S)

    (request,) = seen
    assert request.op == "note"
    assert request.peer.startswith("process " if peers.nearby else "127.0.0.1:")
    assert request.deadline is not None
    assert began - 0.1 < request.deadline - LATE_S <= peers.clock.monotonic()


@pytest.mark.slow
async def test_large_bodies_and_small_calls_share_a_connection_both_ways(peers: Any) -> None:
    channel = await peers.connect({"echo": slow_echo})
    large = [np.random.default_rng(i).random(500_000) for i in range(8)]

    replies = await asyncio.gather(
        *(channel.call("echo", message_of(x=array), timeout_s=15) for array in large),
        *(channel.call("echo", message_of(x=np.array([i])), timeout_s=15) for i in range(100)),
    )

    for array, reply in zip(
        [*large, *(np.array([i]) for i in range(100))], replies, strict=True
    ):
        assert np.array_equal(reply.tensors["x"], array)


async def test_more_calls_than_streams_wait_their_turn(peers: Any) -> None:
    running, most = 0, 0

    async def busy(request: Request) -> Message:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1
        return request.message

    channel = await peers.connect({"busy": busy}, limits=Limits(max_streams=4))
    await asyncio.gather(
        *(channel.call("busy", Message(), timeout_s=LATE_S) for _ in range(60))
    )

    assert most == 4


async def test_a_waiting_call_that_is_given_up_passes_its_turn_on(peers: Any) -> None:
    begun, gate = asyncio.Event(), asyncio.Event()

    async def wait(request: Request) -> Message:
        begun.set()
        await gate.wait()
        return request.message

    channel = await peers.connect({"wait": wait, "echo": echo}, limits=Limits(max_streams=1))
    async with asyncio.TaskGroup() as group:

        async def call_and_cancel_the_next() -> None:
            await channel.call("wait", Message(), timeout_s=LATE_S)
            second.cancel()  # just when its turn has come

        group.create_task(call_and_cancel_the_next())
        await begun.wait()
        second = group.create_task(channel.call("echo", Message(), timeout_s=LATE_S))
        third = group.create_task(channel.call("echo", Message(), timeout_s=LATE_S))
        await asyncio.sleep(0)  # both now wait for their turn
        gate.set()
        assert (await third).fields == {}

    assert second.cancelled()


async def test_handlers_that_do_not_stop_are_bounded(peers: Any) -> None:
    stop = asyncio.Event()

    async def stubborn(request: Request) -> Message:
        while not stop.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await stop.wait()
        return request.message

    handlers = {"stubborn": stubborn, "echo": lambda request: request.message}
    channel = await peers.connect(handlers, limits=Limits(max_streams=1))
    await channel.call("echo", Message(), timeout_s=LATE_S)  # it is connected
    try:
        for _ in range(2):
            with pytest.raises(DeadlineExceededError):
                await channel.call("stubborn", Message(), timeout_s=0.05)

        with pytest.raises(PeerUnreachableError, match="refused"):
            await channel.call("stubborn", Message(), timeout_s=0.5)
    finally:
        stop.set()  # else the server waits for them


async def test_a_planned_error_comes_out_as_the_same_class(peers: Any) -> None:
    def fail(request: Request) -> Message:
        raise JobFailedError(role="worker", index=3, reason="killed")

    channel = await peers.connect({"fail": fail})

    with pytest.raises(JobFailedError, match="worker 3: killed") as caught:
        await channel.call("fail", Message(), timeout_s=LATE_S)
    assert caught.value.remote
    assert caught.value.index == 3


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_an_unplanned_error_is_internal_and_logged(
    peers: Any, caplog: pytest.LogCaptureFixture, asynchronous: bool
) -> None:
    def fail(request: Request) -> Message:
        raise KeyError("shard")

    async def fail_later(request: Request) -> Message:
        await asyncio.sleep(0)
        return fail(request)

    channel = await peers.connect({"fail": fail_later if asynchronous else fail})

    with pytest.raises(FleetError, match="KeyError: 'shard'") as caught:
        await channel.call("fail", Message(), timeout_s=LATE_S)
    assert type(caught.value) is FleetError
    assert [record.message for record in caplog.records] == ["rpc.handler_failed"]


async def test_a_time_out_of_the_handlers_own_is_not_taken_for_the_deadline(peers: Any) -> None:
    async def fail(request: Request) -> Message:
        raise TimeoutError("disk")

    channel = await peers.connect({"fail": fail})

    with pytest.raises(FleetError, match="TimeoutError: disk"):
        await channel.call("fail", Message(), timeout_s=LATE_S)


async def test_a_reply_that_cannot_travel_is_the_handlers_error(peers: Any) -> None:
    channel = await peers.connect({"odd": lambda request: Message(fields={"x": object()})})

    with pytest.raises(UnencodableMessageError) as caught:
        await channel.call("odd", Message(), timeout_s=LATE_S)
    assert caught.value.remote


async def test_a_request_that_cannot_travel_is_never_sent(peers: Any) -> None:
    channel = peers.channel("127.0.0.1:1")

    with pytest.raises(UnencodableMessageError):
        await channel.call("x", Message(fields={"x": object()}), timeout_s=LATE_S)


async def test_an_operation_nobody_serves_is_named(peers: Any) -> None:
    channel = await peers.connect({})

    with pytest.raises(UnknownOperationError, match="pserver 0 has no operation 'fly'"):
        await channel.call("fly", Message(), timeout_s=LATE_S)


async def test_a_request_over_the_servers_limit_is_refused_with_the_limit(peers: Any) -> None:
    channel = await peers.connect({"echo": echo}, limits=Limits(max_body_bytes=10_000))

    with pytest.raises(BodyTooLargeError) as caught:
        await channel.call("echo", message_of(x=np.zeros(10**6)), timeout_s=LATE_S)
    assert caught.value.remote
    assert caught.value.limit_bytes == 10_000
    assert (await channel.call("echo", message_of(x=np.zeros(3)), timeout_s=LATE_S)).tensors


async def test_an_answer_over_the_clients_limit_is_given_up(peers: Any) -> None:
    _, endpoint = await peers.serve({"large": lambda request: message_of(x=np.zeros(10**5))})
    channel = peers.channel(endpoint, limits=Limits(max_body_bytes=1000))

    with pytest.raises(BodyTooLargeError) as caught:
        await channel.call("large", Message(), timeout_s=LATE_S)
    assert not caught.value.remote


async def test_calls_over_the_byte_budget_are_tried_again_until_there_is_room(
    peers: Any,
) -> None:
    channel = await peers.connect({"echo": slow_echo}, limits=Limits(body_budget_bytes=2 << 20))

    replies = await asyncio.gather(
        *(
            channel.call("echo", message_of(x=np.zeros(1 << 17)), timeout_s=LATE_S)
            for _ in range(6)
        )
    )

    assert len(replies) == 6


async def test_a_port_in_use_is_named(peers: Any) -> None:
    _, endpoint = await peers.serve({})
    port = int(endpoint.rpartition(":")[2])

    with pytest.raises(PortInUseError, match=f"port {port} of 127.0.0.1 is in use"):
        await peers.serve({}, port=port)


async def test_an_address_of_another_machine_cannot_be_served_on(peers: Any) -> None:
    server = RpcServer({}, name="x", clock=peers.clock)

    with pytest.raises(CannotListenError, match=r"203\.0\.113\.1"):
        await server.start("203.0.113.1")
    assert await server.drain(0.1)
    await server.close()


def test_an_endpoint_is_checked_when_the_channel_is_made(peers: Any) -> None:
    with pytest.raises(MalformedEndpointError, match="host:port"):
        Channel("localhost", peer="x", clock=peers.clock)


async def test_a_closed_channel_says_so(peers: Any) -> None:
    channel = await peers.connect({"echo": echo})
    await channel.call("echo", Message(), timeout_s=LATE_S)
    await channel.close()
    await channel.close()

    with pytest.raises(ChannelClosedError, match="closed channel to pserver 0"):
        await channel.call("echo", Message(), timeout_s=LATE_S)


async def test_closing_a_channel_ends_its_calls(peers: Any, free_port: int) -> None:
    begun = asyncio.Event()

    async def never(request: Request) -> Message:
        begun.set()
        await asyncio.Event().wait()
        return request.message

    channel = await peers.connect({"never": never})
    nowhere = peers.channel(f"127.0.0.1:{free_port}")
    sent = asyncio.gather(
        channel.call("never", Message(), timeout_s=LATE_S),
        nowhere.call("never", Message(), timeout_s=LATE_S),
        return_exceptions=True,
    )
    await begun.wait()

    await channel.close()
    await nowhere.close()

    lost, unreachable = await sent
    assert isinstance(lost, ConnectionLostError)
    assert isinstance(unreachable, PeerUnreachableError)


async def test_closing_a_server_cancels_its_handlers_and_loses_their_calls(peers: Any) -> None:
    ended: list[str] = []
    begun = asyncio.Event()

    async def never(request: Request) -> Message:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")
        return request.message

    server, endpoint = await peers.serve({"never": never})
    channel = peers.channel(endpoint)
    call = asyncio.gather(
        channel.call("never", Message(), timeout_s=LATE_S, idempotent=False),
        return_exceptions=True,
    )
    await begun.wait()

    await server.close()
    await server.close()

    assert isinstance((await call)[0], ConnectionLostError)
    assert ended == ["cancelled"]
    assert server.num_connections == 0


async def test_a_handler_knows_whether_its_caller_is_alone(peers: Any) -> None:
    seen: list[bool] = []
    waiting, gate = asyncio.Event(), asyncio.Event()

    def note(request: Request) -> Message:
        seen.append(request.is_alone)
        return Message()

    async def wait(_: Request) -> Message:
        waiting.set()
        await gate.wait()
        return Message()

    _, endpoint = await peers.serve({"note": note, "wait": wait})
    mine, other = peers.channel(endpoint), peers.channel(endpoint)

    await mine.call("note", Message(), timeout_s=LATE_S)
    await mine.call("note", Message(), timeout_s=LATE_S)
    assert seen == [False, True]  # the first caller may be one of many

    await other.call("note", Message(), timeout_s=LATE_S)
    await mine.call("note", Message(), timeout_s=LATE_S)
    assert seen[2:] == [False, False]

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(other.call("wait", Message(), timeout_s=LATE_S))
        await waiting.wait()
        await mine.call("note", Message(), timeout_s=LATE_S)
        await mine.call("note", Message(), timeout_s=LATE_S)
        gate.set()
    assert seen[4:] == [False, False]


async def test_a_channel_tells_of_the_bytes_of_calls_that_were_answered_well(
    peers: Any,
) -> None:
    told: list[tuple[str, int, int]] = []

    def fail(_: Request) -> Message:
        raise JobFailedError(role="worker", index=1, reason="x")

    _, endpoint = await peers.serve({"echo": echo, "fail": fail})
    channel = peers.channel(endpoint, count=lambda *facts: told.append(facts))
    messages = [Message(), Message(fields={"a": 1}, tensors={"rows": np.zeros((300, 7))})]

    for message in messages:
        await channel.call("echo", message, timeout_s=LATE_S)
    with pytest.raises(JobFailedError):
        await channel.call("fail", Message(), timeout_s=LATE_S)

    sizes = [sum(map(len, encode(message))) for message in messages]
    assert told == [("echo", size, size) for size in sizes]


async def test_nothing_is_held_of_a_call_that_has_ended(peers: Any) -> None:
    server, endpoint = await peers.serve({"echo": echo})
    channel = peers.channel(endpoint)
    before = channel.num_held
    await channel.call("echo", message_of(rows=np.zeros(1 << 20, np.float32)), timeout_s=LATE_S)

    assert before == channel.num_held == server.num_held == (0, 0)


async def test_what_a_call_had_sent_that_was_lost_is_freed_at_once(peers: Any) -> None:
    _, endpoint = await peers.serve({"echo": echo})
    async with Proxy(int(endpoint.rpartition(":")[2])) as wire:
        channel = peers.channel(wire.endpoint)
        rows = np.zeros(1 << 20, np.float32)
        freed = weakref.ref(rows)
        wire.cut_after(100_000)
        gc.disable()
        try:
            await channel.call("echo", message_of(rows=rows), timeout_s=LATE_S)
            del rows

            assert freed() is None
        finally:
            gc.enable()
        assert wire.num_connections == 2
