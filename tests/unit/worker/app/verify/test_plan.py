"""What a seed plans."""

import json

import pytest

from paramfleet_shared.net.rpc.breaking.planned_faults import read_faults
from paramfleet_shared.settings.failpoints import FAILPOINTS, read_failpoints
from paramfleet_worker.app.verify.plan import (
    ELASTIC,
    MODES,
    NUM_SERVERS,
    RETURNING,
    Mode,
    plan_from,
    plan_run,
)

SEEDS = range(300)


@pytest.mark.parametrize("mode", MODES)
def test_a_seed_plans_the_same_each_time(mode: Mode) -> None:
    plans = [plan_run(seed, mode) for seed in SEEDS]

    assert plans == [plan_run(seed, mode) for seed in SEEDS]
    assert len({json.dumps({**plan.facts(), "seed": 0}) for plan in plans}) > 250


@pytest.mark.parametrize("mode", MODES)
def test_what_is_planned_can_be_read_and_is_of_such_a_job(mode: Mode) -> None:
    for plan in (plan_run(seed, mode) for seed in SEEDS):
        rates = read_faults(plan.faults)
        assert rates is None or rates.seed == plan.seed
        for each in read_failpoints(plan.failpoints):
            most = 2 * NUM_SERVERS if plan.moves else NUM_SERVERS
            assert each.index is None or each.index < most
        assert all(1 <= kill.step <= plan.steps for kill in plan.kills)
        assert list(plan.kills) == sorted(plan.kills, key=lambda kill: kill.step)
        assert plan.max_staleness is None or plan.mode == "async"


def test_seeds_reach_every_kind_of_fault() -> None:
    plans = [plan_run(seed, mode) for seed in SEEDS for mode in MODES]

    points = {each.point for plan in plans for each in read_failpoints(plan.failpoints)}
    actions = {each.action for plan in plans for each in read_failpoints(plan.failpoints)}

    assert points == FAILPOINTS.keys()
    assert actions == {"kill", "full", "delay", "stop"}
    assert {k.process for p in plans for k in p.kills} == {
        "coordinator-0",
        "pserver-0",
        "pserver-1",
        "redis-0",
        "worker-1",
    }
    assert {bool(plan.faults) for plan in plans} == {True, False}
    assert {plan.max_staleness is None for plan in plans} == {True, False}


def test_a_plan_is_what_its_file_holds() -> None:
    for mode in MODES:
        plan = plan_run(3, mode, replicas=1, moves=3)

        assert plan_from(json.loads(json.dumps(plan.facts()))) == plan
        assert [move.processes for move in plan.moves] == [4, 2, 4]


def test_a_third_of_the_seeds_has_moves_or_replicas_in_each_mode() -> None:
    for first in range(60):
        plans = [plan_run(first + run, MODES[run % len(MODES)]) for run in range(20)]
        moved = [plan for plan in plans if plan.moves or plan.replicas]

        assert len(moved) in {6, 7}
        assert {plan.mode for plan in moved} == set(MODES)
        kinds = {(bool(plan.moves), bool(plan.replicas)) for plan in moved}
        assert kinds == {(True, False), (False, True), (True, True)}


def test_what_is_said_of_moves_and_replicas_goes_before_the_seed() -> None:
    of_seed = plan_run(9, "sync")

    assert plan_run(9, "sync", replicas=1, moves=3) == of_seed
    assert plan_run(9, "sync", replicas=0, moves=0).moves == ()
    assert plan_run(9, "sync", replicas=0).replicas == 0


def test_workers_die_where_jobs_go_on_without_them_or_they_come_back() -> None:
    plans = [plan_run(seed, mode) for seed in SEEDS for mode in MODES]
    dead = []
    for plan in plans:
        dies = [each for each in read_failpoints(plan.failpoints) if each.action == "kill"]
        has_dead = any(FAILPOINTS[each.point].role == "worker" for each in dies)
        has_dead |= any(kill.process.startswith("worker") for kill in plan.kills)

        assert has_dead == plan.elastic or plan.mode in RETURNING
        assert not plan.elastic or plan.mode in ELASTIC
        dead += [plan.mode] if has_dead else []
    assert set(dead) == set(MODES)
