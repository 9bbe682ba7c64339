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
from paramfleet_shared.discovery.orders import CheckpointOrder, LoadOrder, Orders, ShrinkOrder

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
        lambda orders, of: operator_actions.load(orders, of, dirname="/kept", patience_s=1.0),
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


def test_rows_go_where_one_worker_can_remove_them_and_are_counted_elsewhere() -> None:
    first = operator_actions.shrink(NONE, job("async"), table="", dry_run=False)
    second = operator_actions.shrink(first, job("sync"), table="ads", dry_run=True)
    operator_actions.shrink(second, job("geo"), table="", dry_run=False)

    assert first.shrink == ShrinkOrder(number=1, table="", dry_run=False)
    assert second.shrink == ShrinkOrder(number=2, table="ads", dry_run=True)
    assert Orders.from_json(second.to_json()) == second
    with pytest.raises(ActionRefusedError, match="set every_steps"):
        operator_actions.shrink(NONE, job("sync"), table="", dry_run=False)
    with pytest.raises(ActionRefusedError, match="rows are evicted in async, geo, sync"):
        operator_actions.shrink(NONE, job("gpubox"), table="", dry_run=True)
    left = job("async", training=frozenset({1}))
    with pytest.raises(ActionRefusedError, match="worker 0"):
        operator_actions.shrink(NONE, left, table="", dry_run=True)
    with pytest.raises(SettingRefusedError, match="table"):
        operator_actions.shrink(NONE, job("async"), table="a\nb", dry_run=True)


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
        {"lr": 10**400},
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
        load=LoadOrder(number=2, dirname="s3://kept/one", patience_s=2.5),
    )

    assert Orders.from_json(orders.to_json()) == orders
    assert Orders.from_json(Orders().to_json()) == Orders()
    assert replace(orders, version=0).to_json() != orders.to_json()


def load(orders: Orders = NONE, dirname: str = "/kept/one", **more: Any) -> Orders:
    options = {"patience_s": 60.0, "of": job(), **more}
    return operator_actions.load(orders, options.pop("of"), dirname=dirname, **options)


@pytest.mark.parametrize("mode", ["sync", "async", "geo", "localsgd"])
def test_one_load_at_a_time_is_asked_for_and_each_has_a_number_of_its_own(mode: str) -> None:
    first = load(of=job(mode))
    assert first.load == LoadOrder(number=1, dirname="/kept/one", patience_s=60.0)
    assert first.version == 1
    for known in (0, 1):
        with pytest.raises(ActionRefusedError, match="the load of /kept/one is on its way"):
            load(first, of=job(mode, known_load=known))

    second = load(first, "s3://kept/two", of=job(mode, known_load=1, ended_load=1))
    assert second.load == LoadOrder(number=2, dirname="s3://kept/two", patience_s=60.0)


def test_a_load_that_the_registry_has_forgotten_gives_its_number_to_no_other() -> None:
    assert load(of=job(known_load=4, ended_load=4)).load == LoadOrder(
        number=5, dirname="/kept/one", patience_s=60.0
    )


def test_while_a_load_is_on_its_way_no_worker_is_held_or_leaves() -> None:
    loading = load()

    with pytest.raises(ActionRefusedError, match="pause is refused in mode geo: the load"):
        operator_actions.pause(loading, job())
    with pytest.raises(ActionRefusedError, match="drain is refused in mode geo: the load"):
        operator_actions.drain(loading, job(), rank=1)
    ended = job(known_load=1, ended_load=1)
    assert operator_actions.pause(loading, ended).paused
    assert operator_actions.drain(loading, ended, rank=1).drained == (1,)
    assert operator_actions.end(loading, job()).ends


@pytest.mark.parametrize(
    ("of", "orders", "reason"),
    [
        (job("gpubox"), NONE, "there are loads in async, geo, localsgd, sync"),
        (job(may_replace=True), NONE, "may join, leave or be started again"),
        (job(training=frozenset({1})), NONE, "worker 0, which reads the checkpoint"),
        (job(), Orders(version=1, paused=True), "resume it first"),
    ],
)
def test_where_workers_can_not_come_together_a_load_is_refused(
    of: Standing, orders: Orders, reason: str
) -> None:
    with pytest.raises(ActionRefusedError, match=reason):
        load(orders, of=of)


@pytest.mark.parametrize("dirname", ["", "kept/one", "../one", "/a\n", "/" + "a" * 4096])
def test_a_load_names_a_whole_path(dirname: str) -> None:
    with pytest.raises(SettingRefusedError, match="an absolute path or an address"):
        load(dirname=dirname)


@pytest.mark.parametrize("patience_s", [0.0, -1.0, float("nan"), float("inf")])
def test_a_load_has_a_time_that_ends(patience_s: float) -> None:
    with pytest.raises(SettingRefusedError, match="seconds above 0"):
        load(patience_s=patience_s)


LIVING = {("worker", 0): 3, ("pserver", 1): 5}


def hurt(orders: Orders, asked: dict[str, Any], **more: Any) -> Orders:
    options = {"living": LIVING, "may": True, "of": job(), **more}
    return operator_actions.chaos(orders, options.pop("of"), asked=asked, **options)


def test_a_process_is_hurt_in_its_present_incarnation() -> None:
    once = hurt(NONE, {"action": "kill", "target": "pserver:1"})
    twice = hurt(once, {"action": "kill", "target": "pserver:1"}, living={("pserver", 1): 6})

    assert [(each.number, each.incarnation) for each in twice.hurts] == [(1, 5), (2, 6)]
    assert (once.version, twice.version) == (1, 2)


@pytest.mark.parametrize("target", ["coordinator", "redis"])
def test_what_is_no_member_has_no_incarnation(target: str) -> None:
    (only,) = hurt(NONE, {"action": "kill", "target": target}).hurts

    assert (only.role, only.incarnation) == (target, 0)


@pytest.mark.parametrize("target", ["coordinator:7", "redis:1", "pserver:0", "worker:1"])
def test_only_what_there_is_can_be_hurt(target: str) -> None:
    with pytest.raises(ActionRefusedError, match=f"no living process is {target}"):
        hurt(NONE, {"action": "kill", "target": target})


def test_only_the_latest_hurts_are_kept() -> None:
    orders = NONE
    for _ in range(40):
        orders = hurt(orders, {"action": "kill", "target": "worker:0"})

    assert [each.number for each in orders.hurts] == list(range(25, 41))


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"may": False}, "paramfleet launch --chaos"),
        ({"of": job(state="finished")}, "it is finished"),
        ({"of": job(state="failed")}, "it is failed"),
        ({"living": {}}, "no living process is worker:0"),
    ],
)
def test_who_can_not_be_hurt_is_named(more: dict[str, Any], reason: str) -> None:
    with pytest.raises(ActionRefusedError, match=f"^chaos is refused: .*{reason}"):
        hurt(NONE, {"action": "kill", "target": "worker:0"}, **more)


def test_what_can_not_be_done_is_named() -> None:
    with pytest.raises(SettingRefusedError, match=r"target = worker.*a process, as pserver:0"):
        hurt(NONE, {"action": "full", "target": "worker:0"})
