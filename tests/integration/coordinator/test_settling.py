"""A coordinator that is started again, with a Redis that has an older plan than processes."""

import asyncio
from typing import Any

import pytest

from paramfleet_shared.discovery.plan import Plan
from paramfleet_shared.discovery.records import PROCESS
from paramfleet_shared.discovery.redis.scripts import Keys
from paramfleet_shared.discovery.redis.store import RedisStore
from paramfleet_shared.discovery.session import JobSession
from paramfleet_shared.errors import UnavailableError
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.testing.patience import LATE_S

pytestmark = pytest.mark.slow

CLOCK = SystemClock()


async def plan_of(session: JobSession, *, since: int, knows: Any = None) -> Plan:
    """Return the first plan that is newer than one; say what is known."""
    async with asyncio.timeout(LATE_S):
        while True:
            try:
                found = await session.planning.wait(
                    since=since, park_s=0.5, holds={}, knows=knows or {}
                )
            except UnavailableError:  # the next coordinator isn't there yet
                await asyncio.sleep(0.02)
                continue
            if found is not None:
                return found


async def test_what_processes_have_read_holds_against_an_older_plan(
    stage: Any, redis_url: str, job_name: str
) -> None:
    store = RedisStore(redis_url, clock=CLOCK, timeout_s=2.0)
    key = Keys(job_name).of_decisions(1)
    sizes = {"worker_num": 1, "server_num": 2, "server_processes": 2, "replicas": 1}
    async with stage(redis_url, job_name) as job:
        former = job.coordinator(**sizes)
        first, second = [(await job.join(PROCESS, index)).session for index in (0, 1)]
        names = [each.planning.process.text for each in (first, second)]
        plan = await plan_of(first, since=0)
        while plan.of(1).owner is None or plan.of(1).follower is None:
            plan = await plan_of(first, since=plan.version)
        owner = await JobSession.join(
            job.settings(),
            role="pserver",
            index=1,
            endpoint="127.0.0.1:7001",
            admin="",
            clock=CLOCK,
            process=names[1],
        )
        beating = asyncio.get_running_loop().create_task(owner.run())
        term = owner.member.incarnation
        await second.planning.set_eligible(1, term, [names[0]], number=1)
        older = await store.command("HGET", key, "plan")
        await second.planning.set_eligible(1, term, [], number=2)
        while plan.of(1).number < 2:
            plan = await plan_of(first, since=plan.version)

        former.cancel()
        await asyncio.wait([former])
        await store.command("HSET", key, "plan", older)
        job.coordinator(**sizes)
        knows = dict(enumerate(plan.groups))
        settled = await plan_of(first, since=plan.version, knows=knows)

        assert settled.version > plan.version
        assert (settled.of(1).number, settled.of(1).eligible) == (2, ())
        beating.cancel()
        await asyncio.wait([beating])
        await owner.leave()
    await store.close()
