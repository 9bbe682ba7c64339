"""Random lives of processes: what the plan never does, and that it settles."""

import random

import pytest

from paramfleet_coordinator.core.groups.choosing import Process
from paramfleet_coordinator.core.groups.errors import NotPlannedError, StaleTermError
from paramfleet_coordinator.core.groups.planner import Planner, PlanRules
from paramfleet_shared.discovery.plan import ProcessId

STEPS = 200


class Cluster:
    """Processes that come, die, follow, take what they are given, and send late requests."""

    def __init__(self, seed: int, *, replicas: int) -> None:
        self.random = random.Random(seed)
        self.groups = self.random.randint(1, 6)
        least = self.random.randint(1, self.groups)
        self.rules = PlanRules(
            start_processes=max(least, min(self.groups, replicas + 1)), replicas=replicas
        )
        self.planner = Planner(self.groups, rules=self.rules)
        self.processes: dict[int, Process] = {}
        self.lives = [0] * self.groups
        self.now = 0.0
        self.owners: dict[tuple[int, int], ProcessId] = {}
        self.terms = [0] * self.groups
        self.lost = False

    def come(self) -> None:
        free = [
            index
            for index in range(self.groups)
            if index not in self.processes or not self.processes[index].alive
        ]
        if free:
            index = self.random.choice(free)
            self.lives[index] += 1
            host = f"h{index % 2}"
            self.processes[index] = Process(id=ProcessId(index, self.lives[index]), host=host)

    def die(self) -> None:
        alive = [each for each in self.processes.values() if each.alive]
        if not alive:
            return
        doomed = self.random.choice(alive)
        survivable = [
            each for each in self.processes.values() if each.alive and each is not doomed
        ]
        for group in self.planner.plan.owned(doomed.id):
            own = self.planner.plan.of(group)
            names = {each.id.text for each in survivable}
            if own.term and not names & set(own.heirs):
                return  # its death would lose the group, and the job would end
        for group, own in enumerate(self.planner.plan.groups):
            others = {each.id.text for each in survivable} & set(own.heirs)
            dead_owner = own.owner is not None and not self.lives_now(own.owner)
            if own.term and dead_owner and not others:
                del group
                return
        self.processes[doomed.id.index] = Process(id=doomed.id, host=doomed.host, alive=False)

    def lives_now(self, process: ProcessId) -> bool:
        known = self.processes.get(process.index)
        return known is not None and known.id == process and known.alive

    def follow(self) -> None:
        group = self.random.randrange(self.groups)
        own = self.planner.plan.of(group)
        if own.follower is None or own.owner is None or not self.lives_now(own.follower):
            return
        term = own.term if self.random.random() < 0.8 else own.term - 1
        try:
            self.planner.set_eligible(
                group, term, [own.follower.text], number=own.number + 1, by=own.owner
            )
        except StaleTermError:
            assert term != own.term or own.heir is not None

    def join(self) -> None:
        """Let any process ask for any group; only who is named gets it."""
        group = self.random.randrange(self.groups)
        candidates = [each.id for each in self.processes.values() if each.alive]
        if not candidates:
            return
        own = self.planner.plan.of(group)
        named = [
            each for each in (own.heir, own.target, own.owner) if each and self.lives_now(each)
        ]
        process = self.random.choice(named or candidates)
        if self.random.random() < 0.2:
            process = self.random.choice(candidates)
        succeeds = own.term if self.random.random() < 0.9 else own.term + 1
        if (
            process == own.owner
            and own.heir is None
            and own.term
            and self.random.random() < 0.9
        ):
            return
        try:
            self.planner.require_owner(group, process, succeeds=succeeds)
        except NotPlannedError:
            return
        self.terms[group] += 1
        term = self.terms[group]
        assert (group, term) not in self.owners
        self.owners[group, term] = process
        self.planner.note_owner(group, process, term)
        assert self.planner.plan.of(group).owner == process

    def decide(self) -> None:
        self.now += self.random.choice([0.1, 1.0, 4.0])
        before = self.planner.plan
        self.planner.decide(list(self.processes.values()), now=self.now)
        after = self.planner.plan
        assert (after.version > before.version) == (after != before)
        self.check()

    def check(self) -> None:
        plan = self.planner.plan
        assert sum(each.target is not None for each in plan.groups) <= 1
        for group, own in enumerate(plan.groups):
            assert own.term == self.terms[group]
            if own.term:
                assert self.owners[group, own.term] == own.owner
            if own.heir is not None:
                assert own.heir.text in own.heirs
                assert own.owner is not None
            assert own.follower is None or own.follower != own.owner
            assert own.target is None or own.target != own.owner

    def scale(self) -> None:
        wanted = self.random.randint(1, self.groups)
        self.planner.scale(wanted, list(self.processes.values()))

    def settle(self) -> None:
        """Let nothing fail any more, and everybody do what is planned."""
        for _ in range(200):
            self.now += 6.0
            if sum(each.alive for each in self.processes.values()) < self.rules.start_processes:
                self.come()
            self.decide()
            for group, own in enumerate(self.planner.plan.groups):
                named = own.heir or own.target
                if named is None and not own.term:
                    named = own.owner
                if named is not None and self.lives_now(named):
                    self.planner.require_owner(group, named, succeeds=own.term)
                    self.terms[group] += 1
                    self.owners[group, self.terms[group]] = named
                    self.planner.note_owner(group, named, self.terms[group])
                new = self.planner.plan.of(group)
                if new.follower is not None and new.term and new.heir is None:
                    assert new.owner is not None
                    self.planner.set_eligible(
                        group,
                        new.term,
                        [new.follower.text],
                        number=new.number + 1,
                        by=new.owner,
                    )


@pytest.mark.parametrize("replicas", [0, 1])
@pytest.mark.parametrize("seed", range(60))
def test_no_term_has_two_owners_and_the_plan_settles(seed: int, replicas: int) -> None:
    cluster = Cluster(seed, replicas=replicas)
    acts = [cluster.come, cluster.die, cluster.follow, cluster.join, cluster.join]
    for _ in range(STEPS):
        cluster.random.choice([*acts, cluster.follow, cluster.scale])()
        cluster.decide()
    cluster.planner.scale(cluster.groups, list(cluster.processes.values()))
    cluster.settle()
    plan = cluster.planner.plan
    assert cluster.planner.moving is None
    usable = [
        each.id
        for each in cluster.processes.values()
        if each.alive and each.id not in plan.draining
    ]
    loads = sorted(len(plan.owned(each)) for each in usable)
    assert sum(loads) == cluster.groups
    assert loads[-1] - loads[0] <= 1
    if replicas and len(usable) > 1:
        assert all(each.follower in usable for each in plan.groups)
