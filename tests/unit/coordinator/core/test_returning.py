"""A pserver whose training is on a disk dies and comes back, in logical time."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from paramfleet_coordinator.core.job import Decision, Job, JobRules
from paramfleet_shared.discovery.errors import (
    IndexTakenError,
    JobFullError,
    WrongDataFolderError,
)
from paramfleet_shared.discovery.placement import Placement
from paramfleet_shared.discovery.records import (
    End,
    JobRecord,
    JobSizes,
    Member,
    MemberKey,
    Snapshot,
    Voucher,
)
from paramfleet_shared.errors import JobFailedError

TTL_S, TICK_S, RETURN_S, GRACE_S = 4.0, 0.25, 20.0, 8.0
RUN = 3
CREW: list[MemberKey] = [("pserver", 0), ("pserver", 1), ("worker", 0)]
SERVER: MemberKey = ("pserver", 1)


def member(key: MemberKey, **more: Any) -> Member:
    role, index = key
    durable = role == "pserver"
    given = {"endpoint": f"{role}-{index}:1", "nonce": f"{role}{index}", "durable": durable}
    given |= {"incarnation": 1, "admin": "", "host": "ada", "pid": 10 + index}
    return Member(role=role, index=index, **{**given, **more})


def newcomer(**more: Any) -> Member:
    given = {"endpoint": "new:1", "nonce": "new", "incarnation": 0, "pid": 99}
    return member(SERVER, **{**given, "holds_run": RUN, **more})


class World:
    """A job with durable pservers, what the registry holds, and the time."""

    def __init__(
        self, *, return_s: float = RETURN_S, elastic: bool = False, **more: Any
    ) -> None:
        self.sizes = JobSizes(worker_num=1, server_num=2, num_shards=8, elastic=elastic)
        self.return_s = return_s
        self.now = 50.0
        self.beat = 0
        self.silent: set[MemberKey] = set()
        self.vouched = False
        self.members = {key: member(key, **more) for key in CREW}
        self.beats: dict[MemberKey, int] = {}
        self.ends: dict[MemberKey, End] = {}
        self.recorded: JobRecord | None = None
        self.decided: list[Decision] = []
        self.said: dict[MemberKey, dict[str, Any]] = {}
        """What members say of themselves."""
        self.job = self.coordinator()

    def coordinator(self) -> Job:
        rules = JobRules(
            lease_ttl_s=TTL_S,
            lease_renew_s=0.5,
            start_timeout_s=0.0,
            server_grace_s=GRACE_S,
            server_return_s=self.return_s,
        )
        return Job(self.sizes, rules=rules, run_id=RUN)

    @property
    def events(self) -> list[str]:
        return [decision.event for decision in self.decided]

    def facts(self, event: str) -> Mapping[str, Any]:
        (found,) = (d.facts for d in self.decided if d.event == event)
        return found

    def look(self) -> None:
        self.beat += 1
        alive = self.members.keys() - self.silent
        self.beats |= dict.fromkeys(alive, self.beat)
        seen = {"pserver:1": self.members[SERVER].pid} if self.vouched else {}
        voucher = Voucher(launch="l", part="c", nonce="n", host="h", pid=1, alive=seen)
        snapshot = Snapshot(
            job=self.recorded,
            members=dict(self.members),
            beats=dict(self.beats),
            ends=dict(self.ends),
            vouchers={"c": (self.beat, voucher)},
            facts=self.said,
        )
        self.decided += self.job.observe(snapshot, now=self.now)
        self.recorded = self.job.record

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / TICK_S)):
            self.now += TICK_S
            self.look()

    def ask(self, one: Member, *, index: int | None = 1) -> Member | None:
        return self.job.join(one, index=index, asked_at=self.now, now=self.now)

    def admit(self, one: Member) -> Member:
        """Do what a request to join does."""
        place = self.ask(one)
        assert place is not None
        after = self.job.least_incarnation(place.role, place.index)
        self.decided += self.job.succeed(place)
        known = replace(place, incarnation=after + 1)
        self.job.members.confirm(known, now=self.now)
        self.decided += self.job.note_return(known, now=self.now)
        self.members[known.key] = known
        self.ends.pop(known.key, None)
        self.silent.discard(known.key)
        self.recorded = self.job.record
        return known

    @property
    def placement(self) -> Placement:
        assert self.job.placement is not None
        return self.job.placement


def training(**more: Any) -> World:
    world = World(**more)
    world.look()
    world.run(2.0)
    assert world.job.state == "training"
    world.decided.clear()
    return world


def dead(world: World) -> None:
    world.silent.add(SERVER)
    world.run(TTL_S + 1.0)


def left(world: World) -> None:
    world.ends[SERVER] = "left"
    world.look()
    world.silent.add(SERVER)
    world.run(1.0)


def alive(world: World) -> None:
    world.run(1.0)


def test_the_placement_has_the_terms() -> None:
    assert training().placement.terms == (1, 1)


@pytest.mark.parametrize("state", [alive, dead, left])
def test_who_has_the_data_gets_the_place_at_once(state: Any) -> None:
    world = training()
    state(world)
    before = world.placement

    known = world.admit(newcomer())
    world.run(RETURN_S + TTL_S + 5.0)

    assert known.incarnation == 2
    assert world.placement == before.with_server(1, endpoint="new:1", term=2)
    assert world.recorded is not None
    assert world.recorded.placement == world.placement.to_wire()
    assert world.job.state == "training"
    assert world.events == (["pserver.lost"] if state is not alive else []) + ["pserver.back"]
    assert (
        "process 99 on ada (incarnation 2) has its data"
        in world.facts("pserver.back")["reason"]
    )


def test_a_place_is_taken_before_all_workers_have_come() -> None:
    world = World()
    del world.members["worker", 0]
    world.look()

    world.admit(newcomer())

    assert world.job.state == "waiting"
    assert world.placement.terms == (1, 2)


@pytest.mark.parametrize("state", [alive, dead, left])
@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"holds_run": 2}, "that of run 2"),
        ({"holds_run": 0}, "that of no run"),
        ({"durable": False}, "none"),
    ],
)
def test_who_has_no_data_of_the_run_is_refused(
    state: Any, more: dict[str, Any], words: str
) -> None:
    world = training()
    state(world)

    with pytest.raises(WrongDataFolderError) as caught:
        world.ask(newcomer(**more))

    sentence = "pserver 1 has its training of run 3 in a data folder, and this process has "
    assert str(caught.value).startswith(f"{sentence}{words}: start it with the data folder")
    assert "process 11 on ada (incarnation 1)" in str(caught.value)
    assert world.placement.terms == (1, 1)


def test_without_an_index_nobody_takes_a_durable_place() -> None:
    world = training()
    dead(world)

    with pytest.raises(JobFullError):
        world.ask(newcomer(), index=None)


@pytest.mark.parametrize("state", [alive, dead])
def test_a_pserver_that_is_not_durable_is_not_replaced(state: Any) -> None:
    world = training(durable=False)
    world.silent |= {SERVER} if state is dead else set()
    world.run(TTL_S - 1.0)

    with pytest.raises(IndexTakenError):
        world.ask(newcomer())


def test_a_request_may_be_repeated_and_a_second_process_waits_for_the_first() -> None:
    world = training()

    first = world.ask(newcomer())

    assert world.ask(newcomer()) == first
    assert world.ask(newcomer(nonce="other")) is None
    assert first is not None
    world.job.members.give_up(first)
    assert world.ask(newcomer(nonce="other")) is not None


def test_a_confirmed_process_that_asks_again_has_its_place() -> None:
    world = training()
    known = world.admit(newcomer())

    assert world.ask(newcomer()) == known
    assert world.job.note_return(known, now=world.now) == []


def test_it_may_return_again_and_again() -> None:
    world = training()
    for number in (2, 3):
        dead(world)
        world.admit(newcomer(nonce=str(number)))

    assert world.placement.terms == (1, 3)
    assert world.placement.epoch == 3
    assert world.events == ["pserver.lost", "pserver.back"] * 2


@pytest.mark.parametrize(
    ("state", "how"), [(dead, "is dead: last heartbeat"), (left, "left before the training")]
)
def test_it_is_waited_for_and_then_the_job_fails(state: Any, how: str) -> None:
    world = training()
    state(world)

    lost = world.facts("pserver.lost")
    place = world.job.members.places[SERVER]
    assert lost["index"] == 1
    assert lost["waits_s"] == RETURN_S
    assert how in lost["reason"]
    assert "for 20 s the job waits for a process that has its data" in lost["reason"]
    assert world.job.waits_s(place) == pytest.approx(RETURN_S - 1.0, abs=2 * TICK_S)
    world.run(RETURN_S - 2.0)
    assert world.job.state == "training"
    world.run(2.0)

    failure = world.job.failure
    assert failure is not None
    assert (failure.role, failure.index) == SERVER
    assert how in failure.reason
    assert failure.reason.endswith("; no process came back with its data in 20 s")
    assert world.job.waits_s(place) is None
    with pytest.raises(JobFailedError):
        world.ask(newcomer())


@pytest.mark.parametrize("state", [dead, left])
@pytest.mark.parametrize("more", [{"return_s": 0.0}, {"durable": False}])
def test_without_patience_or_data_the_job_fails_at_once(
    state: Any, more: dict[str, Any]
) -> None:
    world = training(**more)

    state(world)

    assert world.job.failure is not None
    assert "came back" not in world.job.failure.reason
    assert world.events == ["job.failed"]


def test_the_same_process_may_be_heard_again() -> None:
    world = training()
    dead(world)
    world.silent.clear()
    world.run(1.0)

    assert world.events == ["pserver.lost", "pserver.back"]
    assert world.placement.epoch == 1
    dead(world)
    world.run(RETURN_S - 3.0)
    assert world.job.state == "training", "the time began anew"


def test_one_that_its_launcher_sees_alive_is_silent_first_and_lost_after_the_grace() -> None:
    world = training(launch="l")
    world.vouched = True
    world.silent.add(SERVER)

    world.run(GRACE_S - 1.0)
    assert world.events == ["member.silent"]
    world.run(2.0)
    assert world.events == ["member.silent", "pserver.lost"]
    world.silent.clear()
    world.run(1.0)

    assert world.events == ["member.silent", "pserver.lost", "pserver.back"]
    assert world.job.state == "training"


def test_time_in_which_nobody_looked_does_not_count() -> None:
    world = training()
    dead(world)

    world.now += 10 * RETURN_S
    world.look()
    world.run(1.0)

    assert world.job.state == "training"
    assert world.events == ["pserver.lost"]


def test_workers_that_have_ended_need_no_pserver() -> None:
    world = training()
    dead(world)

    world.ends["worker", 0] = "done"
    world.look()

    assert world.job.state == "finished"


def test_another_coordinator_goes_on_with_the_place_and_the_terms() -> None:
    world = training()
    world.admit(newcomer())
    world.run(1.0)
    dead(world)
    world.decided.clear()
    world.job = world.coordinator()
    world.run(TTL_S + 1.0)

    assert world.events == ["pserver.lost"]
    assert world.placement.terms == (1, 2)
    world.admit(newcomer(nonce="third"))
    assert world.placement.terms == (1, 3)
    assert world.placement.epoch == 3


def test_another_coordinator_publishes_whom_the_former_one_admitted() -> None:
    world = training()
    world.members[SERVER] = newcomer(incarnation=2)
    world.job = world.coordinator()

    world.look()

    assert world.events == ["pserver.back"]
    assert world.placement.terms == (1, 2)
    assert world.placement.endpoints == ("pserver-0:1", "new:1")


def test_an_elastic_job_loses_no_worker_by_it() -> None:
    world = training(elastic=True)

    world.admit(newcomer())

    assert world.events == ["pserver.back"]
    assert world.job.losses.record == ()


def test_one_that_redis_and_a_new_coordinator_have_forgotten_gets_a_higher_term() -> None:
    world = training()
    term = world.placement.term_of(1)
    del world.members[SERVER], world.beats[SERVER]
    world.job = world.coordinator()
    assert world.recorded is not None
    world.job.resume(world.recorded)

    with pytest.raises(WrongDataFolderError, match="the former one, which is gone"):
        world.ask(newcomer(holds_run=2))
    world.admit(newcomer())

    assert world.placement.term_of(1) == term + 1
    assert world.events == ["pserver.back"]


def with_log(*, began_at: int, durable: int) -> dict[str, Any]:
    return {"log": {"began_at": began_at, "durable_position": durable}}


def test_a_pserver_that_comes_back_with_an_older_copy_of_its_data_ends_the_job() -> None:
    """No worker may live that knows that changes are missing."""
    world = training()
    world.said[SERVER] = with_log(began_at=0, durable=1040)
    world.run(1.0)
    world.members[SERVER] = member(SERVER, incarnation=2)
    world.said[SERVER] = {"log": None}  # it serves nothing yet
    world.run(1.0)
    assert "job.failed" not in world.events

    world.said[SERVER] = with_log(began_at=812, durable=2000)
    world.look()

    facts = world.facts("job.failed")
    assert (facts["role"], facts["index"]) == SERVER
    assert "has the changes up to number 812, and those up to 1040" in facts["reason"]


def test_a_pserver_may_come_back_with_all_that_was_on_its_disk_and_more() -> None:
    world = training()
    for incarnation, began_at in ((1, 0), (2, 1040), (3, 2001)):
        world.members[SERVER] = member(SERVER, incarnation=incarnation)
        world.said[SERVER] = with_log(began_at=began_at, durable=0)  # no snapshot as yet
        world.run(1.0)
        world.said[SERVER] = with_log(began_at=began_at, durable=1000 * incarnation)
        world.run(1.0)

    assert world.job.failure is None


@pytest.mark.parametrize("log", [None, 3, [], {}, {"began_at": "x", "durable_position": 1}])
def test_what_a_pserver_says_of_its_log_may_be_anything(log: object) -> None:
    world = training()
    world.said[SERVER] = {"log": log}
    world.run(1.0)
    world.said[SERVER] = with_log(began_at=7, durable=7)
    world.run(1.0)

    assert world.job.failure is None
