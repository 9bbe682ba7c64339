"""An elastic job: workers are lost, followed on, and come late."""

from dataclasses import replace

import pytest

from paramfleet_coordinator.core.absent.losses import Losses
from paramfleet_coordinator.core.job import Job, JobRules
from paramfleet_coordinator.core.membership import MAX_WORKERS
from paramfleet_shared.discovery.errors import (
    FencedError,
    IndexTakenError,
    JobFinishedError,
    JobFullError,
)
from paramfleet_shared.discovery.records import (
    End,
    JobRecord,
    JobSizes,
    Lost,
    Member,
    Release,
    Snapshot,
    Voucher,
)

TTL_S, RENEW_S, TICK_S, GRACE_S = 4.0, 0.5, 0.25, 30.0
SIZES = JobSizes(worker_num=2, server_num=1, num_shards=8, elastic=True)


class World:
    """A job, a registry's contents, and the time."""

    def __init__(self, *, start_timeout_s: float = 60.0) -> None:
        rules = JobRules(
            lease_ttl_s=TTL_S,
            lease_renew_s=RENEW_S,
            start_timeout_s=start_timeout_s,
            worker_grace_s=GRACE_S,
        )
        self.job = Job(SIZES, rules=rules)
        self.now = 50.0
        self.members: dict[tuple[str, int], Member] = {}
        self.ends: dict[tuple[str, int], End] = {}
        self.last_words: dict[tuple[str, int], str] = {}
        self.recorded: JobRecord | None = None
        self.events: list[str] = []
        self.silent: set[int] = set()
        self.lives: object = []
        """What the pserver says of workers: rank and incarnation."""
        self.gone: tuple[str, ...] = ()
        """What a launcher says of its processes."""
        self.alive: dict[str, int] = {}
        """The processes that it sees alive."""
        self.beat = 0

    def look(self) -> None:
        self.beat += 1
        voucher = Voucher(
            launch="l", part="c", nonce="n", host="ada", pid=1, alive=self.alive, gone=self.gone
        )
        snapshot = Snapshot(
            job=self.recorded,
            members=dict(self.members),
            beats={
                key: 0 if key[0] == "worker" and key[1] in self.silent else self.beat
                for key in self.members
            },
            ends=dict(self.ends),
            last_words=dict(self.last_words),
            facts={("pserver", 0): {"mode": "async", "lives": self.lives}},
            vouchers={"c": (self.beat, voucher)},
        )
        self.events += [d.event for d in self.job.observe(snapshot, now=self.now)]
        self.evict()
        self.recorded = self.job.record

    def evict(self) -> None:
        for lost in self.job.losses.due():
            self.ends["worker", lost.index] = "lost"
            self.job.losses.settle(lost)

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / TICK_S)):
            self.now += TICK_S
            self.look()

    def ask(
        self,
        index: int | None = None,
        *,
        host: str = "ada",
        nonce: str = "",
        ago_s: float = 0.0,
    ) -> Member | None:
        newcomer = Member(
            role="worker",
            index=0,
            incarnation=0,
            endpoint="",
            admin="",
            host=host,
            pid=7,
            nonce=nonce or f"{host}{self.now}",
            launch="l",
        )
        asked_at = self.now - ago_s
        return self.job.join(newcomer, index=index, asked_at=asked_at, now=self.now)

    def join(
        self, index: int | None = None, *, host: str = "ada", ago_s: float = 0.0
    ) -> Member:
        place = self.ask(index, host=host, ago_s=ago_s)
        assert place is not None
        return self.admit(place)

    def admit(self, place: Member, *, dies_of: str = "") -> Member:
        known = self.job.members.places[place.key].incarnation
        self.events += [d.event for d in self.job.succeed(place)]
        self.evict()
        member = replace(place, incarnation=known + 1)
        self.members[member.key] = member
        self.ends.pop(member.key, None)
        self.last_words.pop(member.key, None)
        self.silent.discard(member.index)
        self.job.members.confirm(member, now=self.now)
        if dies_of:
            self.ends[member.key], self.last_words[member.key] = "lost", dies_of
        self.look()
        return member

    @property
    def lost(self) -> list[tuple[int, int]]:
        return [(lost.index, lost.incarnation) for lost in self.job.record.lost]


def waiting() -> World:
    world = World()
    server = Member(
        role="pserver", index=0, incarnation=1, endpoint="s:1", admin="", host="eve", pid=3
    )
    world.members[server.key] = server
    world.look()
    return world


def training() -> World:
    world = waiting()
    for host in ("ada", "bob"):
        world.join(host=host)
    assert world.job.state == "training"
    return world


def lost() -> World:
    world = training()
    world.silent = {1}
    world.run(GRACE_S + 1)
    return world


def test_a_silent_worker_is_lost_when_the_grace_is_over_and_the_job_goes_on() -> None:
    world = training()
    world.silent = {1}
    world.run(GRACE_S - 1)
    before = list(world.lost)
    world.run(2.0)

    assert before == []
    assert world.lost == [(1, 1)]
    assert world.job.state == "training"
    assert world.events.count("worker.lost") == 1
    assert "process 7 on bob is dead: last heartbeat 30" in world.job.record.lost[0].reason


def test_a_worker_that_is_heard_again_within_the_grace_merely_goes_on() -> None:
    world = training()
    world.silent = {1}
    world.run(10.0)
    world.silent = set()
    world.run(2 * GRACE_S)

    assert world.lost == []
    assert world.events == ["job.placed", "job.training"]


def test_a_worker_that_gave_up_is_lost_at_once_with_what_it_said() -> None:
    world = training()
    world.ends["worker", 0] = "lost"
    world.last_words["worker", 0] = "ValueError: no"

    world.look()
    world.look()

    assert world.lost == [(0, 1)]
    assert world.job.record.lost[0].reason == "ValueError: no"
    assert world.events.count("worker.lost") == 1


def test_a_worker_that_is_lost_before_the_next_look_has_been_in_the_training() -> None:
    world = waiting()
    world.join(host="ada")
    place = world.ask(host="bob")
    assert place is not None
    world.admit(place, dies_of="was killed by SIGKILL")
    world.ends["worker", 0] = "done"

    world.look()

    assert world.job.state == "finished"
    assert world.events == ["job.placed", "job.training", "worker.lost", "job.finished"]


def test_what_a_lost_worker_asks_for_is_refused() -> None:
    with pytest.raises(FencedError):
        lost().job.members.require("worker", 1, incarnation=1)


def test_barriers_stop_waiting_for_the_lost_and_forget_that_it_stood_there() -> None:
    world = training()
    world.job.barriers.arrive("epoch", 1, 1)
    world.silent = {1}
    world.run(GRACE_S + 1)

    world.job.barriers.arrive("epoch", 1, 0)

    assert world.job.participants() == {0}
    assert world.job.barriers.settle(world.job.participants()) == [
        Release(name="epoch", generation=1, ranks=(0,))
    ]


def test_a_newcomer_gets_the_place_of_the_lost_as_its_next_incarnation() -> None:
    world = lost()

    newcomer = world.join(host="cyd")
    world.run(2.0)

    assert (newcomer.index, newcomer.incarnation) == (1, 2)
    assert world.job.participants() == {0, 1}
    assert world.lost == [(1, 1)], "its former self stays fenced"


def test_a_newcomer_gets_a_new_rank_while_all_others_live() -> None:
    world = training()

    newcomer = world.join(host="cyd")

    assert newcomer.index == 2
    assert world.job.members.num_workers == 3
    assert world.job.participants() == {0, 1, 2}


def test_a_restarted_host_gets_its_own_place_back_once_that_is_silent() -> None:
    world = training()
    world.silent = {1}

    at_once = world.ask(host="bob", nonce="again")
    world.run(TTL_S / 2 + TICK_S)
    later = world.ask(host="bob", nonce="again")

    assert at_once is None, "it isn't known yet whether its former self lives"
    assert later is not None
    assert world.admit(later).index == 1
    assert world.lost == [(1, 1)]


def test_another_host_does_not_take_the_place_of_one_that_is_merely_silent() -> None:
    world = training()
    world.silent = {1}
    world.run(TTL_S)

    assert world.join(host="cyd").index == 2


def test_a_second_worker_on_a_host_gets_a_rank_when_the_first_has_been_heard_again() -> None:
    world = training()
    asked_at = world.now
    newcomer = replace(world.members["worker", 0], pid=8, nonce="second")
    world.run(1.0)

    place = world.job.join(newcomer, index=None, asked_at=asked_at, now=world.now)

    assert place is not None
    assert place.index == 2


def test_an_index_is_that_of_a_lost_or_silent_worker_or_a_new_one() -> None:
    world = lost()
    taken = world.join(1, host="cyd")
    world.silent = {0}
    world.run(TTL_S / 2 + TICK_S)

    assert taken.incarnation == 2
    assert world.join(0, host="dan").incarnation == 2
    assert world.join(7, host="eve").index == 7
    assert world.job.members.num_workers == 8


def test_the_index_of_a_live_worker_is_taken() -> None:
    world = training()
    asked_at = world.now - 1.0
    newcomer = replace(world.members["worker", 0], nonce="second")

    with pytest.raises(IndexTakenError, match="held by process 7 on ada"):
        world.job.join(newcomer, index=0, asked_at=asked_at, now=world.now)


def test_a_restarted_worker_waits_until_its_launcher_has_said_that_the_former_died() -> None:
    world = training()
    world.alive = {"worker:0": 7}
    world.run(TICK_S)

    assert world.ask(0, nonce="again") is None
    world.ends["worker", 0] = "lost"
    world.run(TICK_S)

    again = world.ask(0, nonce="again")
    assert again is not None
    assert again.index == 0


def test_there_is_a_highest_rank() -> None:
    with pytest.raises(JobFullError):
        training().ask(MAX_WORKERS, host="cyd")


def test_the_place_of_a_worker_that_left_goes_to_a_newcomer() -> None:
    world = training()
    world.ends["worker", 0] = "left"
    world.look()

    assert world.join(host="cyd").index == 0


def test_more_workers_than_are_needed_may_come_before_the_start() -> None:
    world = World()
    ranks = []
    for host in ("ada", "bob", "cyd"):
        ranks.append(world.join(host=host, ago_s=1.0).index)
        world.run(1.0)

    assert ranks == [0, 1, 2]
    assert world.job.state == "waiting", "the pserver is missing"
    assert world.job.participants() == {0, 1, 2}


def test_a_worker_lost_before_the_start_must_be_followed_by_another() -> None:
    world = waiting()
    world.join(host="ada")
    world.silent = {0}
    world.run(GRACE_S + 1)
    world.join(host="bob")
    world.run(1.0)
    before = world.job.state

    world.join(host="cyd")

    assert before == "waiting"
    assert world.job.state == "training"


def test_the_job_finishes_when_all_have_ended_and_one_of_them_well() -> None:
    world = lost()
    world.ends["worker", 0] = "done"

    world.look()

    assert world.job.state == "finished"


def test_a_late_worker_is_waited_for_at_the_end() -> None:
    world = training()
    world.join(host="cyd")
    world.ends |= {("worker", 0): "done", ("worker", 1): "done"}
    world.look()
    before = world.job.state
    world.ends["worker", 2] = "done"

    world.look()

    assert (before, world.job.state) == ("training", "finished")


def test_a_job_whose_workers_are_all_lost_waits_for_others_so_long() -> None:
    world = lost()
    world.silent = {0, 1}
    world.run(GRACE_S + 50.0)
    before = world.job.state

    world.run(20.0)

    assert before == "training"
    assert world.job.failure is not None
    assert "all workers are lost, and none came in 60 s" in world.job.failure.reason


def test_a_job_whose_workers_are_all_lost_goes_on_with_one_that_comes_back() -> None:
    world = lost()
    world.silent = {0, 1}
    world.run(GRACE_S + 50.0)

    world.join(host="cyd")
    world.run(100.0)

    assert world.job.state == "training"


def test_a_finished_job_takes_no_worker() -> None:
    world = lost()
    world.ends["worker", 0] = "done"
    world.look()

    with pytest.raises(JobFinishedError):
        world.ask(host="cyd")


def test_a_pserver_that_dies_ends_an_elastic_job_too() -> None:
    world = training()
    beats = {key: 0 if key[0] == "pserver" else 1 for key in world.members}
    for tick in range(20):
        world.now += TICK_S
        snapshot = Snapshot(
            job=world.recorded,
            members=dict(world.members),
            beats={key: beat * (1000 + tick) for key, beat in beats.items()},
        )
        world.job.observe(snapshot, now=world.now)

    assert world.job.failure is not None
    assert world.job.failure.role == "pserver"


def test_a_successor_knows_who_is_lost() -> None:
    before = lost()
    world = World()
    world.members, world.ends, world.recorded = before.members, before.ends, before.recorded

    world.look()

    assert world.lost == [(1, 1)]
    assert world.events == []
    assert world.join(host="cyd").incarnation == 2


def forgotten() -> World:
    """Return the world of a new coordinator whose registry was empty: worker 1 wasn't back."""
    before = training()
    world = World()
    world.recorded = before.job.record
    world.members = {key: each for key, each in before.members.items() if key[1] == 0}
    world.lives = [[0, 1], [1, 1]]
    world.look()
    return world


def test_a_worker_that_only_pservers_know_is_lost_if_it_stays_away() -> None:
    world = forgotten()
    world.run(GRACE_S - 1)
    before = list(world.lost)
    world.run(2.0)

    assert before == []
    assert world.lost == [(1, 1)]
    assert world.job.state == "training"
    world.lives = [[0, 1]]
    assert world.join(host="cyd").key == ("worker", 1)
    assert world.members["worker", 1].incarnation == 2


def test_a_worker_that_writes_itself_back_is_not_lost() -> None:
    world = forgotten()
    world.run(GRACE_S - 1)
    world.members["worker", 1] = replace(world.members["worker", 0], index=1, host="bob")

    world.run(GRACE_S)

    assert world.lost == []
    assert world.job.members.places["worker", 1].member.host == "bob"


def test_a_worker_that_only_pservers_know_is_lost_at_once_if_its_launcher_saw_its_end() -> None:
    world = forgotten()
    world.gone = ("worker:1",)
    world.run(TTL_S - TICK_S)
    before = list(world.lost)
    world.run(2 * TICK_S)

    assert before == []  # another process may have its rank, and be about to say so
    assert world.lost == [(1, 1)]


def test_a_worker_that_only_pservers_know_may_be_another_than_its_launcher_saw_end() -> None:
    world, before = forgotten(), training()
    world.gone = ("worker:1",)
    world.run(TTL_S / 2)
    world.members["worker", 1] = before.members["worker", 1]
    world.run(2 * TTL_S)

    assert world.lost == []


def test_a_worker_that_no_pserver_names_any_more_is_forgotten() -> None:
    world = forgotten()
    world.lives = [[0, 1]]

    world.run(GRACE_S + 1)

    assert ("worker", 1) not in world.job.members.places
    assert world.lost == []


@pytest.mark.parametrize("lives", [None, 3, "x", [1], [[1]], [[-1, 1]], [["1", 1]], [[2, 0]]])
def test_what_a_pserver_says_of_workers_may_be_anything(lives: object) -> None:
    world = training()
    world.lives = lives

    world.run(GRACE_S + 1)

    assert len(world.job.members.places) == 3
    assert world.lost == []


def test_a_registry_that_forgot_a_loss_is_told_again() -> None:
    world = lost()
    del world.ends["worker", 1]

    world.look()

    assert world.ends["worker", 1] == "lost"


def test_a_reservation_that_failed_leaves_the_place_as_it_was() -> None:
    world = lost()
    place = world.ask(host="cyd")
    assert place is not None
    world.look()

    world.job.members.give_up(place)
    world.look()

    assert world.job.members.places["worker", 1].end == "lost"
    assert world.join(host="dan").index == 1


def test_only_a_newer_loss_takes_the_place_of_a_known_one() -> None:
    losses = Losses()
    losses.note(Lost(index=1, incarnation=3, reason="later"))

    losses.resume([Lost(index=1, incarnation=1, reason="before")])
    losses.settle(Lost(index=1, incarnation=1, reason="before"))

    assert [lost.reason for lost in losses.record] == ["later"]
    assert [lost.incarnation for lost in losses.due()] == [3]
