"""What ``strategy.eviction_configs`` takes, and how many rows go for it."""

from typing import Any

import pytest

from paramfleet.config.eviction import Eviction
from paramfleet.config.strategy import DistributedStrategy, StrategyError


def strategy(configs: Any, *, a_sync: bool = True) -> DistributedStrategy:
    made = DistributedStrategy()
    made.a_sync = a_sync
    made.eviction_configs = configs
    return made


def test_keys_hold_for_all_tables_and_others_for_some() -> None:
    configs = {"max_rows": 100, "tables": {"ads": {"unseen_steps": 5, "max_rows": 0}}}
    plan = strategy(configs).resolve().eviction

    assert plan.of("users") == Eviction(max_rows=100)
    assert plan.of("ads") == Eviction(unseen_steps=5)
    assert not strategy({}).resolve().eviction.of("any").is_on


@pytest.mark.parametrize(
    ("configs", "match"),
    [
        ({"max_row": 1}, "did you mean 'max_rows'"),
        ({"max_rows": -1}, "must be at least 0"),
        ({"max_rows": 1.5}, "must be a whole number"),
        ({"headroom": 0.95, "max_rows": 9}, "must be at most 0.9"),
        ({"headroom": 0.2}, "has no effect without max_rows or max_bytes"),
        ({"unseen_steps": 3, "unseen_hours": 3}, "a row keeps one of both"),
        ({"value": "often", "max_rows": 9}, "must be 'recency' or 'frequency'"),
        ({"value": "recency"}, "'value'.*has no effect without max_rows"),
        (
            {"value": "frequency", "max_rows": 9, "unseen_steps": 3},
            "doesn't go with unseen_steps",
        ),
        ({"half_life": 5, "max_rows": 9, "unseen_hours": 3}, "half_life.*has no effect"),
        ({"half_life": 5}, "half_life.*has no effect"),
        ({"max_rows": 100, "min_rows": 95}, "at most 90, what is left of max_rows"),
        ({"tables": {"ads": {"max_row": 1}}}, "did you mean 'max_rows'"),
        ({"tables": {"ads": 5}}, "must be a dict of a table's keys"),
        ({"tables": {5: {}}}, "must be a dict of a table's keys"),
        ({"tables": 5}, "must be a dict"),
        (
            {"tables": {"ads": {"unseen_steps": 3}}, "unseen_hours": 3},
            "a row keeps one of both",
        ),
    ],
)
def test_what_makes_no_sense_is_named(configs: Any, match: str) -> None:
    with pytest.raises(StrategyError, match=match):
        strategy(configs).resolve()


@pytest.mark.parametrize(
    ("configs", "steps"),
    [
        ({}, 0.0),
        ({"unseen_steps": 7}, 0.0),
        ({"max_rows": 99, "unseen_hours": 7}, 0.0),
        ({"max_rows": 99, "value": "recency"}, 0.0),
        ({"max_rows": 99}, 0.0),
        ({"max_rows": 99, "value": "frequency"}, 10_000.0),
        (
            {"max_bytes": 99, "every_steps": 50, "headroom": 0.2, "value": "frequency"},
            250.0,
        ),
        ({"max_rows": 99, "every_steps": 0, "half_life": 30, "value": "frequency"}, 30.0),
    ],
)
def test_pushes_fade_in_the_steps_in_which_looks_replace_all_rows(
    configs: Any, steps: float
) -> None:
    assert strategy(configs).resolve().eviction.of("t").fades_by == pytest.approx(steps)


def test_modes_that_remove_no_rows_refuse_it() -> None:
    apart = strategy({"max_rows": 9})
    apart.localsgd = True
    with pytest.raises(StrategyError, match="no effect in localsgd mode"):
        apart.resolve()
    with pytest.raises(StrategyError, match="belongs to parameter servers"):
        strategy({"max_rows": 9}).resolve_collective()


@pytest.mark.parametrize(
    ("how", "rows", "expired", "goes"),
    [
        ({}, 100, 0, 0),
        ({}, 100, 7, 7),
        ({"min_rows": 98}, 100, 7, 2),
        ({"min_rows": 200}, 100, 7, 0),
        ({"max_rows": 100}, 95, 0, 0),
        ({"max_rows": 100}, 96, 0, 6),
        ({"max_rows": 100}, 96, 20, 20),
        ({"max_rows": 100, "min_rows": 90}, 96, 20, 6),
        ({"max_rows": 100, "headroom": 0.5}, 100, 0, 50),
    ],
)
def test_so_many_rows_go(how: Any, rows: int, expired: int, goes: int) -> None:
    eviction = Eviction(**how)
    assert eviction.num_to_evict(rows, expired, max_rows=eviction.max_rows) == goes


def test_bytes_are_as_many_rows_as_fit() -> None:
    assert Eviction(max_bytes=1000).capped(10) == 100
    assert Eviction(max_bytes=1000, max_rows=7).capped(10) == 7
    assert Eviction(max_bytes=1000, max_rows=700).capped(10) == 100
    assert Eviction(max_bytes=5).capped(10) == 1
    assert Eviction().capped(10) == 0
