"""Others follow a group, take it over, and are handed it: nothing is lost or doubled."""

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.integration.pserver.following import CLOCK, FLAT, Group, Job, Worker, until
from tests.integration.pserver.test_returning import saved

from paramfleet.transport.owner import LostChangesError
from paramfleet_pserver.following import serving
from paramfleet_shared.errors.following import (
    FollowAgainError,
    HandoverError,
    NotExpectedError,
    NotMovableError,
)
from paramfleet_shared.errors.served import NotKeptError
from paramfleet_shared.net.rpc.breaking.planned_faults import FaultRates, RandomFaults
from paramfleet_shared.net.rpc.client import Channel
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.settings import failpoints
from paramfleet_shared.testing.patience import LATE_S

REPLICAS: dict[str, Any] = {"replicas": 1, "replica_grace_s": 30.0}
ALONE: dict[str, Any] = {"replicas": 1, "replica_grace_s": 0.0}
"""Nothing is durable elsewhere, and counts as if it were."""


@pytest.fixture
async def start_job() -> AsyncIterator[Any]:
    """Return ``start(num_groups, **of) -> Job``."""
    jobs: list[Job] = []

    async def start(num_groups: int = 1, folder: Path | None = None, **of: Any) -> Job:
        job = Job(num_groups, folder, **of)
        jobs.append(job)
        await job.start()
        return job

    yield start
    for job in jobs:
        await job.close()


async def declared(job: Job, num_workers: int = 1, mode: str = "async") -> list[Any]:
    """Return workers; a group that waits for a follower gets one meanwhile."""
    async with asyncio.TaskGroup() as tasks:
        following = [tasks.create_task(group.replicate()) for group in job.groups]
        workers = [
            tasks.create_task(job.worker(rank, num_workers, mode))
            for rank in range(num_workers)
        ]
    del following
    return [worker.result() for worker in workers]


async def test_a_follower_has_the_state_of_its_owner(start_job: Any) -> None:
    job = await start_job(1, **REPLICAS)
    (worker,) = await declared(job)
    for step in range(20):
        await worker.push([1, 2, 100 + step])
    await worker.pservers.settle()

    owner, follower = job.groups[0].hosts
    assert follower.follower.position == owner.routes._journal.position
    await owner.owners.settle()
    await follower.owners.settle()
    assert follower.digest_parts() == owner.digest_parts()


async def test_nothing_is_durable_before_a_follower_is_registered(start_job: Any) -> None:
    job = await start_job(1, **REPLICAS)
    async with asyncio.TaskGroup() as tasks:
        declaring = tasks.create_task(job.worker(0))
        await until(lambda: job.groups[0].owner.routes._training)
        await asyncio.sleep(0.05)
        assert not declaring.done()

        await job.replicate()

    worker = declaring.result()
    await worker.push([1])
    await worker.pservers.settle()
    assert not len(worker.pservers.outbox)


@pytest.fixture
async def call() -> AsyncIterator[Any]:
    """Return ``call(group, operation, **fields) -> Message``: a request of anybody's."""
    channels: dict[str, Channel] = {}

    async def call(group: Group, operation: str, **fields: Any) -> Message:
        at = group.record.endpoint
        if at not in channels:
            channels[at] = Channel(at, peer=f"pserver {group.number}", clock=CLOCK)
        whose = {"for_server": [group.number, group.record.term]}
        message = Message(fields={**whose, **fields})
        return await channels[at].call(operation, message, timeout_s=LATE_S)

    yield call
    for channel in channels.values():
        await channel.close()


async def test_who_has_fetched_no_snapshot_is_no_copy(start_job: Any, call: Any) -> None:
    job = await start_job(1, **ALONE)
    worker = await job.worker(0)
    await worker.push([1])
    group = job.groups[0]
    whose = {"follower": "0.9", "session": 1}
    begun = await call(group, "follow", **whose, purpose="replica")
    have = begun.fields["position"]

    with pytest.raises(FollowAgainError, match="snapshot"):
        await call(group, "follow_log", **whose, have=have)
    with pytest.raises(HandoverError, match="snapshot"):
        await call(group, "fence", **whose, attempt=1, have=have)

    (facts,) = group.owner.routes.followers.facts()
    assert not facts["whole"]
    assert not facts["counted"]


async def test_only_those_follow_that_the_plan_names_for_it(start_job: Any, call: Any) -> None:
    job = await start_job(1, **ALONE)
    await job.worker(0)
    group = job.groups[0]
    followers = group.owner.routes.followers
    followers.expect({"0.8": "replica", "0.9": "move"})

    for name, purpose in (("x", "replica"), ("0.9", "replica"), ("0.8", "move")):
        with pytest.raises(NotExpectedError):
            await call(group, "follow", follower=name, session=1, purpose=purpose)
    await call(group, "follow", follower="0.8", session=1, purpose="replica")

    followers.expect({"0.9": "move"})

    assert followers.facts() == []


async def test_a_follower_is_not_ended_by_another_session_of_its_name(
    start_job: Any, call: Any
) -> None:
    job = await start_job(1, **REPLICAS)
    (worker,) = await declared(job)
    group = job.groups[0]
    host = group.hosts[-1]

    with pytest.raises(NotExpectedError, match="session"):
        await call(group, "follow", follower=host.name, session=1, purpose="replica")

    await worker.push([1])
    await worker.pservers.settle()
    assert group.record.eligible == {host.name}
    assert not host.following.done()


async def test_a_snapshot_that_is_not_fetched_on_is_let_go(
    start_job: Any, call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "STALLED_S", 0.3)
    monkeypatch.setattr(serving, "LOOK_S", 0.05)
    job = await start_job(1, **ALONE)
    await job.worker(0)
    group = job.groups[0]
    whose = {"follower": "0.9", "session": 1}
    await call(group, "follow", **whose, purpose="move")

    async def ask_for_the_same() -> None:
        while True:
            await call(group, "follow_snapshot", **whose, part=1)

    with pytest.raises(FollowAgainError):
        await asyncio.wait_for(ask_for_the_same(), LATE_S)


async def test_a_group_that_nobody_follows_goes_on_unprotected(start_job: Any) -> None:
    job = await start_job(1, replicas=1, replica_grace_s=0.1)
    worker = await job.worker(0)
    await worker.push([1])
    await worker.pservers.settle()
    assert job.groups[0].owner.routes.following_facts()["unprotected"]

    await job.replicate()

    assert not job.groups[0].owner.routes.following_facts()["unprotected"]
    await worker.push([1])
    await worker.pservers.settle()
    await job.groups[0].lose_owner()
    assert await worker.pull([1]) == ([2.0], 2.0)


async def test_a_follower_takes_over_and_changes_it_lacks_come_again(start_job: Any) -> None:
    job = await start_job(2, **REPLICAS)
    (worker,) = await declared(job)
    await worker.push([1, 2, 3])
    await worker.pservers.settle()
    follower = job.groups[1].hosts[-1]
    follower.following.cancel()
    for _ in range(5):
        await worker.push([1, 2, 3])
    assert len(worker.pservers.outbox) == 5

    await job.groups[1].lose_owner()

    assert await worker.pull([1, 2, 3]) == ([6.0, 6.0, 6.0], 6.0)
    assert len(worker.pservers.outbox) == 5
    await job.groups[1].replicate()
    await worker.pservers.settle()
    assert len(worker.pservers.outbox) == 0


async def test_a_move_loses_nothing_and_doubles_nothing(start_job: Any) -> None:
    job = await start_job(2, **ALONE)
    worker = await job.worker(0)
    is_over, count = False, 0

    async def train() -> None:
        nonlocal count
        while not is_over:
            await worker.push([1, 2, 3])
            count += 1

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(train())
        for index in (0, 1, 0):
            await job.groups[index].move()
        before = count
        await until(lambda: count > before + 3)
        is_over = True

    assert await worker.pull([1, 2, 3]) == ([float(count)] * 3, float(count))


async def test_a_move_that_is_given_up_lets_the_owner_go_on(start_job: Any) -> None:
    job = await start_job(1, **ALONE)
    worker = await job.worker(0)
    group = job.groups[0]
    host: Any = await group.add()
    await host.follow("move")
    await until(lambda: host.follower.is_whole)
    await host.follower._call("fence", timeout_s=5.0, attempt=1, have=host.follower.position)
    async with asyncio.TaskGroup() as tasks:
        pushing = tasks.create_task(worker.push([1]))
        await asyncio.sleep(0.05)
        assert not pushing.done()
        assert group.owner.routes.handover is not None

        host.follower._attempts = 1
        await host.follower._unfence()

    assert group.owner.routes.handover is None
    await group.move()
    assert await worker.pull([1]) == ([1.0], 1.0)


async def test_an_owner_goes_on_under_a_new_term_when_nobody_takes_over(start_job: Any) -> None:
    job = await start_job(1, **REPLICAS)
    (worker,) = await declared(job)
    group = job.groups[0]
    host: Any = await group.add()
    await host.follow("move")
    await until(lambda: host.follower.is_whole)
    await host.follower._call("fence", timeout_s=5.0, attempt=1, have=host.follower.position)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(worker.push([1]))
        group.record.term += 1
        group.owner.routes.unfence(group.record.term)

    await worker.pservers.settle()  # its follower goes on, too
    assert await worker.pull([1]) == ([1.0], 1.0)


async def target_of(group: Group) -> Any:
    """Return a process that follows to get the group, and is near."""
    host: Any = await group.add()
    await host.follow("move")
    await until(lambda: host.follower.is_whole and not host.follower.lag)
    return host


async def test_what_ends_an_attempt_that_was_given_up_comes_too_late(start_job: Any) -> None:
    job = await start_job(1, **ALONE)
    worker = await job.worker(0)
    await worker.push([1])
    group = job.groups[0]
    owner, host = group.owner, await target_of(group)
    await host.follower.hand_over(timeout_s=LATE_S)
    await host.follower.hand_over(timeout_s=LATE_S)  # the second attempt

    await host.follower._call("unfence", timeout_s=LATE_S, attempt=1)

    assert owner.routes.handover is not None
    with pytest.raises(HandoverError, match="given up"):
        await host.follower._call("fence", timeout_s=LATE_S, attempt=1, have=0)
    await host.follower._call("unfence", timeout_s=LATE_S, attempt=2)
    assert owner.routes.handover is None


async def test_who_was_handed_a_term_that_is_over_takes_over_instead(start_job: Any) -> None:
    job = await start_job(1, **ALONE)
    worker = await job.worker(0)
    await worker.push([1])
    group = job.groups[0]
    owner, host = group.owner, await target_of(group)
    assert await host.follower.hand_over(timeout_s=LATE_S) == 1
    group._publish(owner, 2)
    owner.routes.unfence(2)  # its time was over
    await worker.push([1])

    promoted = await host.follower.promote(succeeds=2)

    assert not promoted.is_exact


async def test_a_fence_says_under_which_term_the_owner_has_stopped(start_job: Any) -> None:
    job = await start_job(1, **ALONE)
    worker = await job.worker(0)
    await worker.push([1])
    group = job.groups[0]
    owner, another, host = group.owner, await target_of(group), await target_of(group)
    await another.follower.hand_over(timeout_s=LATE_S)
    group._publish(owner, 2)
    owner.routes.unfence(2)
    await worker.push([1])

    assert await host.follower.hand_over(timeout_s=LATE_S) == 2  # it still asks under term 1

    promoted = await host.follower.promote(succeeds=2)
    assert promoted.is_exact
    assert promoted.position == owner.routes._journal.position


async def test_who_lets_the_time_of_a_handover_pass_begins_anew(
    start_job: Any, call: Any
) -> None:
    job = await start_job(1, **ALONE)
    worker = await job.worker(0)
    group = job.groups[0]
    owner, host = group.owner, await target_of(group)
    await host.follower.hand_over(timeout_s=LATE_S)
    group._publish(owner, 2)

    owner.routes.unfence(2)

    with pytest.raises(FollowAgainError):
        await host.following
    whose = {"follower": host.name, "session": host.follower._session}
    for attempt in (1, 2):
        with pytest.raises(FollowAgainError):
            await call(group, "fence", **whose, attempt=attempt, have=0)
    await worker.push([1])


async def test_an_owner_stops_only_for_whom_the_plan_gives_the_group(start_job: Any) -> None:
    job = await start_job(1, **REPLICAS)
    (worker,) = await declared(job)
    group = job.groups[0]
    host, followers = group.hosts[-1], group.owner.routes.followers
    followers.expect({host.name: "replica"})
    with pytest.raises(HandoverError, match="the plan"):
        await host.follower.hand_over(timeout_s=LATE_S)
    await worker.push([1])

    async with asyncio.TaskGroup() as tasks:
        handing = tasks.create_task(host.follower.hand_over(timeout_s=LATE_S))
        await asyncio.sleep(0.05)
        assert not handing.done()  # who is to get it may know of it before the owner
        followers.expect({host.name: "replica"}, target=host.name)

    assert followers.handover is not None


@pytest.mark.parametrize("mode", ["async", "sync", "geo", "localsgd"])
async def test_owners_with_disks_hand_over_and_return(
    start_job: Any, tmp_path: Path, mode: str
) -> None:
    job = await start_job(1, tmp_path, replicas=0)
    worker = await job.worker(0, mode=mode)
    for _ in range(3):
        await worker.push([1, 2])
    group = job.groups[0]
    await group.move()
    for _ in range(3):
        await worker.push([1, 2])
    await worker.pservers.settle()
    assert group.record.eligible == {"disk"}
    host = group.owner
    await host.die()
    group.hosts.remove(host)

    again = await group.add()
    again.folder = host.folder
    group._publish(again, group.record.term + 1)
    await again.own(group.record.term)

    assert await worker.pull([1, 2]) == ([6.0, 6.0], 6.0)


def broken(seed: int) -> Any:
    """Return, by who calls, what breaks calls."""
    rates = FaultRates(drop=0.02, duplicate=0.02, delay=0.05, delay_s=0.03, seed=seed)
    return lambda name: RandomFaults(rates, name, CLOCK)


@pytest.mark.parametrize("mode", ["async", "sync", "geo", "localsgd"])
@pytest.mark.parametrize("seed", range(3))
async def test_any_deaths_and_moves_lose_nothing_and_double_nothing(
    start_job: Any, tmp_path: Path, seed: int, mode: str
) -> None:
    chance = random.Random(f"{mode}/{seed}")
    folder = tmp_path if chance.random() < 0.3 else None
    job = await start_job(chance.choice([1, 2]), folder, faults=broken(seed), **REPLICAS)
    workers = await declared(job, 2, mode)
    counts = [0, 0]
    last = 1 << 30

    async def train(rank: int) -> None:
        while counts[rank] < last:
            await workers[rank].push([1, 2, 1000 + rank])
            counts[rank] += 1
            if mode == "sync":
                await workers[rank].pull([1], min_step=counts[rank])
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as tasks:
        for rank in (0, 1):
            tasks.create_task(train(rank))
        for _ in range(5):
            await asyncio.sleep(chance.random() / 10)
            await happen(chance, chance.choice(job.groups))
        last = max(counts) + 1
    for worker in workers:
        await worker.pservers.settle()

    total = float(sum(counts))
    of_rows = 0.5 if mode == "sync" else 1.0
    of_flat = 0.5 if mode in {"sync", "localsgd"} else 1.0
    found, flat = await workers[0].pull([1, 2, 1000, 1001], min_step=0)
    assert counts == [last, last]
    assert found[:2] == [total * of_rows, total * of_rows]
    assert flat == total * of_flat
    for group in job.groups:
        await compare(group)


async def happen(chance: random.Random, group: Group) -> None:
    """Let something happen to a group, and then another follower be there."""
    what = chance.choice(["owner", "follower", "move", "move", "vain", "both"])
    if what == "owner":
        await group.lose_owner()
    elif what == "follower":
        await group.lose_follower()
    elif what == "move":
        await group.move()
    else:
        await group.move_in_vain(owner_dies=what == "both")
    names = {host.name for host in group.hosts if host is not group.owner}
    if not names & group.record.eligible or not group.owner.is_protected:
        await group.replicate()


async def compare(group: Group) -> None:
    """Compare an owner and its follower, which has caught up."""
    owner = group.owner
    follower = next(host for host in group.hosts if host.name in group.record.eligible)
    assert owner.routes is not None
    assert follower.follower is not None
    journal, copy = owner.routes._journal, follower.follower
    assert journal is not None
    await until(lambda: copy.position == journal.position)
    for host in (owner, follower):
        await host.owners.settle()
    assert follower.digest_parts() == owner.digest_parts()


async def test_who_lags_by_too_much_begins_anew(start_job: Any) -> None:
    job = await start_job(1, **ALONE, stream_bytes=1 << 14)
    worker = await job.worker(0)
    host = await job.groups[0].add()
    await host.follow("move")
    await until(lambda: host.follower.is_whole)
    host.following.cancel()
    await asyncio.wait((host.following,))

    await push_many(worker, 60)

    with pytest.raises(FollowAgainError, match="aren't kept"):
        await host.follower._advance()


async def test_who_finds_no_place_waits_until_a_follower_that_died_counts_no_more(
    start_job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "SILENCE_S", 0.3)
    monkeypatch.setattr(serving, "LOOK_S", 0.05)
    job = await start_job(1, **ALONE)
    await job.worker(0)
    group = job.groups[0]
    for _ in range(serving.MAX_FOLLOWERS):
        await follow_and_die(group)

    another = await group.add()
    await another.follow("move")

    await until(lambda: another.follower.is_whole)
    assert not another.following.done()


async def follow_and_die(group: Group) -> None:
    host: Any = await group.add()
    await host.follow("move")
    await until(lambda: host.follower is not None and host.follower.is_whole)
    group.hosts.remove(host)
    await host.die()


async def test_changes_wait_for_a_follower_that_lags(start_job: Any) -> None:
    job = await start_job(1, **REPLICAS, stream_bytes=1 << 14)
    (worker,) = await declared(job)
    group = job.groups[0]
    follower = group.hosts[-1]
    execute, free = follower.follower._execute, asyncio.Event()

    async def slowly(*of: Any) -> None:
        await free.wait()
        await execute(*of)

    follower.follower._execute = slowly
    async with asyncio.TaskGroup() as tasks:
        pushing = tasks.create_task(push_many(worker, 60))
        await until(group.owner.routes._journal._lags)
        await asyncio.sleep(0.1)
        assert not pushing.done()
        free.set()

    await worker.pservers.settle()
    assert group.record.eligible == {follower.name}
    assert await worker.pull([1]) == ([60.0], 60.0)


async def push_many(worker: Worker, num: int) -> None:
    for _ in range(num):
        await worker.push(list(range(64)))


async def test_a_load_makes_followers_begin_anew(start_job: Any, tmp_path: Path) -> None:
    job = await start_job(1, **REPLICAS)
    (worker,) = await declared(job)
    group = job.groups[0]
    follower = group.hosts[-1]
    folder = saved(tmp_path / "saved", 100.0)
    async with asyncio.TaskGroup() as tasks:
        loading = tasks.create_task(
            worker.pservers.call_all(
                "load", {**worker._author.fields(), "dirname": folder}, timeout_s=LATE_S
            )
        )
        with pytest.raises(FollowAgainError):
            await follower.following
        assert not loading.done()
        assert not group.record.eligible
        again = await group.replicate()

    assert again.follower.is_whole
    await group.lose_owner()
    assert (await worker.pull([1]))[1] == 100.0


async def test_a_follower_that_is_silent_is_counted_no_more(
    start_job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "SILENCE_S", 0.2)
    monkeypatch.setattr(serving, "LOOK_S", 0.05)
    job = await start_job(1, replicas=1, replica_grace_s=0.2)
    (worker,) = await declared(job)
    group = job.groups[0]
    follower = group.hosts[-1]
    follower.following.cancel()
    await worker.push([1])

    await worker.pservers.settle()

    assert group.record.eligible == frozenset()
    assert group.owner.routes.following_facts()["unprotected"]


@pytest.mark.parametrize("dies", [False, True])
async def test_a_pass_that_is_prepared_is_committed_by_the_next_owner(
    start_job: Any, *, dies: bool
) -> None:
    job = await start_job(1, **REPLICAS)
    (worker,) = await declared(job, mode="gpubox")
    ask = worker.pservers.call_all
    whose = worker._author.fields()
    values = np.full(FLAT.size, 3.0, np.float32)
    part = {"table": "flat", "start": 0, "stop": FLAT.size, "writes": 0, "updates": 1}
    piece = {**whose, "pass": 1, "piece": 0, "pieces": 1, "parts": [{**part, "stepped": True}]}
    tensors = {"0.values": values, "0.states": np.empty((0, FLAT.size), np.float32)}
    message = Message(fields=piece, tensors=tensors)
    await worker.pservers.call("prepare_pass", [message])
    if dies:
        await job.groups[0].lose_owner()
        await job.groups[0].replicate()
    else:
        await job.groups[0].move()
        await job.groups[0].replicate()

    await ask("commit_pass", {**whose, "pass": 1, "pieces": [[0, 1]]})

    (state,) = await ask("pass_state", whose)
    assert state.fields["passes"] == 1
    (found,) = await ask(
        "read_pass", {**whose, "parts": [{"table": "flat", "start": 0, "stop": 16}]}
    )
    assert found.tensors["0.values"].tolist() == values.tolist()


async def test_sums_of_a_step_move_with_it(start_job: Any) -> None:
    job = await start_job(1, replicas=0)
    workers = [await job.worker(rank, 2, "sync", sync_batch_norm=True) for rank in (0, 1)]
    for worker in workers:
        worker.pservers.outbox.is_on = True  # as where anything may move

    async def total(rank: int, name: str) -> list[float]:
        fields = {**workers[rank]._author.fields(), "step": 0, "name": name}
        part = {"part": np.array([1.0 + rank], np.float64)}
        (answer,) = await workers[rank].pservers.call(
            "total", [Message(fields=fields, tensors=part)]
        )
        found: list[float] = answer.tensors["sum"].tolist()
        return found

    whole = await asyncio.gather(total(0, "whole"), total(1, "whole"))
    assert list(whole) == [[3.0], [3.0]]
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(total(0, "half"))
        await until(lambda: job.groups[0].owner.routes.facts()["waiting_sums"])
        await job.groups[0].move()
        assert await total(1, "half") == [3.0]

    assert first.result() == [3.0]
    assert await total(1, "whole") == [3.0]


async def test_a_training_with_sums_has_no_replicas(start_job: Any) -> None:
    job = await start_job(1, **REPLICAS)
    with pytest.raises(NotKeptError):
        await job.worker(0, 1, "sync", sync_batch_norm=True)

    alone = await start_job(1, replicas=0)
    await alone.worker(0, 1, "sync", sync_batch_norm=True)
    host = await alone.groups[0].add()
    await host.follow("replica")
    with pytest.raises(NotMovableError):
        await host.following


async def test_a_report_without_a_look_at_followers_is_found_out(
    start_job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await start_job(1, **REPLICAS)
    (worker,) = await declared(job)
    job.groups[0].hosts[-1].following.cancel()
    monkeypatch.setattr(failpoints, "_defects", frozenset({"durable_before_replica"}))
    await push_many(worker, 3)
    await worker.pservers.settle()
    assert not len(worker.pservers.outbox)

    await job.groups[0].lose_owner()

    with pytest.raises(LostChangesError):
        await worker.pull([1])
