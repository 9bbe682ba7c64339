"""One run of a job, over all its states and inputs."""

from collections.abc import Callable
from typing import Any

import pytest

from paramfleet_coordinator.core.job import Job, JobRules
from paramfleet_shared.discovery.errors import IndexTakenError
from paramfleet_shared.discovery.records import (
    End,
    Failure,
    JobRecord,
    JobSizes,
    Member,
    Snapshot,
    State,
)
from paramfleet_shared.errors import JobFailedError

TTL_S, TICK_S = 4.0, 0.25
SIZES = JobSizes(worker_num=2, server_num=2, num_shards=8)
CREW = [("pserver", 0), ("pserver", 1), ("worker", 0), ("worker", 1)]


def member(role: str, index: int, incarnation: int = 1) -> Member:
    return Member(
        role=role,
        index=index,
        incarnation=incarnation,
        endpoint=f"{role}-{index}:1",
        admin="",
        host="ada",
        pid=10 + index,
        nonce=f"{role}{index}",
    )


class World:
    """A job, what the registry holds, and the time."""

    def __init__(self, *, start_timeout_s: float = 0.0) -> None:
        rules = JobRules(lease_ttl_s=TTL_S, lease_renew_s=0.5, start_timeout_s=start_timeout_s)
        self.job = Job(SIZES, rules=rules)
        self.now = 50.0
        self.members: dict[tuple[str, int], Member] = {}
        self.ends: dict[tuple[str, int], End] = {}
        self.beat = 0
        self.recorded: JobRecord | None = None
        self.events: list[str] = []

    def look(self, *, dead: tuple[tuple[str, int], ...] = ()) -> None:
        self.beat += 1
        snapshot = Snapshot(
            job=self.recorded,
            members=dict(self.members),
            beats={key: 0 if key in dead else self.beat for key in self.members},
            ends=dict(self.ends),
        )
        self.events += [d.event for d in self.job.observe(snapshot, now=self.now)]
        self.recorded = self.job.record

    def run(self, seconds: float, *, dead: tuple[tuple[str, int], ...] = ()) -> None:
        for _ in range(round(seconds / TICK_S)):
            self.now += TICK_S
            self.look(dead=dead)

    def enter(self, *keys: tuple[str, int]) -> None:
        self.members.update({key: member(*key) for key in keys})
        self.look()


def waiting() -> World:
    world = World()
    world.enter(("pserver", 0), ("worker", 0))
    return world


def placed() -> World:
    world = World()
    world.enter(("pserver", 0), ("pserver", 1), ("worker", 0))
    return world


def training() -> World:
    world = World()
    world.enter(*CREW)
    return world


def finished() -> World:
    world = training()
    world.ends = {("worker", 0): "done", ("worker", 1): "done"}
    world.look()
    return world


def failed() -> World:
    world = training()
    world.run(TTL_S + 1, dead=(("worker", 1),))
    return world


def everybody_joins(world: World) -> None:
    world.enter(*CREW)


def worker_dies(world: World) -> None:
    world.run(TTL_S + 1, dead=(("worker", 0),))


def pserver_dies(world: World) -> None:
    world.run(TTL_S + 1, dead=(("pserver", 0),))


def pserver_leaves(world: World) -> None:
    world.ends["pserver", 0] = "left"
    world.look()


def worker_gives_up(world: World) -> None:
    failure = Failure(role="worker", index=0, reason="out of memory")
    world.recorded = JobRecord(state="failed", sizes=SIZES, failure=failure)
    world.look()


def all_workers_end(world: World) -> None:
    world.enter(("worker", 0), ("worker", 1))
    world.ends |= {("worker", 0): "done", ("worker", 1): "left"}
    world.look()


def one_worker_ends(world: World) -> None:
    world.ends["worker", 0] = "done"
    world.look()


def redis_comes_back_empty(world: World) -> None:
    world.members, world.ends, world.recorded = {}, {}, None
    world.run(TTL_S - 1)


def nothing(world: World) -> None:
    world.run(60.0)


INPUTS: dict[Callable[[World], None], tuple[State, State, State]] = {
    # from:                 waiting     placed      training
    everybody_joins: ("training", "training", "training"),
    worker_dies: ("failed", "failed", "failed"),
    pserver_dies: ("failed", "failed", "failed"),
    pserver_leaves: ("failed", "failed", "failed"),
    worker_gives_up: ("failed", "failed", "failed"),
    all_workers_end: ("waiting", "finished", "finished"),  # its pservers would come in vain
    one_worker_ends: ("waiting", "waiting", "training"),
    redis_comes_back_empty: ("waiting", "waiting", "training"),
    nothing: ("waiting", "waiting", "training"),
}


@pytest.mark.parametrize("happens", INPUTS)
@pytest.mark.parametrize("state", [waiting, placed, training])
def test_each_state_answers_each_input(
    state: Callable[[], World], happens: Callable[[World], None]
) -> None:
    world = state()

    happens(world)

    assert world.job.state == INPUTS[happens][[waiting, placed, training].index(state)]
    assert (world.job.failure is not None) == (world.job.state == "failed")


@pytest.mark.parametrize("happens", INPUTS)
@pytest.mark.parametrize("state", [finished, failed])
def test_an_end_is_final(state: Callable[[], World], happens: Callable[[World], None]) -> None:
    world = state()
    ended, failure = world.job.state, world.job.failure

    happens(world)

    assert (world.job.state, world.job.failure) == (ended, failure)


def test_a_job_tells_its_way_once() -> None:
    assert finished().events == ["job.placed", "job.training", "job.finished"]


def test_the_placement_is_published_when_the_pservers_are_complete() -> None:
    before, after = waiting().job.placement, placed().job.placement

    assert before is None
    assert after is not None
    assert after.endpoints == ("pserver-0:1", "pserver-1:1")


def test_the_dead_are_named_with_place_process_and_time() -> None:
    failure = failed().job.failure

    assert failure is not None
    assert (failure.role, failure.index) == ("worker", 1)
    assert "process 11 on ada, worker-1:1 is dead: last heartbeat 4." in failure.reason


def test_a_done_worker_may_die() -> None:
    world = training()
    one_worker_ends(world)

    worker_dies(world)

    assert world.job.state == "training"


def test_a_pserver_that_dies_after_the_last_worker_ended_fails_nothing() -> None:
    world = training()
    world.run(3.5, dead=(("pserver", 0),))
    world.ends = {("worker", 0): "done", ("worker", 1): "done"}

    world.run(2.0, dead=(("pserver", 0),))

    assert world.job.state == "finished"


def test_a_member_that_comes_60_s_late_is_waited_for() -> None:
    world = World(start_timeout_s=600.0)
    world.enter(*CREW[:-1])
    world.run(60.0)

    world.enter(CREW[-1])

    assert world.job.state == "training"


@pytest.mark.parametrize(
    ("present", "named"),
    [(CREW[:1], ("pserver", 1)), (CREW[:3], ("worker", 1))],
)
def test_a_member_that_never_comes_is_named(
    present: list[tuple[str, int]], named: tuple[str, int]
) -> None:
    world = World(start_timeout_s=10.0)
    world.run(60.0)
    world.enter(*present)

    world.run(11.0)

    assert world.job.failure is not None
    assert (world.job.failure.role, world.job.failure.index) == named
    assert "hasn't joined 10 s after the first member" in world.job.failure.reason


def test_a_failed_job_admits_nobody_and_says_why() -> None:
    with pytest.raises(JobFailedError, match="worker 1"):
        join(failed(), "worker", 0)


@pytest.mark.parametrize(
    ("state", "role", "admitted"),
    [
        (waiting, "pserver", True),
        (waiting, "worker", True),
        (placed, "worker", True),
        (training, "worker", False),
        (placed, "pserver", False),
        (training, "pserver", False),
    ],
)
def test_a_silent_member_is_followed_on_while_nothing_is_lost_with_it(
    state: Callable[[], World], role: str, admitted: bool
) -> None:
    world = state()
    world.run(2.5, dead=((role, 0),))

    if admitted:
        assert join(world, role, 0) is not None
    else:
        with pytest.raises(IndexTakenError):
            join(world, role, 0)


def test_a_worker_silent_in_training_is_a_death_whoever_wants_its_place() -> None:
    world = training()
    world.run(2.5, dead=(("worker", 0),))
    with pytest.raises(IndexTakenError):
        join(world, "worker", 0)

    world.run(TTL_S, dead=(("worker", 0),))

    with pytest.raises(JobFailedError, match="worker 0: process 10 on ada"):
        join(world, "worker", 0)


def join(world: World, role: str, index: int) -> Any:
    newcomer = Member(
        role=role, index=0, incarnation=0, endpoint="", admin="", host="", pid=1, nonce="new"
    )
    return world.job.join(newcomer, index=index, asked_at=world.now, now=world.now)


def test_a_resumed_job_keeps_the_placement_it_had() -> None:
    before = training()
    assert before.job.placement is not None
    world = World()
    world.members, world.recorded = before.members, before.job.record

    world.look()

    assert world.job.placement == before.job.placement
    assert world.job.state == "training"
    assert world.events == []


def test_a_finish_recorded_by_a_former_coordinator_stands() -> None:
    world = training()
    world.recorded = JobRecord(state="finished", sizes=SIZES)

    world.look()

    assert world.job.state == "finished"


def test_a_members_failure_written_a_moment_earlier_wins() -> None:
    world = finished()
    theirs = Failure(role="worker", index=0, reason="loss is NaN")

    world.job.adopt(JobRecord(state="failed", sizes=SIZES, failure=theirs))

    assert (world.job.state, world.job.failure) == ("failed", theirs)


def test_what_was_written_without_failure_changes_nothing() -> None:
    world = training()

    world.job.adopt(JobRecord(state="waiting", sizes=SIZES))

    assert world.job.state == "training"
