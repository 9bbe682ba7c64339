"""A job whose groups are planned, in logical time: processes, owners, deaths."""

from dataclasses import replace

import pytest

from paramfleet_coordinator.core.groups.errors import NotPlannedError
from paramfleet_coordinator.core.job import Job, JobRules
from paramfleet_shared.discovery.errors import FencedError, OtherHostingError
from paramfleet_shared.discovery.plan import DISK, ProcessId
from paramfleet_shared.discovery.records import (
    PROCESS,
    JobSizes,
    Member,
    MemberKey,
    Snapshot,
    Voucher,
)

TICK_S = 0.25


class World:
    """A planned job, what the registry holds, and the time."""

    def __init__(self, *, replicas: int = 0, durable: bool = False) -> None:
        self.sizes = JobSizes(
            worker_num=1, server_num=2, num_shards=8, server_processes=2, replicas=replicas
        )
        self.durable = durable
        self.rules = JobRules(lease_ttl_s=4.0, lease_renew_s=0.5, start_timeout_s=600.0)
        self.job = Job(self.sizes, rules=self.rules, run_id=3)
        self.now = 10.0
        self.beat = 0
        self.members: dict[MemberKey, Member] = {}
        self.lives: dict[MemberKey, int] = {}
        self.silent: set[MemberKey] = set()
        self.alive: dict[str, int] = {}
        self.events: list[str] = []
        self.nonces = 0

    def member(self, role: str, index: int, **more: object) -> Member:
        self.nonces += 1
        plain = Member(
            role=role,
            index=index,
            incarnation=0,
            endpoint=f"{role}:{self.nonces}",
            admin="",
            host="ada",
            pid=100 + self.nonces,
            nonce=str(self.nonces),
            launch="l",
        )
        return replace(plain, **more)  # type: ignore[arg-type]

    def admit(self, newcomer: Member, *, succeeds: int = 0) -> Member:
        placed = self.job.join(
            newcomer,
            index=newcomer.index,
            asked_at=self.now,
            now=self.now,
            succeeds=succeeds,
        )
        assert placed is not None
        after = self.job.least_incarnation(placed.role, placed.index)
        life = max(self.lives.get(placed.key, 0), after) + 1
        self.lives[placed.key] = life
        member = replace(placed, incarnation=life)
        self.members[member.key] = member
        self.job.members.confirm(member, now=self.now)
        self.events += [each.event for each in self.job.note_return(member, now=self.now)]
        return member

    def process(self, index: int) -> ProcessId:
        member = self.admit(self.member(PROCESS, index))
        self.alive[f"pserver:{index}"] = member.pid
        return ProcessId(index, member.incarnation)

    def own(self, group: int, process: ProcessId, *, succeeds: int = 0) -> Member:
        pid = self.members[PROCESS, process.index].pid
        more = {"process": process.text, "durable": self.durable, "pid": pid}
        return self.admit(self.member("pserver", group, **more), succeeds=succeeds)

    def look(self, times: int = 1) -> None:
        for _ in range(times):
            self.now += TICK_S
            self.beat += 1
            beats = {key: self.beat for key in self.members if key not in self.silent}
            voucher = Voucher(
                launch="l", part="coordinator:0", nonce="n", host="ada", pid=1, alive=self.alive
            )
            snapshot = Snapshot(
                job=self.job.record,
                members=dict(self.members),
                beats=beats,
                vouchers={"coordinator:0": (self.beat, voucher)},
            )
            self.events += [each.event for each in self.job.observe(snapshot, now=self.now)]

    def begin(self) -> tuple[ProcessId, ProcessId]:
        first, second = self.process(0), self.process(1)
        self.admit(self.member("worker", 0))
        self.look()
        self.own(0, first)
        self.own(1, second)
        self.look(2)
        assert self.job.state == "training"
        return first, second

    def end(self, process: ProcessId) -> None:
        """Let the launcher see a process end."""
        del self.alive[f"pserver:{process.index}"]
        silent = [
            key
            for key, each in self.members.items()
            if each.process == process.text or key == (PROCESS, process.index)
        ]
        self.silent |= set(silent)

    @property
    def plan(self):  # type: ignore[no-untyped-def]
        assert self.job.hosting is not None
        return self.job.hosting.planner


def test_groups_are_owned_by_whom_the_plan_names() -> None:
    world = World()
    first, second = world.begin()
    with pytest.raises(NotPlannedError):
        world.own(0, second, succeeds=1)
    placement = world.job.placement
    assert placement is not None
    assert placement.moves
    assert placement.terms == (1, 1)
    assert [each.owner for each in world.plan.plan.groups] == [first, second]


def test_a_pserver_of_its_own_is_refused_with_what_to_set() -> None:
    world = World()
    with pytest.raises(OtherHostingError, match="hosting=planned"):
        world.admit(world.member("pserver", 0))
    fixed = Job(replace(world.sizes, server_processes=0), rules=world.rules)
    with pytest.raises(OtherHostingError, match="server_processes"):
        fixed.join(world.member(PROCESS, 0), index=0, asked_at=0.0, now=0.0)


def test_a_process_that_the_launcher_saw_end_is_replaced_at_once() -> None:
    world = World(replicas=1)
    first, second = world.begin()
    world.plan.set_eligible(1, 1, [first.text], number=1, by=second)
    world.end(second)
    world.look()
    assert "group.takeover" in world.events
    assert world.plan.plan.of(1).heir == first
    world.look(20)  # more than a lease: the dead owner's silence fails nothing
    assert world.job.failure is None
    world.own(1, first, succeeds=1)
    world.look()
    assert world.job.placement is not None
    assert world.job.placement.term_of(1) == 2
    assert "group.taken_over" in world.events


@pytest.mark.parametrize("replicas", [0, 1])
def test_a_process_that_its_launcher_sees_alive_is_silent_first_where_nobody_follows(
    replicas: int,
) -> None:
    world = World(durable=True, replicas=replicas)
    _, second = world.begin()
    world.silent |= {(PROCESS, 1), ("pserver", 1)}

    world.look(int(10 / TICK_S))  # more than a lease
    assert ("process.gone" in world.events) == bool(replicas)
    assert world.job.failure is None
    if replicas:
        return

    world.silent.clear()
    world.look(2)
    assert world.plan.plan.of(1).owner == second
    world.silent |= {(PROCESS, 1), ("pserver", 1)}
    world.look(int((world.rules.server_grace_s + 1) / TICK_S))
    assert "process.gone" in world.events


def test_without_a_follower_or_a_disk_the_job_ends_by_name() -> None:
    world = World()
    _, second = world.begin()
    world.end(second)
    world.look(20)
    assert world.job.failure is not None
    assert (world.job.failure.role, world.job.failure.index) == ("pserver", 1)


def test_a_process_comes_back_under_its_index_to_what_its_disk_has() -> None:
    world = World(durable=True)
    _, second = world.begin()
    assert world.plan.plan.of(1).disk_term == 0  # until its owner has proposed
    world.plan.set_eligible(1, 1, [DISK], number=1, by=second)
    world.end(second)
    world.look(2)
    world.silent.discard((PROCESS, 1))
    again = world.process(1)
    assert again == ProcessId(1, 2)
    world.look()
    assert world.plan.plan.of(1).owner == second
    assert world.job.hosting is not None
    world.job.hosting.note_holds(again, {1: 1})
    world.look()
    assert world.plan.plan.of(1).owner == again
    world.own(1, again, succeeds=1)
    world.look(20)
    assert world.job.failure is None


def test_an_owner_that_ends_before_it_learns_of_its_group_is_replaced() -> None:
    world = World(durable=True, replicas=1)
    first, second = world.begin()
    world.end(second)
    world.look(2)
    assert "group.begins_anew" in world.events
    assert world.plan.plan.of(1).owner == first
    world.own(1, first, succeeds=1)
    world.look(20)
    assert world.job.failure is None
    assert world.plan.plan.of(1).is_new


def test_a_process_that_was_replaced_gets_no_group() -> None:
    world = World(durable=True)
    _, second = world.begin()
    world.end(second)
    world.look()
    world.silent.discard((PROCESS, 1))
    world.process(1)
    with pytest.raises(FencedError):
        world.job.join(
            world.member("pserver", 1, process=second.text),
            index=1, asked_at=world.now, now=world.now, succeeds=1,
        )  # fmt: skip


def test_another_coordinator_goes_on_with_the_plan() -> None:
    world = World(replicas=1)
    first, second = world.begin()
    world.plan.set_eligible(1, 1, [first.text], number=1, by=second)
    record = world.job.record
    world.job = Job(world.sizes, rules=world.rules)
    world.job.resume(record)
    assert world.plan.plan.of(1).eligible == (first.text,)
    world.look()
    assert world.plan.plan.of(1).owner == second
    assert world.job.failure is None


def test_a_process_that_lives_may_ask_again_what_it_was_given() -> None:
    world = World(replicas=1)
    first, second = world.begin()
    world.plan.set_eligible(1, 1, [first.text], number=1, by=second)
    world.end(second)
    world.look()
    given = world.own(1, first, succeeds=1)
    world.silent.add(given.key)  # the answer was lost, so nobody renews that lease
    world.look(40)  # more than two leases
    assert "job.failed" not in world.events
    world.look(100)  # nobody waits for ever
    failure = world.job.failure
    assert failure is not None
    assert (failure.role, failure.index) == ("pserver", 1)


@pytest.mark.parametrize("says_so", [True, False])
def test_another_coordinator_with_an_older_registry_asks_what_processes_know(
    says_so: bool,
) -> None:
    world = World(replicas=1)
    first, second = world.begin()
    world.plan.set_eligible(1, 1, [first.text], number=1, by=second)
    older = world.job.record
    world.plan.set_eligible(1, 1, [], number=2, by=second)  # it goes on unprotected
    newest = world.plan.plan
    world.job = Job(world.sizes, rules=world.rules)
    world.job.resume(older)
    world.job.settle()
    hosting = world.job.hosting
    assert hosting is not None

    world.end(second)
    world.look(4)
    if says_so:
        hosting.note_known(newest.version, dict(enumerate(newest.groups)))
    world.look(11)
    assert (world.plan.plan.of(1).heir, world.job.failure) == (None, None)
    world.look(30)

    if says_so:
        assert world.plan.plan.of(1).heir is None, "what it has lacks what was reported"
        assert world.job.failure is not None
        assert (world.job.failure.role, world.job.failure.index) == ("pserver", 1)
        assert "group 1, and no process that lives has a copy" in world.job.failure.reason
    else:
        assert world.plan.plan.of(1).heir == first
        assert world.job.failure is None
