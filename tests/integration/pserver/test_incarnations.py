"""Whoever acts for a worker has an incarnation that the coordinator gave out."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from paramfleet_coordinator.app import Coordinator
from paramfleet_coordinator.config import CoordinatorSettings
from paramfleet_pserver.app import PServer
from paramfleet_pserver.config import PServerSettings
from paramfleet_shared.discovery.errors import UnissuedIncarnationError
from paramfleet_shared.discovery.redis.embedded import EmbeddedRedis
from paramfleet_shared.discovery.session import JobSession
from paramfleet_shared.net.rpc.client import Channel
from paramfleet_shared.net.wire.message import MalformedMessageError, Message
from paramfleet_shared.settings.config import JobSettings, resolve
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.tables.spec import TableSpec
from paramfleet_shared.testing.patience import LATE_S
from paramfleet_shared.testing.secrets import SECRET, secret_for

pytestmark = pytest.mark.slow

CLOCK = SystemClock()
FLAT = TableSpec(name="flat", kind="dense", size=24)
FAST = {
    "lease_ttl_s": 1.5,
    "lease_renew_s": 0.1,
    "join_timeout_s": LATE_S,
    "call_timeout_s": 5.0,
}
FAR = 1 << 62
TERMS = {"tables": [FLAT.to_wire()], "mode": "async", "worker_num": 2, "max_staleness": None}
STEP = {"sequence": 1, "step": 0, "weight": 1.0, "parts": []}
OPERATIONS: dict[str, dict[str, Any]] = {
    "declare": TERMS,
    "stage": {"table": "flat", "number": 1, "start": 0},
    "hold": {"cut": "x", "for_s": 0.0},
    "answer": {"to": 0, "ends": True},
    "push": STEP,
    "exchange": STEP,
    "prefetch": {"table": "flat"},
    "remove": {"table": "flat", "sequence": 1, "step": 0},
    "write": {"table": "flat", "sequence": 1, "step": 0},
    "void": {"sequence": 1},
    "assign": {"table": "flat", "only_if_new": False},
    "leave": {"step": 0},
    "pull": {"min_version": 0, "parts": []},
    "wait_turn": {"step": 0},
    "total": {"step": 0, "name": "x"},
    "await_step": {"step": 0},
    "read_pass": {"parts": []},
    "prepare_pass": {"pass": 1, "piece": 0, "parts": []},
    "commit_pass": {"pass": 1, "pieces": None},
    "abort_pass": {"pass": 1},
}


class Scene:
    """A job of one pserver, and worker 0 of two, on one event loop."""

    def __init__(self, redis: EmbeddedRedis, session: JobSession, channel: Channel) -> None:
        self.redis = redis
        self.session = session
        self.channel = channel

    async def act(self, operation: str, *, rank: Any = 0, incarnation: Any = 1) -> Message:
        fields = {**OPERATIONS[operation], "rank": rank, "incarnation": incarnation}
        return await self.channel.call(operation, Message(fields=fields), timeout_s=8.0)


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    redis = EmbeddedRedis(tmp_path, clock=CLOCK)
    await redis.start()
    common: dict[str, Any] = {**FAST, "redis": redis.url, "job": "test", "secret": SECRET}
    sizes = {"server_num": 1, "worker_num": 2}
    resolved = resolve(
        CoordinatorSettings, section="coordinator", arguments=common | sizes, environment={}
    )
    settings = PServerSettings(**common, owner_threads=1)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(Coordinator(resolved, clock=CLOCK).serve())]
        tasks.append(group.create_task(pserve(settings)))
        session = await JobSession.join(
            JobSettings(**common), role="worker", index=0, endpoint="", admin="", clock=CLOCK
        )
        tasks.append(group.create_task(beat(session)))
        placement = await session.wait_placement()
        secret = secret_for("test")
        channel = Channel(placement.endpoints[0], peer="pserver 0", clock=CLOCK, secret=secret)
        yield Scene(redis, session, channel)
        await channel.close()
        for task in reversed(tasks):
            task.cancel()
            await asyncio.wait([task])
        await session.leave()
    redis.stop()


async def pserve(settings: PServerSettings) -> int:
    await PServer(settings, clock=CLOCK, config={}).run()
    return 0


async def beat(session: JobSession) -> int:
    await session.run()
    return 0


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_an_incarnation_that_nobody_gave_out_is_refused_and_changes_nothing(
    scene: Scene, operation: str
) -> None:
    await scene.act("declare")

    with pytest.raises(UnissuedIncarnationError) as refused:
        await scene.act(operation, incarnation=FAR)

    facts = {"role": "worker", "index": 0, "incarnation": FAR, "newest": 1}
    assert refused.value.facts == facts
    assert f"worker 0 incarnation {FAR} isn't one that the coordinator gave" in str(
        refused.value
    )
    await scene.act("wait_turn")  # worker 0 is who it was


@pytest.mark.parametrize("rank", [1, 2, 4096, FAR])
async def test_a_rank_that_nobody_was_given_is_refused(scene: Scene, rank: int) -> None:
    with pytest.raises(UnissuedIncarnationError, match="it gave out none"):
        await scene.act("declare", rank=rank)

    assert scene.session.failure() is None


@pytest.mark.parametrize("incarnation", [0, -1, True, "1", None, [1], 1.0])
async def test_what_is_no_incarnation_is_refused_by_name(
    scene: Scene, incarnation: Any
) -> None:
    with pytest.raises((UnissuedIncarnationError, MalformedMessageError), match="incarnation"):
        await scene.act("declare", incarnation=incarnation)


async def test_a_worker_that_is_not_known_yet_acts_on_after_redis_came_back_empty(
    scene: Scene,
) -> None:
    scene.redis.stop()
    await scene.redis.start()  # with nothing in it, until the next heartbeat

    await scene.act("declare")

    await scene.act("wait_turn")


async def test_a_worker_that_is_not_known_yet_is_answered_when_redis_is_back(
    scene: Scene,
) -> None:
    scene.redis.stop()

    acting = asyncio.create_task(scene.act("declare"))  # noqa: TID251 - awaited below
    given_up, _ = await asyncio.wait([acting], timeout=0.5)
    await scene.redis.start()

    assert not given_up
    await acting
