"""Servers and channels on both event loops, closed when a test ends."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest
import uvloop

from paramfleet_shared.net.rpc.client import Channel
from paramfleet_shared.net.rpc.server import Handler, RpcServer
from paramfleet_shared.system.clock import SystemClock


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


class Peers:
    """Opens servers and channels, and closes them in the right order.

    Args:
        nearby: Whether its servers may be reached by Unix sockets, unless a test says.
    """

    def __init__(self, *, nearby: bool) -> None:
        self.nearby = nearby
        self.clock = SystemClock()
        self._channels: list[Channel] = []
        self._servers: list[RpcServer] = []

    async def serve(
        self, handlers: Mapping[str, Handler], *, port: int = 0, **options: Any
    ) -> tuple[RpcServer, str]:
        options = {"nearby": self.nearby, **options}
        server = RpcServer(handlers, name="pserver 0", clock=self.clock, **options)
        self._servers.append(server)
        return server, f"127.0.0.1:{await server.start('127.0.0.1', port)}"

    def channel(self, endpoint: str, **options: Any) -> Channel:
        channel = Channel(endpoint, peer="pserver 0", clock=self.clock, **options)
        self._channels.append(channel)
        return channel

    async def connect(self, handlers: Mapping[str, Handler], **options: Any) -> Channel:
        _, endpoint = await self.serve(handlers, **options)
        return self.channel(endpoint)

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close()
        for server in self._servers:
            await server.close()


@pytest.fixture(params=[False, True], ids=["tcp", "unix"])
async def peers(request: pytest.FixtureRequest) -> AsyncIterator[Peers]:
    peers = Peers(nearby=request.param)
    yield peers
    await peers.close()


@pytest.fixture
def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port
