"""What ``strategy.guard_configs`` takes."""

from typing import Any

import pytest

from paramfleet.config.plans.guards import GuardPlan
from paramfleet.config.strategy import DistributedStrategy, StrategyError


def strategy(configs: Any) -> DistributedStrategy:
    made = DistributedStrategy()
    made.guard_configs = configs
    return made


def test_without_a_key_there_is_no_guard() -> None:
    assert strategy({}).resolve().guard is None
    assert DistributedStrategy().resolve_collective().guard is None


def test_keys_are_the_plan_in_every_mode() -> None:
    made = strategy({"action": "skip", "grad_norm_times": 20, "max_skips": 0})
    plan = GuardPlan(action="skip", grad_norm_times=20.0, max_skips=0)

    assert made.resolve().guard == plan
    made.a_sync_configs = {"k_steps": 3}
    assert made.resolve().guard == plan
    assert strategy({"loss_max": 9.0}).resolve_collective().guard == GuardPlan(loss_max=9.0)


@pytest.mark.parametrize(
    ("configs", "match"),
    [
        ({"los_max": 1.0}, "did you mean 'loss_max'"),
        ({"action": "stop"}, "must be 'warn' or 'skip' or 'end'"),
        ({"loss_max": float("nan")}, "must be a finite number"),
        ({"grad_norm_max": 0}, "must be above 0"),
        ({"loss_times": 1.0}, "must be above 1"),
        ({"loss_min": 2.0, "loss_max": 2.0}, "'loss_min'.*must be below loss_max, which is 2"),
        ({"window": 10, "loss_max": 2.0}, "'window'.*has no effect without loss_times"),
        ({"warm_up": 10}, "'warm_up'.*has no effect without"),
        ({"max_skips": 1}, "'max_skips'.*has no effect without action = 'skip'"),
    ],
)
def test_what_is_wrong_is_named(configs: Any, match: str) -> None:
    with pytest.raises(StrategyError, match=match):
        strategy(configs).resolve()


@pytest.mark.parametrize(("feature", "configs"), [("amp", {"dtype": "float16"}), ("dgc", {})])
def test_features_that_dont_go_with_a_guard_are_named(feature: str, configs: Any) -> None:
    made = strategy({"action": "skip"})
    setattr(made, feature, True)
    setattr(made, f"{feature}_configs", configs)

    with pytest.raises(StrategyError, match=f"guard_configs.*doesn't go with {feature}"):
        made.resolve_collective()
