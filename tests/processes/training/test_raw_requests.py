"""The test plays worker 1 of a running job, request by request."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

from paramfleet.transport.requests import Read, ReadPlan, Write, write_messages
from paramfleet_shared.discovery.placement import Placement
from paramfleet_shared.discovery.session import JobSession
from paramfleet_shared.errors.served import NonFiniteGradientError
from paramfleet_shared.net.rpc.client import Channel
from paramfleet_shared.net.rpc.deadlines import DeadlineExceededError
from paramfleet_shared.net.secret import JobSecret
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.settings.config import JobSettings
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.tables.partition import partition
from paramfleet_shared.tables.rows.batch import RowIds
from paramfleet_shared.tables.rowstore import RowShapeError
from paramfleet_shared.tables.spec import InitializerSpec, OptimizerSpec, TableSpec
from paramfleet_shared.testing.patience import LATE_S
from paramfleet_shared.testing.secrets import SECRET, secret_for

pytestmark = [pytest.mark.processes, pytest.mark.slow]

CLOCK = SystemClock()
IDS = np.arange(40, dtype=np.int64)


class Hand:
    """Worker 1, whose pushes the test writes by hand, into a table of its own."""

    def __init__(
        self, session: JobSession, placement: Placement, secret: JobSecret, dim: int = 2
    ) -> None:
        self.placement = placement
        unique, _, offsets = partition(IDS, placement.num_shards)
        self.rows = RowIds(unique, offsets)
        self.about = {"rank": session.member.index, "incarnation": session.member.incarnation}
        self.channels = [
            Channel(endpoint, peer=f"pserver {index}", clock=CLOCK, secret=secret)
            for index, endpoint in enumerate(placement.endpoints)
        ]
        self.spec = TableSpec(
            name="ledger",
            kind="sparse",
            dim=dim,
            size=0,
            num_shards=session.num_shards,
            seed=0,
            initializer=InitializerSpec(kind="zeros"),
            optimizer=OptimizerSpec(rule="sum"),
        )

    async def declare(self) -> None:
        about = {
            "mode": "async",
            "worker_num": 2,
            "max_staleness": None,
            "async_rate": "guarded",
        }
        tables = [self.spec.to_wire()]
        for channel in self.channels:
            message = Message(fields={**self.about, **about, "tables": tables}, tensors={})
            await channel.call("declare", message, timeout_s=10)

    def pushes(self, sequence: int, value: Any = 1.0, dtype: Any = np.float32) -> list[Message]:
        """Return a push of ``value`` to every number, one message a pserver."""
        grads = np.full((len(IDS), self.spec.dim), value, dtype)
        writes = [Write(table="ledger", values=grads, rows=self.rows)]
        fields = {**self.about, "sequence": sequence, "step": 0, "weight": 1.0}
        return write_messages(writes, self.placement, fields, values_name="grads")

    async def push(self, messages: list[Message], timeout_s: float = 10) -> list[bool]:
        """Send a push to every pserver; return who had it already."""
        answers = [
            await channel.call("push", message, timeout_s=timeout_s)
            for channel, message in zip(self.channels, messages, strict=True)
        ]
        return [answer.fields["duplicate"] for answer in answers]

    async def total(self) -> set[float]:
        """Return the different numbers in the table."""
        read = Read(table="ledger", rows=self.rows, dim=self.spec.dim)
        plan = ReadPlan([read], self.placement)
        answers = [
            await channel.call("pull", message, timeout_s=10)
            for channel, message in zip(
                self.channels, plan.messages(rank=1, min_step=0), strict=True
            )
        ]
        return set(plan.join(answers)[0].ravel().tolist())


@asynccontextmanager
async def worker_1(running: Any) -> AsyncIterator[Hand]:
    settings = JobSettings(job=running.job, redis=running.redis, secret=SECRET)
    session = await JobSession.join(
        settings, role="worker", index=1, endpoint="", admin="", clock=CLOCK
    )
    async with asyncio.TaskGroup() as group:
        life = group.create_task(session.run())
        hand = Hand(session, await session.wait_placement(), secret_for(running.job))
        try:
            await hand.declare()
            await session.gather("fleet.dense", msgpack.packb({}))
            yield hand
            await session.mark_done()
        finally:
            for channel in hand.channels:
                await channel.close()
            life.cancel()
            await session.leave()


@pytest.fixture
def half(jobs: Any, tmp_path: Path) -> Any:
    """Return a job in async whose worker 0 trains and whose worker 1 is left to the test."""
    running = jobs.new()
    running.start_coordinator()
    args = ["train_long.py", "--mode", "async", "--until", str(tmp_path / "enough")]
    for index in (0, 1):
        running.start_pserver(index, *args)
    running.start_worker(0, *args)
    return running


async def finish(running: Any, tmp_path: Path) -> None:
    (tmp_path / "enough").touch()
    ended = await asyncio.to_thread(running.end)
    assert set(ended.codes.values()) == {0}, ended.story()


async def test_a_push_that_comes_again_is_applied_once(half: Any, tmp_path: Path) -> None:
    async with worker_1(half) as hand:
        first, second = hand.pushes(1), hand.pushes(2)

        assert await hand.push(first) == [False, False]
        assert await hand.push(first) == [True, True]
        assert await hand.push(second) == [False, False]
        assert await hand.push(first) == [True, True]
        assert await hand.push(second) == [True, True]

        assert await hand.total() == {2.0}
    await finish(half, tmp_path)


async def test_a_push_to_a_stopped_pserver_fails_in_time_and_its_retry_is_applied_once(
    half: Any, tmp_path: Path
) -> None:
    async with worker_1(half) as hand:
        messages = hand.pushes(1)
        half.send("pserver1", signal.SIGSTOP)
        started = time.perf_counter()
        with pytest.raises(DeadlineExceededError, match="pserver 1 did not answer 'push'") as e:
            await hand.push(messages, timeout_s=1.0)
        waited_s = time.perf_counter() - started
        half.send("pserver1", signal.SIGCONT)

        assert waited_s < 1.0 + LATE_S
        assert 1.0 <= e.value.waited_s <= waited_s
        assert (await hand.push(messages))[0] is True
        assert await hand.total() == {1.0}
    await finish(half, tmp_path)


@pytest.mark.parametrize("value", [np.nan, np.inf])
async def test_a_push_that_is_not_finite_changes_nothing(
    half: Any, tmp_path: Path, value: float
) -> None:
    async with worker_1(half) as hand:
        with pytest.raises(NonFiniteGradientError, match="table 'ledger'") as caught:
            await hand.push(hand.pushes(1, value))

        assert caught.value.remote
        assert caught.value.rank == 1
        assert await hand.total() == {0.0}
        assert await hand.push(hand.pushes(1)) == [False, False], "it wasn't counted"
    await finish(half, tmp_path)


async def test_a_push_of_another_type_or_width_changes_nothing(
    half: Any, tmp_path: Path
) -> None:
    async with worker_1(half) as hand:
        refused = []
        for messages in (widened(hand.pushes(1)), doubled(hand.pushes(1))):
            with pytest.raises(RowShapeError, match="ledger") as caught:
                await hand.push(messages)
            refused.append(str(caught.value))

        assert "2]" in refused[0], "the width it should have"
        assert "float64" in refused[1]
        assert await hand.total() == {0.0}
        assert await hand.push(hand.pushes(1)) == [False, False]
    await finish(half, tmp_path)


def widened(messages: list[Message]) -> list[Message]:
    """Return pushes with one number too many in each row."""
    return [
        Message(
            fields=m.fields,
            tensors={**m.tensors, "0.grads": np.repeat(m.tensors["0.grads"], 2, 1)},
        )
        for m in messages
    ]


def doubled(messages: list[Message]) -> list[Message]:
    """Return pushes in float64."""
    return [
        Message(
            fields=m.fields,
            tensors={**m.tensors, "0.grads": m.tensors["0.grads"].astype(np.float64)},
        )
        for m in messages
    ]
