"""What listens at the address of a Redis."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from paramfleet_worker.process.probes import speaking
from paramfleet_worker.process.probes.speaking import (
    NoRedisThereError,
    NotRedisError,
    require_redis,
)


@contextlib.asynccontextmanager
async def listening(answer: bytes | None) -> AsyncIterator[int]:
    """Serve an answer to the first line, or nothing at all, on the port that is given."""

    serving = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.append(asyncio.current_task())
        await reader.readline()
        if answer is None:
            await reader.read()  # until the other side ends
        else:
            writer.write(answer)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
        await asyncio.gather(*filter(None, serving))


@pytest.mark.parametrize(
    "answer", [b"+PONG\r\n", b"-NOAUTH Authentication required.\r\n", b"-LOADING ...\r\n"]
)
def test_a_redis_passes_whatever_it_says(answer: bytes) -> None:
    async def ask() -> None:
        async with listening(answer) as port:
            await require_redis("127.0.0.1", port, may_come=True)

    asyncio.run(ask())


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "it answered 'HTTP/1.1 400 Bad Request'"),
        (b"", "it hung up"),
        (b"x" * (1 << 17), "it answered 'a line of more than 64 KiB'"),
    ],
)
def test_another_server_is_named_with_what_it_says(answer: bytes, said: str) -> None:
    async def ask() -> None:
        async with listening(answer) as port:
            match = f"at 127.0.0.1 port {port} is no Redis: {said}; "
            with pytest.raises(NotRedisError, match=match):
                await require_redis("127.0.0.1", port, may_come=True)

    asyncio.run(ask())


def test_a_silent_server_is_no_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speaking, "ANSWER_WITHIN_S", 0.2)

    async def ask() -> None:
        async with listening(None) as port:
            with pytest.raises(NotRedisError, match="said nothing"):
                await require_redis("127.0.0.1", port, may_come=True)

    asyncio.run(ask())


def test_a_redis_that_is_not_there_yet_may_come() -> None:
    async def ask() -> None:
        async with listening(b"") as port:
            pass
        await require_redis("127.0.0.1", port, may_come=True)

    asyncio.run(ask())


def test_a_redis_that_nobody_else_starts_is_missing_soon_and_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(speaking, "ANSWER_WITHIN_S", 0.3)

    async def ask() -> None:
        async with listening(b"") as port:
            pass
        match = f"no Redis at 127.0.0.1 port {port}: Connection refused; .*leave --redis out"
        with pytest.raises(NoRedisThereError, match=match):
            await require_redis("127.0.0.1", port, may_come=False)

    asyncio.run(ask())


def test_a_redis_that_is_starting_is_waited_for() -> None:
    async def ask() -> None:
        async with listening(b"") as port:
            pass

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readline()
            writer.write(b"+PONG\r\n")
            writer.close()

        async with asyncio.TaskGroup() as group:
            asked = group.create_task(require_redis("127.0.0.1", port, may_come=False))
            await asyncio.sleep(0)
            async with await asyncio.start_server(serve, "127.0.0.1", port):
                await asked

    asyncio.run(ask())
