"""A process that is stopped while it joins gives back the place that it got meanwhile."""

import asyncio
import os
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest

from paramfleet_shared.discovery.job_registry import JobRegistry
from paramfleet_shared.discovery.records import JobRecord, JobSizes, Member
from paramfleet_shared.discovery.redis.store import RedisStore
from paramfleet_shared.discovery.registry import CoordinatorRecord
from paramfleet_shared.discovery.session import JobSession
from paramfleet_shared.net.rpc.server import Request, RpcServer
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.settings.config import JobSettings
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.testing.patience import LATE_S
from paramfleet_shared.testing.secrets import SECRET, secret_for

CLOCK = SystemClock()


class SlowCoordinator:
    """Registers who joins, and answers when the test says so."""

    def __init__(self, job_registry: JobRegistry, sizes: JobSizes) -> None:
        self.job_registry = job_registry
        self.sizes = sizes
        self.registered = asyncio.Event()
        self.may_answer = asyncio.Event()

    async def join(self, request: Request) -> Message:
        fields = request.message.fields
        names = ("role", "endpoint", "admin", "host", "pid", "nonce", "launch")
        member = Member(index=0, incarnation=0, **{name: fields[name] for name in names})
        incarnation = await self.job_registry.register(member)
        self.registered.set()
        await self.may_answer.wait()
        sizes = self.sizes
        return Message(
            fields={
                "index": 0,
                "incarnation": incarnation,
                "epoch": self.job_registry.epoch,
                "worker_num": sizes.worker_num,
                "server_num": sizes.server_num,
                "num_shards": sizes.num_shards,
                "elastic": sizes.elastic,
                "known_workers": 1,
                "late": False,
                "released": {},
            }
        )


@pytest.fixture
async def coordinator(
    redis_url: str, job_name: str, request: Any
) -> AsyncIterator[SlowCoordinator]:
    store = RedisStore(redis_url, clock=CLOCK, timeout_s=2.0)
    sizes = JobSizes(worker_num=1, server_num=1, num_shards=8, elastic=request.param)
    where = CoordinatorRecord(endpoint="", admin="", host="here", pid=os.getpid())
    job_registry = JobRegistry(store, job=job_name, record=where, lease_ttl_s=30.0)
    assert await job_registry.try_claim() is None
    made = SlowCoordinator(job_registry, sizes)
    server = RpcServer(
        {"join": made.join}, name="coordinator", clock=CLOCK, secret=secret_for(job_name)
    )
    job_registry.announce(endpoint=f"127.0.0.1:{await server.start('127.0.0.1')}", admin="")
    job_registry.epoch = 1
    await job_registry.write_job(JobRecord(state="waiting", sizes=sizes))
    await job_registry.tick()
    try:
        yield made
    finally:
        await server.close()
        await store.close()


async def join(redis_url: str, job_name: str, role: str, **more: Any) -> JobSession:
    settings = JobSettings(redis=redis_url, job=job_name, secret=SECRET, join_timeout_s=15.0)
    return await JobSession.join(
        settings, role=role, index=0, endpoint="127.0.0.1:7000", admin="", clock=CLOCK, **more
    )


async def stop_while_joining(
    joining: Coroutine[Any, Any, JobSession], coordinator: SlowCoordinator, *, answered: bool
) -> None:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(joining)
        await coordinator.registered.wait()
        task.cancel()
        if answered:
            coordinator.may_answer.set()
        await asyncio.wait([task], timeout=LATE_S)
        assert task.cancelled()


@pytest.mark.parametrize(
    ("coordinator", "role"),
    [(False, "pserver"), (False, "worker"), (True, "pserver")],
    indirect=["coordinator"],
)
async def test_a_job_that_needs_it_learns_at_once_why_it_goes(
    redis_url: str, job_name: str, coordinator: SlowCoordinator, role: str
) -> None:
    joining = join(redis_url, job_name, role)

    await stop_while_joining(joining, coordinator, answered=True)

    snapshot = await coordinator.job_registry.tick()
    assert snapshot.job is not None
    failure = snapshot.job.failure
    assert failure is not None
    assert (failure.role, failure.index) == (role, 0)
    assert failure.reason == "stopped while it joined the job"
    assert snapshot.ends == {(role, 0): "left"}


@pytest.mark.parametrize("coordinator", [True], indirect=True)
async def test_an_elastic_job_goes_on_without_a_worker_that_was_stopped(
    redis_url: str, job_name: str, coordinator: SlowCoordinator
) -> None:
    joining = join(redis_url, job_name, "worker")

    await stop_while_joining(joining, coordinator, answered=True)

    snapshot = await coordinator.job_registry.tick()
    assert snapshot.job is not None
    assert snapshot.job.failure is None
    assert snapshot.ends == {("worker", 0): "left"}


@pytest.mark.parametrize("coordinator", [False], indirect=True)
async def test_a_pserver_with_its_data_on_a_disk_leaves_the_decision_to_the_coordinator(
    redis_url: str, job_name: str, coordinator: SlowCoordinator
) -> None:
    joining = join(redis_url, job_name, "pserver", durable=True, holds_run=1)

    await stop_while_joining(joining, coordinator, answered=True)

    snapshot = await coordinator.job_registry.tick()
    assert snapshot.job is not None
    assert snapshot.job.failure is None
    assert snapshot.ends == {("pserver", 0): "left"}
    assert snapshot.members["pserver", 0].holds_run == 1


@pytest.mark.parametrize("coordinator", [False], indirect=True)
async def test_without_an_answer_it_goes_all_the_same(
    redis_url: str, job_name: str, coordinator: SlowCoordinator
) -> None:
    joining = join(redis_url, job_name, "pserver")

    await stop_while_joining(joining, coordinator, answered=False)
