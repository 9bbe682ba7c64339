"""Processes of one machine and user meet at a Unix socket, and nobody else does."""

import asyncio
import contextlib
import os
from typing import Any

import numpy as np
import pytest

from paramfleet_shared.net.rpc.client import PeerUnreachableError
from paramfleet_shared.net.rpc.connection.unix_socket import bind_nearby, connect_nearby
from paramfleet_shared.net.rpc.server import Request, RpcServer
from paramfleet_shared.net.wire.limits import Limits
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.testing.patience import LATE_S

pytestmark = pytest.mark.parametrize("peers", [True], indirect=True, ids=["unix"])

HERE = f"process {os.getpid()}"


def who(request: Request) -> Message:
    return Message(fields={"peer": request.peer}, tensors=request.message.tensors)


async def peer_seen_by(peers: Any, endpoint: str) -> str:
    answer = await peers.channel(endpoint).call("who", Message(), timeout_s=LATE_S)
    peer = answer.fields["peer"]
    assert isinstance(peer, str)
    return peer


async def test_a_caller_of_this_machine_comes_by_the_unix_socket_if_there_is_one(
    peers: Any,
) -> None:
    _, endpoint = await peers.serve({"who": who}, nearby=True)
    _, other = await peers.serve({"who": who}, nearby=False)

    assert await peer_seen_by(peers, endpoint) == HERE
    by_name = f"localhost:{endpoint.rpartition(':')[2]}"
    assert "process" not in await peer_seen_by(peers, by_name), "names aren't looked up for it"
    assert (await peer_seen_by(peers, other)).startswith("127.0.0.1:")


async def test_large_messages_cross_it_both_ways(peers: Any) -> None:
    _, endpoint = await peers.serve({"who": who}, nearby=True)
    channel = peers.channel(endpoint)
    arrays = [np.arange(size, dtype=np.int64) for size in (1 << 21, 3, 1 << 18)]

    answers = await asyncio.gather(
        *(channel.call("who", Message(tensors={"x": each}), timeout_s=20) for each in arrays)
    )

    for each, answer in zip(arrays, answers, strict=True):
        assert answer.fields["peer"] == HERE
        np.testing.assert_array_equal(answer.tensors["x"], each)


async def test_a_server_of_every_address_has_no_name(peers: Any, free_port: int) -> None:
    everywhere = RpcServer({"who": who}, name="pserver 0", clock=peers.clock, nearby=True)
    await everywhere.start("0.0.0.0", free_port)
    try:
        assert connect_nearby("127.0.0.1", free_port) is None
        assert (await peer_seen_by(peers, f"127.0.0.1:{free_port}")).startswith("127.0.0.1:")
    finally:
        await everywhere.close()


async def test_a_server_of_one_address_is_not_found_at_another(peers: Any) -> None:
    _, endpoint = await peers.serve({"who": who}, nearby=True)
    port = int(endpoint.rpartition(":")[2])

    assert connect_nearby("127.0.0.2", port) is None
    with pytest.raises(PeerUnreachableError):
        await peers.channel(f"127.0.0.2:{port}").call("who", Message(), timeout_s=0.3)


async def test_who_has_a_name_and_is_silent_is_left_for_tcp(peers: Any, free_port: int) -> None:
    taken = bind_nearby(("127.0.0.1", free_port))
    assert taken is not None
    with taken:
        taken.listen()
        assert bind_nearby(("127.0.0.1", free_port)) is None
        _, endpoint = await peers.serve({"who": who}, port=free_port, nearby=True)
        channel = peers.channel(endpoint, limits=Limits(connect_timeout_s=0.2))

        answer = await channel.call("who", Message(), timeout_s=LATE_S)

    assert answer.fields["peer"].startswith("127.0.0.1:")


async def test_a_server_lets_no_other_users_process_in(
    peers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, endpoint = await peers.serve({"who": who}, nearby=True)
    host, port = endpoint.split(":")
    sock = connect_nearby(host, int(port))
    assert sock is not None
    user = os.geteuid()
    monkeypatch.setattr("os.geteuid", lambda: user + 1)

    reader, writer = await asyncio.open_unix_connection(sock=sock)
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")

    with contextlib.suppress(ConnectionError):
        assert await asyncio.wait_for(reader.read(), 10) == b""
    writer.close()


async def test_another_users_process_is_not_trusted_with_a_name(
    peers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, endpoint = await peers.serve({"who": who}, nearby=True)
    user = os.geteuid()
    monkeypatch.setattr("os.geteuid", lambda: user + 1)

    assert (await peer_seen_by(peers, endpoint)).startswith("127.0.0.1:")


async def test_tls_has_no_way_around_it(peers: Any, certificates: Any) -> None:
    tls = certificates.tls("pserver").accepts("worker")
    of_workers = {"tls": tls, "rights": {"who": frozenset({"worker"})}}
    _, endpoint = await peers.serve({"who": who}, nearby=True, **of_workers)
    host, port = endpoint.split(":")

    assert connect_nearby(host, int(port)) is None
    channel = peers.channel(endpoint, tls=certificates.tls("worker").expects("pserver"))
    answer = await channel.call("who", Message(), timeout_s=LATE_S)
    assert answer.fields["peer"].startswith("127.0.0.1:")


async def test_a_server_that_drains_is_not_found_any_more(peers: Any) -> None:
    server, endpoint = await peers.serve({"who": who}, nearby=True)
    host, port = endpoint.split(":")

    assert await server.drain(1.0)

    assert connect_nearby(host, int(port)) is None
