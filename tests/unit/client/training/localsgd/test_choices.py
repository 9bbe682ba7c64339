"""A strategy's keys become what all workers are given."""

from typing import Any

import pytest

from paramfleet.config.strategy import DistributedStrategy, StrategyError
from paramfleet.training.localsgd.core.choices import settings_of
from paramfleet.training.localsgd.core.settings import LocalSgdSettings, LocalSgdSettingsError


def over_servers(flag: str, **keys: Any) -> LocalSgdSettings:
    strategy = DistributedStrategy()
    setattr(strategy, flag, True)
    setattr(strategy, f"{flag}_configs", keys)
    mode = strategy.resolve()
    assert mode.name == "localsgd"
    assert mode.apart is not None
    return settings_of(*mode.apart, overlaps=True)


def test_localsgd_is_a_fixed_period_whose_exchange_ends_before_the_next() -> None:
    assert over_servers("localsgd", k_steps=8, begin_step=100) == LocalSgdSettings(
        k_steps=8, begin_step=100, overlap_steps=8
    )


def test_an_adaptive_period_begins_with_the_first_and_overlaps_the_longest() -> None:
    chosen = over_servers("adaptive_localsgd", init_k_steps=4, variant="fleet")

    assert chosen == LocalSgdSettings(
        k_steps=4, interval="fleet", max_k_steps=16, overlap_steps=16
    )


def test_diloco_has_no_single_steps_and_its_own_overlap() -> None:
    chosen = over_servers("diloco", k_steps=50, fragments=2, overlap_steps=5, mixing=0.5)

    assert chosen == LocalSgdSettings(
        k_steps=50,
        begin_step=0,
        outer_optimizer="nesterov",
        outer_lr=0.7,
        outer_momentum=0.9,
        fragments=2,
        overlap_steps=5,
        mixing=0.5,
    )


def test_momenta_can_only_be_kept_where_nobody_waits() -> None:
    with pytest.raises(LocalSgdSettingsError, match=r"overlap_steps.*optimizer_state"):
        over_servers("localsgd", optimizer_state="average")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"localsgd": True, "a_sync": False}, "localsgd.*a_sync = False"),
        ({"localsgd": True, "a_sync_configs": {"k_steps": 4}}, "localsgd.*k_steps.*GEO"),
        ({"localsgd": True, "diloco": True}, "diloco.*localsgd"),
        ({"localsgd_configs": {"k_steps": 4}}, "localsgd_configs.*localsgd = False"),
        ({"diloco": True, "amp": True}, "amp.*is_collective = False"),
        ({"localsgd": True, "a_sync_configs": {"wire_dtype": "int8"}}, "wire_dtype.*localsgd"),
    ],
)
def test_what_does_not_go_together_over_servers_names_both(
    changes: dict[str, Any], match: str
) -> None:
    strategy = DistributedStrategy()

    def choose() -> None:
        for name, value in changes.items():
            setattr(strategy, name, value)
        strategy.resolve()

    with pytest.raises(StrategyError, match=match):
        choose()
