"""A worker dies and another process takes its rank, in logical time."""

from collections.abc import Mapping
from typing import Any

import pytest

from paramfleet_coordinator.core.absent.returning import STARTING
from paramfleet_coordinator.core.job import Decision, Job, JobRules
from paramfleet_shared.discovery.errors import FencedError, IndexTakenError, JobFullError
from paramfleet_shared.discovery.records import (
    End,
    JobRecord,
    JobSizes,
    Member,
    MemberKey,
    Snapshot,
    Voucher,
)

TTL_S, TICK_S, RETURN_S = 4.0, 0.25, 20.0
CREW: list[MemberKey] = [("pserver", 0), ("worker", 0), ("worker", 1)]
GONE: MemberKey = ("worker", 1)


def member(key: MemberKey, **more: Any) -> Member:
    role, index = key
    given = {"endpoint": f"{role}-{index}:1", "nonce": f"{role}{index}", "incarnation": 1}
    given |= {"admin": "", "host": "ada", "pid": 10 + index}
    return Member(role=role, index=index, **{**given, **more})


class World:
    """A job whose workers return, what the registry holds, and the time."""

    def __init__(self, *, return_s: float = RETURN_S, launch: str = "") -> None:
        self.sizes = JobSizes(worker_num=2, server_num=1, num_shards=8, returning=return_s > 0)
        self.return_s = return_s
        self.now, self.beat = 50.0, 0
        self.silent: set[MemberKey] = set()
        self.vouched = False
        self.starting: int | None = None
        """The process that a launcher sees running in the place of the worker that died."""
        self.members = {key: member(key, launch=launch) for key in CREW}
        self.beats: dict[MemberKey, int] = {}
        self.ends: dict[MemberKey, End] = {}
        self.words: dict[MemberKey, str] = {}
        self.lives: object = []
        self.says: dict[str, Any] = {"mode": "async"}
        self.recorded: JobRecord | None = None
        self.decided: list[Decision] = []
        self.job = self.coordinator()
        self.look()
        self.run(1.0)
        assert self.state == "training"
        self.decided.clear()

    def coordinator(self) -> Job:
        rules = JobRules(
            lease_ttl_s=TTL_S,
            lease_renew_s=0.5,
            start_timeout_s=0.0,
            worker_return_s=self.return_s,
        )
        return Job(self.sizes, rules=rules)

    def look(self) -> None:
        self.beat += 1
        self.beats |= dict.fromkeys(self.members.keys() - self.silent, self.beat)
        seen = {"worker:1": self.members[GONE].pid} if self.vouched else {}
        if self.starting is not None:
            seen = {"worker:1": self.starting}
        voucher = Voucher(launch="l", part="c", nonce="n", host="h", pid=1, alive=seen)
        snapshot = Snapshot(
            job=self.recorded,
            members=dict(self.members),
            beats=dict(self.beats),
            ends=dict(self.ends),
            last_words=dict(self.words),
            vouchers={"c": (self.beat, voucher)},
            facts={("pserver", 0): {"lives": self.lives, **self.says}},
        )
        self.decided += self.job.observe(snapshot, now=self.now)
        self.recorded = self.job.record

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / TICK_S)):
            self.now += TICK_S
            self.look()

    def lose(self, why: str = "was killed by SIGKILL", *, end: End = "lost") -> None:
        """Let the launcher say that the worker has ended."""
        self.silent.add(GONE)
        self.ends[GONE], self.words[GONE] = end, why
        self.look()

    def ask(self, *, index: int | None = 1, nonce: str = "new") -> Member | None:
        one = member(GONE, nonce=nonce, incarnation=0, pid=99)
        return self.job.join(one, index=index, asked_at=self.now, now=self.now)

    def admit(self, *, index: int | None = 1) -> Member:
        """Do what a request to join does."""
        place = self.ask(index=index)
        assert place is not None
        self.decided += self.job.succeed(place)
        after = self.job.least_incarnation(place.role, place.index)
        known = Member(**{**_fields(place), "incarnation": after + 1})
        self.job.members.confirm(known, now=self.now)
        self.members[known.key] = known
        self.ends.pop(known.key, None)
        self.words.pop(known.key, None)
        self.silent.discard(known.key)
        return known

    @property
    def state(self) -> str:
        return self.job.state

    @property
    def failed(self) -> bool:
        return self.job.failure is not None

    @property
    def events(self) -> list[str]:
        return [decision.event for decision in self.decided]

    def facts(self, event: str) -> Mapping[str, Any]:
        (found,) = (d.facts for d in self.decided if d.event == event)
        return found


def _fields(one: Member) -> dict[str, Any]:
    return {name: getattr(one, name) for name in Member.__dataclass_fields__}


def test_a_worker_whose_launcher_saw_it_end_is_waited_for_and_another_has_its_rank() -> None:
    world = World()
    world.lose()

    known = world.admit()
    world.run(1.0)

    assert (known.index, known.incarnation) == (1, 2)
    assert world.events == ["worker.away", "worker.back"]
    assert "was killed by SIGKILL" in world.facts("worker.away")["reason"]
    assert world.state == "training"
    assert not world.failed


@pytest.mark.parametrize("index", [1, None])
def test_a_silent_worker_s_rank_goes_to_who_comes(index: int | None) -> None:
    world = World()
    world.silent.add(GONE)
    world.run(TTL_S + 1.0)

    assert world.admit(index=index).index == 1
    world.run(RETURN_S)
    assert not world.failed


def test_a_worker_that_nobody_takes_the_place_of_ends_the_job_by_name() -> None:
    world = World()
    world.lose()
    world.run(RETURN_S - 1.0)
    assert world.state == "training"

    world.run(2.0)

    failure = world.job.failure
    assert failure is not None
    assert (failure.role, failure.index) == GONE
    assert (
        failure.reason
        == "was killed by SIGKILL; no process joined in its place in 20 s (worker_return_s)"
    )


def test_one_whose_launcher_sees_another_process_start_is_waited_for_longer() -> None:
    world = World(launch="l")
    world.lose()
    world.starting = 99
    world.run(STARTING * RETURN_S - 2.0)
    assert world.state == "training"
    assert not world.failed

    world.run(4.0)
    assert world.failed


def test_one_whose_other_process_ends_before_it_joins_is_waited_for_no_longer() -> None:
    world = World(launch="l")
    world.lose()
    world.starting = 99
    world.run(RETURN_S + 5.0)
    assert not world.failed

    world.starting = None
    world.run(1.0)
    assert world.failed


def test_in_a_job_that_shrinks_nobody_is_waited_for_whom_no_launcher_starts() -> None:
    world = World()
    world.says = {"on_worker_loss": "shrink"}
    world.lose()
    world.run(1.0)
    assert world.events == ["worker.away"]

    world.lose("was killed by SIGKILL, 3 times in a row", end="gone")

    assert world.events == ["worker.away", "worker.lost"]
    assert world.facts("worker.lost")["reason"].startswith("was killed by SIGKILL, 3 times")
    world.run(1.0)
    assert not world.failed


def test_one_that_falls_silent_and_does_not_come_back_ends_it_too() -> None:
    world = World()
    world.silent.add(GONE)
    world.run(TTL_S + RETURN_S - 1.0)
    assert not world.failed

    world.run(2.0)

    assert world.job.failure is not None
    assert "no process joined in its place in 20 s" in world.job.failure.reason


def test_a_worker_that_was_silent_for_a_while_keeps_its_rank() -> None:
    world = World()
    world.silent.add(GONE)
    world.run(TTL_S + 2.0)
    world.silent.discard(GONE)
    world.run(1.0)

    assert world.events == ["worker.away", "worker.back"]
    asked_at = world.now - 5.0
    newcomer = member(GONE, nonce="new", incarnation=0)
    with pytest.raises(IndexTakenError):
        world.job.join(newcomer, index=1, asked_at=asked_at, now=world.now)


def test_a_barrier_waits_for_who_died_and_for_who_is_being_admitted() -> None:
    world = World()
    world.lose()
    assert world.job.participants() == {0, 1}

    place = world.ask()

    assert place is not None
    assert world.job.participants() == {0, 1}, "its incarnation isn't known yet"


def test_a_job_does_not_finish_without_a_worker_that_may_come_back() -> None:
    world = World()
    world.lose()
    world.ends["worker", 0] = "done"
    world.run(2.0)
    assert world.state == "training"

    world.admit()
    world.ends[GONE] = "done"
    world.run(1.0)

    assert world.state == "finished"


def test_what_a_dead_worker_sends_is_refused() -> None:
    world = World()
    world.lose()
    world.admit()

    with pytest.raises(FencedError):
        world.job.members.require("worker", 1, incarnation=1)


def test_a_newcomer_asks_again_while_nobody_knows_whether_the_holder_lives() -> None:
    world = World()
    world.vouched = True  # by a launcher that hasn't seen its end yet
    world.run(1.0)
    world.silent.add(GONE)

    assert world.ask() is None
    assert world.ask(index=None) is None
    with pytest.raises(JobFullError):
        world.ask(index=7)


def test_a_coordinator_that_is_started_again_waits_on() -> None:
    world = World()
    world.lose()
    world.job = world.coordinator()
    world.run(1.0)

    assert world.state == "training"
    assert world.admit().incarnation == 2


def forgotten() -> World:
    """Return the world of a new coordinator whose registry was empty: worker 1 was dead."""
    world = World()
    world.members.pop(GONE)
    world.job = world.coordinator()
    assert world.recorded is not None
    world.job.resume(world.recorded)
    world.job.settle()
    world.lives = [[0, 1], [1, 3]]
    return world


def test_a_newcomer_is_not_given_an_incarnation_that_only_pservers_know() -> None:
    """With an empty registry its changes would be taken for those of its former process."""
    world = forgotten()
    world.look()
    assert world.ask() is None, "a pserver may not have said yet what it knows"

    world.run(TTL_S + TICK_S)

    assert world.admit().incarnation == 4


def test_a_pserver_that_died_too_is_waited_for_before_its_workers_get_incarnations() -> None:
    """It comes back later than a lease, and only then says what it knows."""
    world = forgotten()
    known, world.lives, world.says = world.lives, [], {}
    world.run(2 * TTL_S)
    assert world.ask() is None
    assert world.state == "training"

    world.lives, world.says = known, {"mode": "async"}
    world.run(TTL_S + TICK_S)  # it might live

    assert world.admit().incarnation == 4


def test_what_pservers_said_counts_while_they_are_started_again() -> None:
    """A process that takes a pserver's place says nothing until it serves."""
    world = forgotten()
    world.run(TTL_S + TICK_S)
    world.lives, world.says = [], {}
    world.run(TTL_S)

    assert world.admit().incarnation == 4


def test_a_worker_that_no_pserver_names_any_more_is_forgotten() -> None:
    world = forgotten()
    world.run(1.0)
    world.lives = []
    world.look()

    assert GONE not in world.job.members.places


def test_a_worker_that_only_pservers_know_is_waited_for() -> None:
    world = forgotten()
    world.look()
    world.ends["worker", 0] = "left"
    world.run(RETURN_S - 1.0)
    assert world.state == "training", "worker 1 has steps to take"

    world.run(TTL_S + 2.0)

    assert world.failed
    assert world.job.failure is not None
    assert world.job.failure.index == 1


def test_a_worker_that_no_pserver_waits_for_has_left() -> None:
    world = forgotten()
    world.lives = [[0, 1]]
    world.run(TTL_S + 1.0)
    world.lives = []
    world.ends["worker", 0] = "left"
    world.look()

    assert world.state == "finished"


def test_without_returns_a_worker_s_death_ends_the_job_at_once() -> None:
    world = World(return_s=0.0)
    world.silent.add(GONE)
    world.run(TTL_S + 1.0)

    assert world.job.failure is not None
    assert "no process" not in world.job.failure.reason
