"""Workers exchange messages while a stranger sends others."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from paramfleet.api.all_to_all import _Running
from paramfleet.config.settings import WorkerSettings
from paramfleet.transport.communicator import Communicator
from paramfleet_coordinator.app import Coordinator
from paramfleet_coordinator.config import CoordinatorSettings
from paramfleet_shared.net.rpc.client import Channel
from paramfleet_shared.net.secret import secret_of
from paramfleet_shared.net.wire.message import MalformedMessageError, Message
from paramfleet_shared.settings.config import resolve
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.testing.patience import LATE_S
from paramfleet_shared.testing.secrets import SECRET

pytestmark = pytest.mark.slow

CLOCK = SystemClock()


class Receiver:
    """Worker 1 of two, in an exchange that has begun."""

    def __init__(self, common: dict[str, Any]) -> None:
        settings = WorkerSettings(**common)
        self.secret = secret_of(settings)
        self._communicator = Communicator()
        self._communicator.start()
        self._communicator.join(settings, index=1)
        self.received: list[tuple[int, int]] = []
        take = self._take
        self._exchange = _Running(
            "shuffle", self._communicator, settings, take, gather=lambda *_: []
        )
        self.endpoint = self._communicator.wait(self._exchange._listen())

    def begin(self) -> None:
        self._communicator.wait(self._exchange._begin([0, 1]))

    def close(self) -> None:
        self._exchange.close()
        self._communicator.say_last(self._communicator.session.leave())
        self._communicator.close()

    def _take(self, source: int, number: int, message: Message) -> None:
        del message
        self.received.append((source, number))


@pytest.fixture
def receiver(redis_url: str, job_name: str) -> Iterator[Receiver]:
    common: dict[str, Any] = {
        "redis": redis_url,
        "job": job_name,
        "secret": SECRET,
        "lease_renew_s": 0.2,
    }
    sizes = {"worker_num": 2, "server_num": 1}
    resolved = resolve(
        CoordinatorSettings, section="coordinator", arguments=common | sizes, environment={}
    )
    host = Communicator()
    host.start()
    serving = host.wait(start(Coordinator(resolved, clock=CLOCK)))
    receiver = Receiver(common)
    yield receiver
    receiver.close()
    host.wait(stop(serving))
    host.close()


async def start(coordinator: Coordinator) -> asyncio.Task[int]:
    return asyncio.get_running_loop().create_task(coordinator.serve())


async def stop(serving: asyncio.Task[int]) -> None:
    """Let it close what it opened: a loop isn't ended while it does."""
    serving.cancel()
    await asyncio.wait([serving])


async def send(receiver: Receiver, *messages: tuple[Any, Any]) -> list[str]:
    """Send messages of these sources and numbers; return what was wrong with each."""
    channel = Channel(receiver.endpoint, peer="worker 1", clock=CLOCK, secret=receiver.secret)
    wrong = []
    for source, number in messages:
        message = Message(fields={"source": source, "number": number})
        try:
            await channel.call("exchange", message, timeout_s=LATE_S)
            wrong.append("")
        except MalformedMessageError as error:
            wrong.append(str(error))
    await channel.close()
    return wrong


def test_what_no_other_worker_that_takes_part_can_have_sent_is_refused_and_not_counted(
    receiver: Receiver,
) -> None:
    receiver.begin()
    sources = [(2, 0), (1 << 62, 0), (-1, 0), (1, 0)]
    numbers = [(0, -1), (0, 1 << 62)]
    neither = [(0, True), ("0", 0), (None, 0)]

    wrong = asyncio.run(send(receiver, *sources, *numbers, *neither, (0, 0)))

    for sentence, (source, _) in zip(wrong, sources, strict=False):
        assert f"source must be another worker that takes part, as {source} isn't" in sentence
    assert all("number must be a number from 0" in sentence for sentence in wrong[4:6])
    assert all("fields need source and number" in sentence for sentence in wrong[6:9])
    assert wrong[9] == ""
    assert receiver.received == [(0, 0)]


def test_a_message_that_comes_before_it_is_known_who_takes_part_waits(
    receiver: Receiver,
) -> None:
    with ThreadPoolExecutor(1) as threads:
        sent = threads.submit(asyncio.run, send(receiver, (0, 0), (7, 0)))
        receiver.begin()
        first, second = sent.result(timeout=LATE_S)

    assert (first, receiver.received) == ("", [(0, 0)])
    assert "as 7 isn't" in second
