"""A job from the first member to the last word, with real parts."""

import asyncio
from typing import Any

import pytest

pytestmark = pytest.mark.slow


async def test_a_job_starts_trains_and_finishes(
    stage: Any, redis_url: str, job_name: str
) -> None:
    async with stage(redis_url, job_name) as job:
        coordinator = job.coordinator(worker_num=2, server_num=2, num_shards=4)
        workers, pservers = await job.crew(workers=2, pservers=2)
        placement = await workers[0].session.wait_placement()

        await asyncio.gather(*(w.session.barrier("start") for w in workers))
        payloads = await asyncio.gather(
            *(w.session.gather("ranks", bytes([w.session.member.index])) for w in workers)
        )
        await asyncio.gather(*(w.session.mark_done() for w in workers))
        ends = [await part.ends_with() for part in workers + pservers]
        for part in workers + pservers:
            await part.session.leave()

        assert placement.endpoints == ("127.0.0.1:7000", "127.0.0.1:7001")
        assert placement.num_shards == 4
        assert payloads == [[b"\0", b"\1"]] * 2
        assert ends == [None] * 4
        assert workers[0].session.finished
        assert await coordinator == 0
