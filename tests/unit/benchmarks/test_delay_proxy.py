"""The delaying wire: every byte comes late, in order, and none is lost."""

import asyncio
import hashlib
from collections.abc import AsyncIterator

import pytest

from delay_proxy import DelayProxy
from paramfleet_shared.testing.patience import LATE_S

DELAY_S = 0.05


@pytest.fixture
async def echo() -> AsyncIterator[int]:
    """Return the port of a server that says what it hears."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port: int = server.sockets[0].getsockname()[1]
        yield port


async def talk(endpoint: str, data: bytes) -> bytes:
    """Return what comes back."""
    host, _, port = endpoint.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))

    async def say() -> None:
        writer.write(data)
        await writer.drain()
        writer.write_eof()

    async with asyncio.TaskGroup() as group:
        group.create_task(say())
        answer = group.create_task(reader.read())
    writer.close()
    return answer.result()


@pytest.mark.parametrize("jitter_s", [0.0, 0.004])
async def test_all_bytes_come_in_their_order(echo: int, jitter_s: float) -> None:
    data = hashlib.shake_256(b"bytes").digest(3_000_000)

    async with DelayProxy(echo, delay_s=0.005, jitter_s=jitter_s) as wire:
        answer = await talk(wire.endpoint, data)

        assert answer == data
        assert wire.num_bytes == 2 * len(data)


async def test_an_answer_takes_at_least_two_delays(echo: int) -> None:
    now = asyncio.get_running_loop().time
    async with DelayProxy(echo, delay_s=DELAY_S) as wire:
        begun = now()
        await talk(wire.endpoint, b"there and back")

        assert now() - begun >= 2 * DELAY_S


async def test_bytes_are_delayed_side_by_side(echo: int) -> None:
    """One after the other, these connections' delays would add up to 20 s."""
    async with DelayProxy(echo, delay_s=DELAY_S) as wire, asyncio.timeout(LATE_S):
        answers = await asyncio.gather(*(talk(wire.endpoint, b"x") for _ in range(200)))

    assert answers == [b"x"] * 200


async def test_the_delay_can_be_changed(echo: int) -> None:
    async with DelayProxy(echo, delay_s=3600.0) as wire:
        wire.delay_s = 0.0

        assert await talk(wire.endpoint, b"soon") == b"soon"


async def test_without_a_server_the_connection_ends() -> None:
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()

    async with DelayProxy(port, delay_s=0.0) as wire:
        with pytest.raises(ExceptionGroup) as caught:
            await talk(wire.endpoint, b"anybody?")

    assert caught.group_contains(ConnectionError)
