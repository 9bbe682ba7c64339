"""What an operator may ask of a job, in every mode and state."""

from dataclasses import replace
from typing import Any

import pytest

from paramfleet_coordinator.core import operator_actions
from paramfleet_coordinator.core.operator_actions import (
    ActionRefusedError,
    SettingRefusedError,
    Standing,
)
from paramfleet_shared.discovery.orders import CheckpointOrder, Orders

NONE = Orders()
HAD = {"lr": 0.1, "k_steps": 4, "max_staleness": None}


def job(mode: str | None = "geo", state: str = "training", **more: Any) -> Standing:
    fields = {"training": frozenset({0, 1, 2}), "settings": HAD, **more}
    return Standing(state=state, mode=mode, **fields)


def test_a_pause_and_its_end_are_new_versions() -> None:
    paused = operator_actions.pause(NONE, job())
    resumed = operator_actions.resume(paused, job())

    assert paused == Orders(version=1, paused=True)
    assert resumed == Orders(version=2)


def test_what_holds_already_makes_no_version() -> None:
    ends = operator_actions.end(operator_actions.drain(NONE, job(), rank=1), job())

    assert operator_actions.resume(NONE, job()) is NONE
    assert operator_actions.end(ends, job()) is ends
    assert (
        operator_actions.drain(
            operator_actions.drain(NONE, job(), rank=1), job(), rank=1
        ).version
        == 1
    )


def test_a_version_is_newer_than_any_that_a_member_knows() -> None:
    """The registry and the coordinator may have forgotten what the members still know."""
    assert operator_actions.pause(NONE, job(newest=7)).version == 8


@pytest.mark.parametrize(
    "act",
    [
        operator_actions.pause,
        operator_actions.resume,
        operator_actions.end,
        lambda orders, of: operator_actions.checkpoint(orders, of, folder="f", name=None),
        lambda orders, of: operator_actions.drain(orders, of, rank=1),
        lambda orders, of: operator_actions.change(orders, of, {"lr": 0.5}),
    ],
)
def test_only_a_training_job_can_be_steered(act: Any) -> None:
    for state in ("waiting", "finished", "failed"):
        with pytest.raises(ActionRefusedError, match=f"in mode geo: it is {state}"):
            act(NONE, job(state=state))
    with pytest.raises(ActionRefusedError, match="before the training"):
        act(NONE, job(mode=None))
    if act is not operator_actions.end:
        with pytest.raises(ActionRefusedError, match="it ends"):
            act(Orders(version=1, ends=True), job())


def test_checkpoints_are_counted_and_named() -> None:
    first = operator_actions.checkpoint(NONE, job(), folder="kept", name=None)
    second = operator_actions.checkpoint(first, job(), folder="kept", name="day-3")

    assert first.checkpoint == CheckpointOrder(number=1, dirname="kept/operator-1")
    assert second.checkpoint == CheckpointOrder(number=2, dirname="kept/day-3")
    for name in ("", ".", "../x", "a/b", "a" * 129, "ä"):
        with pytest.raises(SettingRefusedError, match="plain folder name"):
            operator_actions.checkpoint(NONE, job(), folder="kept", name=name)
    with pytest.raises(ActionRefusedError, match="worker 0"):
        operator_actions.checkpoint(
            NONE, job(training=frozenset({1})), folder="kept", name=None
        )


def test_a_worker_is_drained_where_the_others_can_go_on() -> None:
    assert operator_actions.drain(NONE, job("async"), rank=2).drained == (2,)
    with pytest.raises(ActionRefusedError, match="in mode sync: a step is one of all"):
        operator_actions.drain(NONE, job("sync"), rank=1)
    with pytest.raises(ActionRefusedError, match="worker 0 saves"):
        operator_actions.drain(NONE, job(), rank=0)
    with pytest.raises(ActionRefusedError, match="worker 3 doesn't train"):
        operator_actions.drain(NONE, job(), rank=3)
    with pytest.raises(ActionRefusedError, match="worker 1 is the last"):
        operator_actions.drain(NONE, job(training=frozenset({1})), rank=1)


@pytest.mark.parametrize(
    ("mode", "wanted"),
    [
        ("sync", {"lr": 0.5}),
        ("async", {"lr": 1, "max_staleness": 3}),
        ("async", {"max_staleness": None}),
        ("geo", {"lr": 0.5, "k_steps": 9}),
    ],
)
def test_a_setting_is_changed_where_it_means_something(mode: str, wanted: Any) -> None:
    assert operator_actions.change(NONE, job(mode), wanted) == Orders(
        version=1, settings=wanted
    )


def test_settings_add_up() -> None:
    first = operator_actions.change(NONE, job(), {"lr": 0.5})

    assert operator_actions.change(first, job(), {"k_steps": 2}).settings == {
        "lr": 0.5,
        "k_steps": 2,
    }


@pytest.mark.parametrize(
    ("mode", "name"),
    [
        ("sync", "k_steps"),
        ("async", "k_steps"),
        ("sync", "max_staleness"),
        ("geo", "max_staleness"),
    ],
)
def test_a_setting_of_another_mode_is_refused_with_both_names(mode: str, name: str) -> None:
    with pytest.raises(ActionRefusedError, match=f"change of {name} .* in mode {mode}: only"):
        operator_actions.change(NONE, job(mode), {name: 3})


@pytest.mark.parametrize(
    "wanted",
    [
        {},
        {"momentum": 1},
        {"lr": 0},
        {"lr": -1.0},
        {"lr": float("nan")},
        {"lr": 1e7},
        {"lr": True},
        {"lr": "0.1"},
        {"lr": None},
        {"k_steps": 0},
        {"k_steps": 2.5},
        {"k_steps": True},
        {"k_steps": 1 << 31},
        {"max_staleness": -1},
        {"max_staleness": "none"},
    ],
)
def test_a_wrong_value_changes_nothing(wanted: Any) -> None:
    for mode in ("sync", "async", "geo"):
        with pytest.raises(SettingRefusedError):
            operator_actions.change(NONE, job(mode), wanted)


def test_one_rate_for_groups_that_have_several_is_refused() -> None:
    with pytest.raises(ActionRefusedError, match="different rates"):
        operator_actions.change(NONE, job(settings={**HAD, "lr": None}), {"lr": 0.5})


def test_orders_survive_the_registry() -> None:
    orders = Orders(
        version=9,
        paused=True,
        ends=True,
        drained=(1, 4),
        settings={"lr": 0.5, "max_staleness": None},
        checkpoint=CheckpointOrder(number=3, dirname="a/b"),
    )

    assert Orders.from_json(orders.to_json()) == orders
    assert Orders.from_json(Orders().to_json()) == Orders()
    assert replace(orders, version=0).to_json() != orders.to_json()
