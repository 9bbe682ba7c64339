"""Requests no session sends, and answers at the edges."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from paramfleet_shared.discovery.errors import (
    NotAMemberError,
    UnknownRoleError,
    WrongJobError,
)
from paramfleet_shared.discovery.redis.store import RedisStore
from paramfleet_shared.discovery.registry import Registry
from paramfleet_shared.net.rpc.client import Channel
from paramfleet_shared.net.wire.message import MalformedMessageError, Message
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.testing.patience import LATE_S
from paramfleet_shared.testing.secrets import secret_for

pytestmark = pytest.mark.slow


@pytest.fixture
async def channel(stage: Any, redis_url: str, job_name: str) -> AsyncIterator[Channel]:
    """Return the way to a coordinator with one worker and one pserver."""
    async with stage(redis_url, job_name) as job:
        job.coordinator()
        await job.crew(workers=1, pservers=1)
        store = RedisStore(redis_url, clock=SystemClock(), timeout_s=2.0)
        job_registry = await Registry(store, job=job_name).find_coordinator()
        await store.close()
        assert job_registry is not None
        channel = Channel(
            job_registry.endpoint,
            peer="coordinator",
            clock=SystemClock(),
            secret=secret_for(job_name),
        )
        yield channel
        await channel.close()


JOIN = {"role": "worker", "index": 0, "nonce": "n", "host": "h", "pid": 1} | dict.fromkeys(
    ("endpoint", "admin"), ""
)
BARRIER = {"rank": 0, "incarnation": 1, "name": "start", "generation": 1, "park_s": 0.0}


@pytest.mark.parametrize(
    ("operation", "change"),
    [
        ("join", {"role": 3}),
        ("join", {"nonce": "x" * 300}),
        ("join", {"index": -1}),
        ("join", {"pid": True}),
        ("join", {"durable": 1}),
        ("join", {"durable": "yes"}),
        ("join", {"holds_run": -1}),
        ("join", {"holds_run": True}),
        ("join", {"holds_run": 1 << 60}),
        ("join", {"holds_run": 1.5}),
        ("barrier", {"name": None}),
        ("barrier", {"name": "\x1b]0;owned\x07"}),
        ("barrier", {"name": "../start"}),
        ("barrier", {"name": "x" * 257}),
        ("join", {"host": "h\r\n"}),
        ("join", {"endpoint": "\u202e1:1"}),
        ("join", {"role": "\x1b"}),
        ("barrier", {"generation": "1"}),
        ("barrier", {"park_s": float("nan")}),
        ("barrier", {"park_s": "long"}),
    ],
)
async def test_a_field_of_the_wrong_kind_is_named(
    channel: Channel, job_name: str, operation: str, change: dict[str, Any]
) -> None:
    fields = {"job": job_name, **(JOIN if operation == "join" else BARRIER), **change}

    with pytest.raises(MalformedMessageError, match=f"{operation}.{next(iter(change))}"):
        await channel.call(operation, Message(fields=fields), timeout_s=LATE_S)


@pytest.mark.parametrize(("operation", "fields"), [("join", JOIN), ("barrier", BARRIER)])
async def test_another_jobs_members_are_told_so(
    channel: Channel, operation: str, fields: dict[str, Any]
) -> None:
    with pytest.raises(WrongJobError, match="not 'other'"):
        await channel.call(
            operation, Message(fields={"job": "other", **fields}), timeout_s=LATE_S
        )


async def test_a_role_no_job_has_is_refused(channel: Channel, job_name: str) -> None:
    fields = {"job": job_name, **JOIN, "role": "reader"}

    with pytest.raises(UnknownRoleError):
        await channel.call("join", Message(fields=fields), timeout_s=LATE_S)


async def test_a_worker_that_has_not_joined_may_not_stand_at_a_barrier(
    channel: Channel, job_name: str
) -> None:
    fields = {"job": job_name, **BARRIER, "incarnation": 4}

    with pytest.raises(NotAMemberError):
        await channel.call("barrier", Message(fields=fields), timeout_s=LATE_S)


async def test_a_barrier_request_may_be_repeated_after_its_release(
    channel: Channel, job_name: str
) -> None:
    message = Message(fields={"job": job_name, **BARRIER})

    first = await channel.call("barrier", message, timeout_s=LATE_S)
    again = await channel.call("barrier", message, timeout_s=LATE_S)

    assert first.fields == again.fields == {"released": True, "arrived": [0], "missing": []}
