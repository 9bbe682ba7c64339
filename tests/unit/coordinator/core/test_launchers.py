"""Silence and death, told apart by what launchers see, in logical time."""

import pytest

from paramfleet_coordinator.core.job import Job, JobRules
from paramfleet_coordinator.core.launchers import MAX_ENDED, Launchers
from paramfleet_shared.discovery.errors import IndexTakenError
from paramfleet_shared.discovery.records import JobSizes, Member, MemberKey, Snapshot, Voucher

TTL_S, TICK_S, GRACE_S = 4.0, 0.25, 30.0
CREW: list[MemberKey] = [("pserver", 0), ("worker", 0), ("worker", 1)]
PSERVER, WORKER = CREW[0], CREW[2]


class World:
    """A job under two launchers, what the registry holds, and the time.

    The first launcher has the pserver and worker 0, the second has worker 1.
    """

    def __init__(self, *, elastic: bool = False, launch: str = "ab12") -> None:
        rules = JobRules(
            lease_ttl_s=TTL_S,
            lease_renew_s=0.5,
            start_timeout_s=0.0,
            worker_grace_s=GRACE_S,
            server_grace_s=GRACE_S / 2,
        )
        sizes = JobSizes(worker_num=2, server_num=1, num_shards=8, elastic=elastic)
        self.job = Job(sizes, rules=rules, launch=launch)
        self.now = 50.0
        self.beat = 0
        self.frozen: set[object] = set()
        """Members and launchers that do nothing."""
        self.seen = {"coordinator:0": CREW[:2], "worker:1": CREW[2:]}
        self.members = {key: self.member(key, launch) for key in CREW}
        self.beats: dict[MemberKey, int] = {}
        self.renewals: dict[str, int] = {}
        self.events: list[tuple[str, object, object]] = []
        self.look()
        self.run(1.0)
        self.events.clear()

    @staticmethod
    def member(key: MemberKey, launch: str, *, pid: int = 0) -> Member:
        role, index = key
        return Member(
            role=role,
            index=index,
            incarnation=1,
            endpoint="h:1",
            admin="",
            host="ada",
            pid=pid or 10 + CREW.index(key),
            nonce=f"{role}{index}{pid}",
            launch=launch,
        )

    def look(self) -> None:
        self.beat += 1
        self.beats |= {key: self.beat for key in CREW if key not in self.frozen}
        self.renewals |= {part: self.beat for part in self.seen if part not in self.frozen}
        vouchers = {
            part: (self.renewals[part], self.voucher(part, keys))
            for part, keys in self.seen.items()
        }
        snapshot = Snapshot(
            job=self.job.record,
            members=dict(self.members),
            beats=dict(self.beats),
            vouchers=vouchers,
        )
        for decision in self.job.observe(snapshot, now=self.now):
            facts = decision.facts
            self.events.append((decision.event, facts.get("role"), facts.get("index")))

    def voucher(self, part: str, keys: list[MemberKey]) -> Voucher:
        alive = {f"{role}:{index}": 10 + CREW.index((role, index)) for role, index in keys}
        return Voucher(launch="ab12", part=part, nonce=part, host="ada", pid=1, alive=alive)

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / TICK_S)):
            self.now += TICK_S
            self.look()

    @property
    def blamed(self) -> MemberKey | None:
        failure = self.job.failure
        return None if failure is None else (failure.role, failure.index)


@pytest.mark.parametrize("key", [PSERVER, WORKER])
def test_a_silent_member_that_its_launcher_sees_is_named_and_waited_for(key: MemberKey) -> None:
    world = World()
    world.frozen = {key}

    world.run(10.0)
    named = list(world.events)
    place = world.job.members.places[key]
    was_silent = world.job.members.is_silent(place)
    world.frozen.clear()
    world.run(1.0)

    assert named == [("member.silent", *key)]
    assert was_silent
    assert world.events == [("member.silent", *key), ("member.back", *key)]
    assert not world.job.members.is_silent(place)
    assert world.job.state == "training"


@pytest.mark.parametrize(("key", "grace_s"), [(PSERVER, GRACE_S / 2), (WORKER, GRACE_S)])
def test_it_is_waited_for_until_its_roles_grace_is_over_and_then_blamed_itself(
    key: MemberKey, grace_s: float
) -> None:
    world = World()
    world.frozen = {key}

    world.run(grace_s - 1.0)
    before = world.blamed
    world.run(2.0)

    assert before is None
    assert world.blamed == key
    assert world.job.failure is not None
    assert "is silent, though its launcher sees it alive" in world.job.failure.reason


def test_a_member_whose_process_its_launcher_saw_end_is_judged_by_its_lease() -> None:
    world = World()
    world.frozen = {WORKER}
    world.seen["worker:1"] = []

    world.run(TTL_S + 2 * TICK_S)

    assert world.blamed == WORKER
    assert world.job.failure is not None
    assert "is dead" in world.job.failure.reason


def test_a_machine_that_is_gone_with_its_launcher_is_noticed_when_its_lease_is_over() -> None:
    world = World()
    world.frozen = {WORKER, "worker:1"}

    world.run(TTL_S - 1.0)
    before = world.blamed
    world.run(1.0 + 2 * TICK_S)

    assert before is None
    assert world.blamed == WORKER


def test_a_launcher_that_stands_still_is_no_reason_to_blame_anybody() -> None:
    world = World()
    world.frozen = {"coordinator:0", "worker:1"}

    world.run(GRACE_S)

    assert world.blamed is None
    assert world.events == []


def test_a_launcher_that_dies_while_a_member_is_silent_vouches_for_it_no_more() -> None:
    world = World()
    world.frozen = {WORKER}
    world.run(10.0)
    assert world.blamed is None

    world.frozen.add("worker:1")
    world.run(TTL_S + TICK_S)

    assert world.blamed == WORKER


def test_when_all_stood_still_together_with_the_coordinator_nobody_is_blamed() -> None:
    world = World()

    world.now += 60.0  # nobody looked, and nobody sent a heartbeat
    world.run(10.0)

    assert world.blamed is None


def test_a_coordinator_that_lagged_behind_judges_launchers_no_sooner_than_members() -> None:
    world = World()
    world.frozen = {WORKER, "worker:1"}
    world.run(TTL_S - 1.0)

    world.now += 60.0
    world.frozen = {WORKER}
    world.run(TTL_S + 1.0)

    assert world.blamed is None


@pytest.mark.parametrize(
    "stranger",
    [
        World.member(WORKER, "", pid=12),
        World.member(WORKER, "cd34", pid=12),
        World.member(WORKER, "ab12", pid=99),
    ],
    ids=["started by hand", "of another launch", "another process"],
)
def test_a_launcher_vouches_for_no_process_but_its_own(stranger: Member) -> None:
    world = World()
    world.members[WORKER] = stranger
    world.job.members.confirm(stranger, now=world.now)
    world.frozen = {WORKER}

    world.run(TTL_S + 3 * TICK_S)

    assert world.blamed == WORKER


def test_an_elastic_job_goes_on_without_a_silent_worker_when_the_grace_is_over() -> None:
    world = World(elastic=True)
    world.frozen = {WORKER}

    world.run(GRACE_S - 1.0)
    before = [event[0] for event in world.events]
    world.run(2.0)

    assert before == ["member.silent"]
    assert [event[0] for event in world.events] == ["member.silent", "worker.lost"]
    assert world.job.state == "training"


@pytest.mark.parametrize("elastic", [False, True])
def test_nobody_takes_the_place_of_a_silent_member_that_its_launcher_sees(
    elastic: bool,
) -> None:
    world = World(elastic=elastic)
    world.frozen = {WORKER}
    world.run(10.0)
    other = World.member(WORKER, "ab12", pid=77)

    with pytest.raises(IndexTakenError, match="worker 1 is held by process 12"):
        world.job.join(other, index=1, asked_at=world.now, now=world.now)


def test_of_processes_that_were_restarted_thousands_of_times_the_last_ended_are_known() -> None:
    world, launchers = World(), Launchers(lease_ttl_s=TTL_S)
    job = world.job.record
    gone = World.member(PSERVER, "ab12", pid=1)
    members = {PSERVER: gone}

    for pid in range(2_000):
        members[WORKER] = World.member(WORKER, "ab12", pid=10 + pid)
        alive = {"worker:1": 10 + pid} | ({} if pid else {"pserver:0": 1})
        voucher = Voucher(launch="ab12", part="all", nonce="n", host="ada", pid=2, alive=alive)
        snapshot = Snapshot(
            job=job, members=members, beats={}, vouchers={"all": (pid, voucher)}
        )
        launchers.observe(snapshot, counted_s=0.25)

    assert launchers.sees(World.member(WORKER, "ab12", pid=2_009))
    assert launchers.saw_end(World.member(WORKER, "ab12", pid=2_008))
    assert launchers.saw_end(gone)  # the first one that ended, and a member still
    assert len(launchers._ended) <= MAX_ENDED + 1
    assert len(launchers._vouched["all"]) <= MAX_ENDED + 2
