"""Every key of a strategy works or raises, whatever the order."""

from typing import Any

import pytest

from paramfleet.config.features import CLASHES, FEATURES
from paramfleet.config.strategy import _KEYS, DistributedStrategy, StrategyError
from paramfleet.config.strategy_keys import NOT_HERE
from paramfleet_shared.tables.codecs.catalog import WIRE_DTYPES


def strategy(a_sync: bool = True, **configs: Any) -> DistributedStrategy:
    made = DistributedStrategy()
    made.a_sync = a_sync
    made.a_sync_configs = configs
    return made


@pytest.mark.parametrize(
    ("a_sync", "configs", "mode"),
    [
        (False, {}, "sync"),
        (False, {"k_steps": 0}, "sync"),
        (True, {}, "async"),
        (True, {"k_steps": 0}, "async"),
        (True, {"k_steps": 100}, "geo"),
    ],
)
def test_a_sync_and_k_steps_choose_the_mode(
    a_sync: bool, configs: dict[str, Any], mode: str
) -> None:
    assert strategy(a_sync, **configs).resolve().name == mode


def test_a_mode_says_what_has_chosen_it() -> None:
    with_localsgd = DistributedStrategy()
    with_localsgd.localsgd = True

    assert DistributedStrategy().resolve().chosen_by == "a_sync = True, the default"
    assert strategy(True).resolve().chosen_by == "a_sync = True"
    assert strategy(False).resolve().chosen_by == "a_sync = False"
    assert strategy(True, k_steps=20).resolve().chosen_by == "a_sync = True, k_steps = 20"
    assert with_localsgd.resolve().chosen_by == "a_sync = True, the default, localsgd = True"
    assert "True" in (DistributedStrategy.__doc__ or "")
    assert DistributedStrategy().a_sync is True


def test_the_order_of_assignment_does_not_matter() -> None:
    configs_first = DistributedStrategy()
    configs_first.a_sync_configs = {"k_steps": 7}
    configs_first.a_sync = True

    assert configs_first.resolve() == strategy(True, k_steps=7).resolve()
    assert configs_first.resolve().k_steps == 7


def test_single_keys_can_be_set_and_read_back() -> None:
    made = strategy()
    made.a_sync_configs["max_merge_var_num"] = 4

    assert made.a_sync_configs["max_merge_var_num"] == 4
    assert made.a_sync_configs["send_queue_size"] is None
    assert made.resolve().max_merge_var_num == 4


def test_k_steps_without_a_sync_is_refused() -> None:
    with pytest.raises(StrategyError, match="GEO needs a_sync = True") as caught:
        strategy(False, k_steps=10).resolve()

    assert caught.value.key == "k_steps"


@pytest.mark.parametrize("key", ["k_stepz", "max_merge"])
def test_an_unknown_key_names_the_nearest(key: str) -> None:
    nearest = {"k_stepz": "k_steps", "max_merge": "max_merge_var_num"}[key]
    says = rf"^strategy a_sync_configs\['{key}'\]: unknown; did you mean '{nearest}'\?$"
    with pytest.raises(StrategyError, match=says):
        strategy(True, **{key: 1})


def test_an_unknown_attribute_names_the_nearest() -> None:
    with pytest.raises(StrategyError, match=r"^strategy a_sinc: .* did you mean 'a_sync'"):
        DistributedStrategy().a_sinc = True


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("k_steps", -1),
        ("k_steps", 1.5),
        ("k_steps", True),
        ("send_queue_size", 0),
        ("geo_merge", "median"),
        ("async_rate", "half"),
        ("fresh_steps", -1),
        ("independent_recv_thread", 1),
        ("runtime_split_send_recv", True),
        ("launch_barrier", False),
        ("heter_worker_device_guard", "gpu"),
        ("lr_decay_steps", 20),
        ("use_ps_gpu", 2),
        ("use_gpu_graph", 1),
    ],
)
def test_a_value_that_cannot_work_is_refused_by_name(key: str, value: object) -> None:
    with pytest.raises(StrategyError) as caught:
        strategy(True, **{key: value})

    assert caught.value.key == key


@pytest.mark.parametrize(
    ("a_sync", "configs"),
    [
        (False, {"send_queue_size": 4}),
        (False, {"max_staleness": 1}),
        (False, {"fresh_steps": 0}),
        (True, {"k_steps": 5, "max_merge_var_num": 2}),
        (True, {"geo_merge": "average"}),
        (True, {"k_steps": 5, "async_rate": "full"}),
    ],
)
def test_a_key_without_effect_in_the_mode_is_refused(
    a_sync: bool, configs: dict[str, Any]
) -> None:
    with pytest.raises(StrategyError, match="has no effect in"):
        strategy(a_sync, **configs).resolve()


@pytest.mark.parametrize("name", sorted(NOT_HERE))
def test_what_is_not_here_is_refused_when_switched_on(name: str) -> None:
    made = DistributedStrategy()

    assert not getattr(made, name)
    with pytest.raises(StrategyError, match="not supported"):
        setattr(made, name, {"x": 1})


def test_asking_for_a_key_that_was_not_set_is_no_mistake() -> None:
    made = strategy(True, k_steps=3)

    assert "k_steps" in made.a_sync_configs
    assert "send_queue_size" not in made.a_sync_configs
    assert "anything" not in made.a_sync_configs


def test_a_staleness_bound_takes_several_pushes_at_once() -> None:
    assert strategy(True, max_staleness=2).resolve().thread_pool_size is None
    assert strategy(True, max_staleness=2, thread_pool_size=2).resolve().max_staleness == 2


def test_defaults_may_be_written_out() -> None:
    defaults = {key: known.default for key, known in _KEYS.items() if known.default is not None}

    assert strategy(True, **defaults).resolve().name == "async"


@pytest.mark.parametrize("value", [1, None, "yes"])
def test_a_sync_takes_only_booleans(value: object) -> None:
    with pytest.raises(StrategyError):
        DistributedStrategy().a_sync = value  # type: ignore[assignment]  # the mistake under test


def test_a_sync_configs_takes_only_a_dict() -> None:
    with pytest.raises(StrategyError):
        DistributedStrategy().a_sync_configs = 5  # type: ignore[assignment]  # the mistake under test


@pytest.mark.parametrize("a_sync", [True, False])
@pytest.mark.parametrize("wire", WIRE_DTYPES)
def test_every_mode_takes_every_wire_dtype(a_sync: bool, wire: str) -> None:
    assert strategy(a_sync, wire_dtype=wire).resolve().wire_dtype == wire


def test_an_unknown_wire_dtype_names_the_choices() -> None:
    rule = "must be 'float32' or 'float16' or 'bfloat16' or 'int8' or 'float8_e4m3'"
    with pytest.raises(StrategyError, match=rule):
        strategy(wire_dtype="bf16")


def collective(**values: Any) -> DistributedStrategy:
    made = DistributedStrategy()
    for name, value in values.items():
        setattr(made, name, value)
    return made


def test_a_feature_has_all_its_keys() -> None:
    made = collective(gradient_merge_configs={"k_steps": 4}, gradient_merge=True)

    mode = made.resolve_collective()

    assert dict(mode.features["gradient_merge"]) == {"k_steps": 4, "avg": True}
    assert made.gradient_merge
    assert not made.amp
    assert mode.fuse_grad_size_in_MB == 32


def test_defaults_of_features_may_be_written_out() -> None:
    for flag, keys in FEATURES.items():
        defaults = {key: known.default for key, known in keys.items()}
        mode = collective(**{flag: True, f"{flag}_configs": defaults}).resolve_collective()
        assert dict(mode.features[flag]) == defaults


@pytest.mark.parametrize(
    ("flag", "key", "value", "rule"),
    [
        ("gradient_merge", "k_steps", 0, "at least 1"),
        ("gradient_merge", "k_step", 2, "did you mean 'k_steps'"),
        ("amp", "dtype", "float8", "'float16' or 'bfloat16'"),
        ("amp", "incr_ratio", 1.0, "above 1.0"),
        ("amp", "decr_ratio", 1.5, "at most 1.0"),
        ("amp", "use_dynamic_loss_scaling", 1, "must be True or False"),
        ("dgc", "sparsity", 0.9, "must be a list"),
        ("dgc", "sparsity", ["0.9"], "each member must be a number"),
        ("lars", "exclude_from_weight_decay", [1], "each member must be text"),
        ("sharding", "stage", 1, "no stage 1"),
    ],
)
def test_a_features_key_is_checked(flag: str, key: str, value: object, rule: str) -> None:
    with pytest.raises(StrategyError, match=rule) as caught:
        collective(**{f"{flag}_configs": {key: value}})

    assert flag in caught.value.key


@pytest.mark.parametrize("name", ["amp", "sharding", "fuse_grad_size_in_MB"])
def test_what_is_collective_has_no_effect_with_servers(name: str) -> None:
    value = 8 if name == "fuse_grad_size_in_MB" else True

    with pytest.raises(StrategyError, match=rf"{name}.*is_collective = False"):
        collective(**{name: value}).resolve()


@pytest.mark.parametrize(
    ("name", "value"), [("a_sync", True), ("a_sync_configs", {"k_steps": 3})]
)
def test_what_is_of_servers_has_no_effect_in_collective_mode(name: str, value: object) -> None:
    with pytest.raises(StrategyError, match="is_collective = True"):
        collective(**{name: value}).resolve_collective()


def test_keys_without_their_feature_are_refused() -> None:
    with pytest.raises(StrategyError, match=r"amp_configs.*amp = False"):
        collective(amp_configs={"dtype": "bfloat16"}).resolve_collective()


@pytest.mark.parametrize("pair", sorted(map(sorted, CLASHES)))
def test_features_that_do_not_go_together_are_both_named(pair: list[str]) -> None:
    others = {"fuse_grad_size_in_MB": 8, "loss_reduction": "sum"}
    values = {name: others.get(name, True) for name in pair}

    with pytest.raises(StrategyError) as caught:
        collective(**values).resolve_collective()

    assert all(name in str(caught.value) for name in pair)


def test_passes_on_a_device_are_a_mode_of_async_alone() -> None:
    assert strategy(True, use_ps_gpu=1).resolve().name == "gpubox"
    with pytest.raises(StrategyError, match="needs a_sync = True, and no k_steps"):
        strategy(False, use_ps_gpu=1).resolve()
    with pytest.raises(StrategyError, match="needs a_sync = True, and no k_steps"):
        strategy(True, use_ps_gpu=1, k_steps=3).resolve()
    with pytest.raises(StrategyError, match="no effect in gpubox mode"):
        strategy(True, use_ps_gpu=1, max_staleness=3).resolve()


def test_losses_may_be_sums_where_workers_take_a_step_together() -> None:
    summing = strategy(False)
    assert summing.resolve().loss_reduction == "mean"
    summing.loss_reduction = "sum"
    assert summing.resolve().loss_reduction == "sum"
    assert collective(loss_reduction="sum").resolve_collective().loss_reduction == "sum"
    summing.a_sync = True
    with pytest.raises(StrategyError, match="has no effect in async mode"):
        summing.resolve()
    with pytest.raises(StrategyError, match="must be 'mean' or 'sum'"):
        summing.loss_reduction = "average"


def test_only_sync_goes_on_without_a_worker() -> None:
    shrinking = strategy(False)
    assert shrinking.resolve().on_worker_loss == "wait"
    shrinking.on_worker_loss = "shrink"
    assert shrinking.resolve().on_worker_loss == "shrink"
    with pytest.raises(StrategyError, match="on_worker_loss"):
        shrinking.resolve_collective()
    shrinking.a_sync = True
    with pytest.raises(StrategyError, match="doesn't go with async mode"):
        shrinking.resolve()
    with pytest.raises(StrategyError, match="on_worker_loss"):
        shrinking.on_worker_loss = "hope"
