"""What the registry accepts, from whom, and for how long, on a real Redis."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import pytest

from paramfleet_shared.discovery.errors import (
    EpochEndedError,
    FencedError,
    NoRedisError,
    OtherLaunchError,
    UnissuedIncarnationError,
)
from paramfleet_shared.discovery.job_registry import JobRegistry
from paramfleet_shared.discovery.records import Failure, JobRecord, JobSizes, Member, Release
from paramfleet_shared.discovery.redis.embedded import EmbeddedRedis
from paramfleet_shared.discovery.redis.scripts import KNOWN, Keys
from paramfleet_shared.discovery.redis.store import RedisStore, outlast
from paramfleet_shared.discovery.registry import CoordinatorRecord, Registry
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.testing.clock import FakeClock

SIZES = JobSizes(worker_num=2, server_num=1, num_shards=4)
ADA = Member(
    role="worker", index=0, incarnation=0, endpoint="", admin="", host="h", pid=1, nonce="ada"
)
BOB = replace(ADA, nonce="bob", pid=2)
WHERE = CoordinatorRecord(endpoint="h:1", admin="h:2", host="h", pid=9)


Dump = Callable[[], Awaitable[dict[bytes, bytes]]]


@pytest.fixture
async def store(redis_url: str) -> AsyncIterator[RedisStore]:
    store = RedisStore(redis_url, clock=SystemClock(), timeout_s=2.0)
    yield store
    await store.close()


@pytest.fixture
def registry(store: RedisStore, job_name: str) -> Registry:
    return Registry(store, job=job_name)


@pytest.fixture
async def job_registry(store: RedisStore, job_name: str) -> JobRegistry:
    job_registry = JobRegistry(store, job=job_name, record=WHERE, lease_ttl_s=60.0)
    assert await job_registry.try_claim() is None
    job_registry.epoch = 1
    await job_registry.write_job(JobRecord(state="waiting", sizes=SIZES))
    return job_registry


async def admit(job_registry: JobRegistry, member: Member) -> Member:
    return replace(member, incarnation=await job_registry.register(member))


async def beat(registry: Registry, member: Member, *, epoch: int = 1) -> object:
    return await registry.beat(member, epoch=epoch)


async def test_a_heartbeat_brings_the_state_of_the_job(
    registry: Registry, job_registry: JobRegistry
) -> None:
    ada = await admit(job_registry, ADA)

    view = await registry.beat(ada, epoch=1, end="done", facts='{"step": 3}')
    snapshot = await job_registry.tick()

    assert view.job == JobRecord(state="waiting", sizes=SIZES)
    assert view.has_coordinator
    assert snapshot.members == {("worker", 0): ada}
    assert snapshot.beats == {("worker", 0): 1}
    assert snapshot.ends == {("worker", 0): "done"}
    assert snapshot.facts == {("worker", 0): {"step": 3}}


@pytest.mark.parametrize(
    "entry",
    [
        ("members", "nobody:9", "x"),
        ("members", "worker:1", "[1]"),
        ("members", "worker:1", '{"role": "worker"}'),
        ("members", "worker:1", replace(ADA, index=7).to_json()),
        ("members", "nobody:0", replace(ADA, role="nobody").to_json()),
        ("members", "worker:1", replace(ADA, index="1").to_json()),  # type: ignore[arg-type]
        ("members", "worker:1", "[" * 5000),
        ("beats", "worker:x", "1"),
        ("beats", "worker:0", "9" * 5000),
        ("ends", "worker:0", "mad"),
        ("ends", "worker:0", b"\xff"),
        ("facts", "worker:0", "[]"),
        ("facts", "worker", "{}"),
        ("facts", f"{KNOWN}worker:0", "{}"),
        ("facts", f"{KNOWN}worker:0", '{"record": {"state": "mad"}, "passed": {}}'),
        ("released", "b", "{}"),
        ("launchers", "h", "x"),
    ],
)
async def test_what_can_not_be_read_is_left_out_and_logged_once(
    store: RedisStore,
    job_registry: JobRegistry,
    job_name: str,
    caplog: pytest.LogCaptureFixture,
    entry: tuple[str, str, str | bytes],
) -> None:
    place, field, text = entry
    ada = await admit(job_registry, ADA)
    (key,) = [each for each in Keys(job_name).of_run(1) if each.endswith(f":{place}")]
    await store.command("HSET", key, field, text)

    await job_registry.tick()
    snapshot = await job_registry.tick()

    assert snapshot.job is not None
    assert snapshot.members == {("worker", 0): ada}
    assert not any(snapshot.ends)
    said = [each for each in caplog.records if each.getMessage() == "registry.unreadable"]
    assert [each.__dict__["field"] for each in said] == [field]


async def test_a_former_life_may_write_nothing(
    registry: Registry, job_registry: JobRegistry
) -> None:
    ada = await admit(job_registry, ADA)
    bob = await admit(job_registry, BOB)
    await beat(registry, bob)

    with pytest.raises(FencedError, match="incarnation 1 was replaced by incarnation 2"):
        await beat(registry, ada)
    with pytest.raises(FencedError):
        await registry.fail(ada, epoch=1, reason="late")
    with pytest.raises(FencedError):
        await registry.put(ada, epoch=1, use="1:x", payload=b"late")

    assert (await job_registry.tick()).members == {("worker", 0): bob}
    assert await registry.read_payloads(epoch=1, use="1:x") == {}


async def test_a_member_of_a_former_run_may_write_nothing(
    registry: Registry, job_registry: JobRegistry
) -> None:
    ada = await admit(job_registry, ADA)
    job_registry.epoch = 2
    await job_registry.write_job(JobRecord(state="waiting", sizes=SIZES))

    with pytest.raises(EpochEndedError, match="in run 2 now"):
        await beat(registry, ada)
    job_registry.epoch = 1
    with pytest.raises(EpochEndedError):
        await job_registry.tick()


async def test_the_same_life_is_counted_once(job_registry: JobRegistry) -> None:
    first, again, other = [await job_registry.register(m) for m in (ADA, ADA, BOB)]

    assert (first, again, other) == (1, 1, 2)


async def test_a_new_life_starts_without_the_old_ones_end(
    registry: Registry, job_registry: JobRegistry
) -> None:
    ada = await admit(job_registry, ADA)
    await registry.beat(ada, epoch=1, end="done", facts='{"step": 1}')

    await admit(job_registry, BOB)

    snapshot = await job_registry.tick()
    assert (snapshot.ends, snapshot.facts, snapshot.beats) == ({}, {}, {})


async def test_a_registry_that_came_back_empty_is_filled_by_its_members(
    registry: Registry, job_registry: JobRegistry
) -> None:
    survivor = replace(ADA, incarnation=3)

    await registry.beat(survivor, epoch=5, end="done")

    job_registry.epoch = 5
    assert (await job_registry.tick()).members == {("worker", 0): survivor}
    assert await job_registry.read_epoch() == 5
    with pytest.raises(FencedError):
        await beat(registry, replace(ADA, incarnation=2), epoch=5)


async def test_a_restored_incarnation_is_one_that_old_data_may_lack(
    registry: Registry,
    job_registry: JobRegistry,
    store: RedisStore,
    job_name: str,
    dump: Dump,
) -> None:
    ada = await admit(job_registry, ADA)
    before = await dump()

    for far in (ada.incarnation + 1001, 1 << 62):
        with pytest.raises(UnissuedIncarnationError, match=f"{far} isn't one .* newest is 1"):
            await beat(registry, replace(ada, incarnation=far))
    with pytest.raises(UnissuedIncarnationError, match="it gave out none"):
        await beat(registry, replace(BOB, index=7, incarnation=1 << 62))

    assert await dump() == before
    await beat(registry, replace(ada, incarnation=3))
    assert await registry.read_incarnation("worker", 0) == 3


@pytest.fixture
async def dump(redis_server: EmbeddedRedis, job_name: str) -> AsyncIterator[Dump]:
    """Return a function that returns all that the registry holds of the job."""
    store = RedisStore(redis_server.admin_url, clock=SystemClock(), timeout_s=2.0)

    async def dump() -> dict[bytes, bytes]:
        keys = await store.command("KEYS", f"paramfleet:{job_name}:*")
        return {key: await store.command("DUMP", key) for key in keys}

    yield dump
    await store.close()


async def test_a_coordinator_of_another_launch_is_refused_at_once_and_changes_nothing(
    store: RedisStore, job_name: str, dump: Dump
) -> None:
    first = JobRegistry(
        store, job=job_name, record=replace(WHERE, launch="aa"), lease_ttl_s=60.0
    )
    second = JobRegistry(
        store, job=job_name, record=replace(WHERE, launch="bb"), lease_ttl_s=60.0
    )
    by_hand = JobRegistry(store, job=job_name, record=WHERE, lease_ttl_s=60.0)
    assert await first.try_claim() is None
    before = await dump()

    with pytest.raises(OtherLaunchError) as refused:
        await second.try_claim()

    for word in (repr(job_name), "launch aa", "process 9 on h", "h:1", "--job"):
        assert word in str(refused.value)
    assert await by_hand.try_claim() == replace(WHERE, launch="aa")
    assert await dump() == before


async def test_a_member_that_left_does_not_come_back_by_a_late_heartbeat(
    registry: Registry, job_registry: JobRegistry
) -> None:
    ada = await admit(job_registry, ADA)
    await registry.beat(ada, epoch=1, end="left")

    await registry.beat(ada, epoch=1, end="done")

    assert (await job_registry.tick()).ends == {("worker", 0): "left"}


async def test_the_first_failure_stays(registry: Registry, job_registry: JobRegistry) -> None:
    ada = await admit(job_registry, ADA)
    await registry.fail(ada, epoch=1, reason="first")

    await registry.fail(ada, epoch=1, reason="second")
    theirs = Failure(role="pserver", index=0, reason="third")
    written = await job_registry.write_job(
        JobRecord(state="failed", sizes=SIZES, failure=theirs)
    )

    assert written.failure == Failure(role="worker", index=0, reason="first")
    assert await registry.read_job(1) == written


async def test_how_a_run_ended_never_changes(
    registry: Registry, job_registry: JobRegistry
) -> None:
    ada = await admit(job_registry, ADA)
    await job_registry.write_job(JobRecord(state="finished", sizes=SIZES))

    await registry.fail(ada, epoch=1, reason="late")
    written = await job_registry.write_job(JobRecord(state="training", sizes=SIZES))

    assert written == JobRecord(state="finished", sizes=SIZES)


async def test_there_is_one_coordinator(
    store: RedisStore, job_name: str, job_registry: JobRegistry
) -> None:
    second = JobRegistry(store, job=job_name, record=replace(WHERE, pid=10), lease_ttl_s=60.0)

    assert await second.try_claim() == WHERE
    await job_registry.resign()
    assert await second.try_claim() is None
    second.epoch = 1
    with pytest.raises(FencedError, match="coordinator 0 incarnation 1"):
        await job_registry.tick()
    with pytest.raises(FencedError):
        await job_registry.write_job(JobRecord(state="failed", sizes=SIZES))


async def test_another_coordinator_starts_when_the_lease_is_over(
    store: RedisStore, job_name: str
) -> None:
    first = JobRegistry(store, job=job_name, record=WHERE, lease_ttl_s=0.02)
    second = JobRegistry(store, job=job_name, record=WHERE, lease_ttl_s=60.0)
    assert await first.try_claim() is None

    await asyncio.sleep(0.03)

    assert await second.try_claim() is None


async def test_a_coordinator_is_found_once_it_is_announced(
    registry: Registry, store: RedisStore, job_name: str
) -> None:
    starting = replace(WHERE, endpoint="", admin="")
    job_registry = JobRegistry(store, job=job_name, record=starting, lease_ttl_s=60.0)
    nobody = await registry.find_coordinator()
    await job_registry.try_claim()
    not_yet = await registry.find_coordinator()

    job_registry.announce(endpoint="h:1", admin="h:2")
    await job_registry.tick()

    assert (nobody, not_yet) == (None, None)
    assert await registry.find_coordinator() == WHERE


async def test_arrivals_and_releases_outlive_the_coordinator(job_registry: JobRegistry) -> None:
    for rank in (0, 1, 1):
        await job_registry.arrive("a:b", 2, rank)
    await job_registry.arrive("other", 1, 0)
    standing = await job_registry.read_arrivals()

    release = Release(name="a:b", generation=2, ranks=(0, 1))
    await job_registry.release(release)

    assert standing == {("a:b", 2): {0, 1}, ("other", 1): {0}}
    assert await job_registry.read_arrivals() == {("other", 1): {0}}
    assert (await job_registry.tick()).released == {"a:b": release}


async def test_payloads_are_kept_by_rank(registry: Registry, job_registry: JobRegistry) -> None:
    ada = await admit(job_registry, ADA)
    bob = await admit(job_registry, replace(BOB, index=1))

    await registry.put(bob, epoch=1, use="1:auc", payload=b"\x00\xff")
    await registry.put(ada, epoch=1, use="1:auc", payload=b"")

    assert await registry.read_payloads(epoch=1, use="1:auc") == {0: b"", 1: b"\x00\xff"}
    assert await registry.read_payloads(epoch=1, use="2:auc") == {}


async def test_no_key_of_a_job_stays_for_ever(
    registry: Registry, job_registry: JobRegistry, redis_server: EmbeddedRedis, job_name: str
) -> None:
    store = RedisStore(redis_server.admin_url, clock=SystemClock(), timeout_s=2.0)
    ada = await admit(job_registry, ADA)
    await registry.beat(ada, epoch=1, end="done", facts='{"step": 1}')
    await registry.put(ada, epoch=1, use="1:x", payload=b"x")
    await job_registry.arrive("start", 1, 0)
    await job_registry.arrive("next", 1, 0)
    await job_registry.release(Release(name="start", generation=1, ranks=(0,)))
    await job_registry.tick()

    keys = await store.command("KEYS", f"paramfleet:{job_name}:*")
    lives = {key.decode(): await store.command("PTTL", key) for key in keys}
    await store.close()

    assert len(lives) == 12
    assert all(left_ms > 0 for left_ms in lives.values()), lives


async def test_a_call_that_finds_no_redis_waits_and_tries_again_until_its_patience_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = FakeClock()
    tried_at: list[float] = []

    async def call() -> None:
        tried_at.append(clock.monotonic())
        raise NoRedisError(url="redis://a", waited_s=0.0, reason="refused", remedy="start it")

    async with asyncio.TaskGroup() as group:

        async def outcome() -> str:
            with pytest.raises(NoRedisError) as caught:
                await outlast(call, clock=clock, patience_s=1.0)
            return str(caught.value)

        waiting = group.create_task(outcome())
        await clock.advance(60.0)

    assert 10 <= len(tried_at) <= 12
    assert "no answer from Redis at redis://a after 1." in waiting.result()
    assert "waiting up to" not in caplog.text


async def test_who_joins_says_once_that_it_waits_for_redis(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = FakeClock()
    began = clock.monotonic()
    said_at: list[float] = []

    async def call() -> None:
        if caplog.messages and not said_at:
            said_at.append(clock.monotonic() - began)
        raise NoRedisError(url="redis://a", waited_s=0.0, reason="refused", remedy="start it")

    async with asyncio.TaskGroup() as group:

        async def ended() -> None:
            with pytest.raises(NoRedisError):
                await outlast(call, clock=clock, patience_s=120.0, tells=True)

        group.create_task(ended())
        await clock.advance(130.0)

    assert caplog.messages == ["waiting up to 120 s for the registry (Redis) at redis://a"]
    assert 3.0 <= said_at[0] <= 3.5
