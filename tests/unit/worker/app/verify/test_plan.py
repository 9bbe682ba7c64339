"""What a seed plans."""

import json

import pytest

from paramfleet_shared.net.rpc.planned_faults import read_faults
from paramfleet_shared.settings.failpoints import FAILPOINTS, read_failpoints
from paramfleet_worker.app.verify.plan import MODES, NUM_SERVERS, Mode, plan_run

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
            assert each.index is None or each.index < NUM_SERVERS
        assert all(1 <= kill.step <= plan.steps for kill in plan.kills)
        assert list(plan.kills) == sorted(plan.kills, key=lambda kill: kill.step)
        assert plan.max_staleness is None or plan.mode == "async"


def test_seeds_reach_every_kind_of_fault() -> None:
    plans = [plan_run(seed, mode) for seed in SEEDS for mode in MODES]

    points = {each.point for plan in plans for each in read_failpoints(plan.failpoints)}
    actions = {each.action for plan in plans for each in read_failpoints(plan.failpoints)}

    assert points == FAILPOINTS.keys() - {"before_send"}
    assert actions == {"kill", "full", "delay", "stop"}
    assert {k.process for p in plans for k in p.kills} == {"pserver-0", "pserver-1", "redis-0"}
    assert {bool(plan.faults) for plan in plans} == {True, False}
    assert {plan.max_staleness is None for plan in plans} == {True, False}
