"""Every key of a strategy has a type and a range, and says so when a value has not."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paramfleet.config.features import FAMILY, FEATURES, SETTINGS
from paramfleet.config.strategy import _KEYS, DistributedStrategy
from paramfleet.config.strategy_keys import Key, StrategyError
from paramfleet.training.localsgd.core.choices import settings_of
from paramfleet.training.localsgd.core.settings import LocalSgdSettings, LocalSgdSettingsError

ALL: dict[str, Key] = {
    **{f"a_sync_configs.{name}": key for name, key in _KEYS.items()},
    **{f"{flag}.{name}": key for flag, keys in FEATURES.items() for name, key in keys.items()},
    **SETTINGS,
}
NUMBERS = {
    name: key for name, key in ALL.items() if key.kind in {int, float} and not key.choices
}
HOSTILE = [
    "x" * 100_000,
    "\x1b]0;owned\x07",
    object(),
    {"a": 1},
    [[]],
    10**5000,
    -(10**5000),
    b"x",
]


def bounds_of(key: Key) -> tuple[float, float]:
    least = key.exclusive_minimum if key.minimum is None else key.minimum
    assert least is not None
    assert key.maximum is not None
    return least, key.maximum


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_has_both_bounds_and_refuses_what_is_beyond_them(name: str) -> None:
    key = NUMBERS[name]
    least, most = bounds_of(key)
    assert most < 2**63
    for beyond in (least - 1, most + 1 if key.kind is int else most * 2 + 1, 2**63, -(2**63)):
        with pytest.raises(StrategyError) as caught:
            key.take(name, key.kind(beyond))
        assert name in str(caught.value)
    for number in (math.nan, math.inf, -math.inf):
        with pytest.raises(StrategyError):
            key.take(name, number)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("value", HOSTILE, ids=lambda value: type(value).__name__)
def test_a_value_of_another_kind_is_refused_in_few_words(name: str, value: Any) -> None:
    with pytest.raises(StrategyError) as caught:
        ALL[name].take(name, value)
    said = str(caught.value)
    assert name in said
    assert len(said) < 700
    assert "\x1b" not in said


@pytest.mark.parametrize("name", NUMBERS)
@given(number=st.floats() | st.integers())
def test_whatever_is_taken_is_within_the_bounds(name: str, number: float) -> None:
    key = NUMBERS[name]
    least, most = bounds_of(key)
    try:
        taken = key.take(name, number)
    except StrategyError:
        return
    assert least <= taken <= most
    assert isinstance(taken, key.kind)


@pytest.mark.parametrize("wrong", [1, None, ("a",), b"k_steps", "k" * 100_000, "\x1b[2J"])
@pytest.mark.parametrize("configs", ["a_sync_configs", "diloco_configs", "amp_configs"])
def test_a_key_that_is_no_key_is_refused_in_few_words(configs: str, wrong: Any) -> None:
    made = DistributedStrategy()
    with pytest.raises(StrategyError) as caught:
        setattr(made, configs, {wrong: 2})
    assert configs in str(caught.value)
    assert len(str(caught.value)) < 1000
    assert "\x1b" not in str(caught.value)
    with pytest.raises(StrategyError):
        getattr(made, configs)[wrong] = 2
    with pytest.raises(StrategyError):
        getattr(made, configs)[wrong]


@pytest.mark.parametrize("first", FAMILY)
@pytest.mark.parametrize("second", FAMILY)
def test_two_ways_to_train_apart_are_refused_as_soon_as_both_are_on(
    first: str, second: str
) -> None:
    made = DistributedStrategy()
    setattr(made, first, True)
    if first == second:
        setattr(made, second, True)
        return
    with pytest.raises(StrategyError, match="choose one kind of LocalSGD") as caught:
        setattr(made, second, True)
    assert first in str(caught.value)
    assert second in str(caught.value)
    setattr(made, first, False)
    setattr(made, second, True)
    assert made.resolve().name == "localsgd"


def apart(flag: str, **keys: Any) -> LocalSgdSettings:
    made = DistributedStrategy()
    setattr(made, flag, True)
    setattr(made, f"{flag}_configs", keys)
    chosen = made.resolve().apart
    assert chosen is not None
    return settings_of(*chosen)


@pytest.mark.parametrize(
    ("flag", "keys", "named"),
    [
        ("diloco", {"overlap": True, "overlap_steps": 5}, "overlap"),
        ("diloco", {"outer_momentum": 0.0}, "outer_momentum"),
        ("localsgd", {"outer_optimizer": "nesterov"}, "outer_momentum"),
        ("localsgd", {"outer_lr": 2.0}, "outer_lr"),
        ("localsgd", {"outer_momentum": 0.5}, "outer_momentum"),
        ("diloco", {"mixing": 0.5}, "mixing"),
    ],
)
def test_keys_of_which_one_has_no_effect_beside_the_other_are_refused(
    flag: str, keys: dict[str, Any], named: str
) -> None:
    with pytest.raises(LocalSgdSettingsError) as caught:
        apart(flag, **keys)
    assert caught.value.key == named


WRONG = [math.nan, math.inf, -1, 2**63, 10**5000, "3", None, True, 2.5]


@pytest.mark.parametrize(
    "field", ["k_steps", "begin_step", "max_k_steps", "fragments", "overlap_steps"]
)
@pytest.mark.parametrize(
    "wrong", WRONG, ids=lambda value: repr(value)[:8] if value != 10**5000 else "huge"
)
def test_settings_of_localsgd_take_only_whole_numbers_in_their_ranges(
    field: str, wrong: Any
) -> None:
    with pytest.raises(LocalSgdSettingsError) as caught:
        LocalSgdSettings(**{field: wrong})
    assert caught.value.key == field


@pytest.mark.parametrize("field", ["outer_lr", "outer_momentum", "mixing"])
@pytest.mark.parametrize("wrong", [math.nan, math.inf, -1.0, 1e7, "0.5", True])
def test_settings_of_localsgd_take_only_finite_numbers_in_their_ranges(
    field: str, wrong: Any
) -> None:
    with pytest.raises(LocalSgdSettingsError) as caught:
        LocalSgdSettings(**{"outer_optimizer": "sgd", "overlap_steps": 1, field: wrong})
    assert caught.value.key == field


@pytest.mark.parametrize("sparsity", [(math.nan,), (1.5,), (-0.1,), (2,), (), (0.5,) * 1001])
def test_what_stays_behind_of_a_gradient_is_a_list_of_shares(sparsity: Any) -> None:
    made = DistributedStrategy()
    with pytest.raises(StrategyError, match="sparsity"):
        made.dgc_configs = {"sparsity": sparsity}
