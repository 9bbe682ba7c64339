"""What an operator may ask for that hurts a process, and what it does to calls."""

from typing import Any

import pytest

from paramfleet_shared.discovery.orders import Orders
from paramfleet_shared.settings.config import SettingError
from paramfleet_shared.settings.hurts import ACTIONS, Broken, Hurt, NetworkHurts, read_hurt


@pytest.mark.parametrize(
    ("asked", "hurt"),
    [
        ({"action": "kill", "target": "redis"}, Hurt(action="kill", role="redis")),
        (
            {"action": "kill", "target": "pserver:1", "at": "after_apply_before_log:3"},
            Hurt(action="kill", role="pserver", index=1, point="after_apply_before_log", nth=3),
        ),
        (
            {"action": "stop", "target": "worker:2", "for": 1.5},
            Hurt(action="stop", role="worker", index=2, for_s=1.5),
        ),
        (
            {"action": "full", "target": "pserver"},
            Hurt(action="full", role="pserver", point="before_write", for_s=8.0),
        ),
        (
            {"action": "slow", "target": "coordinator"},
            Hurt(action="slow", role="coordinator", by=5.0, for_s=8.0),
        ),
        (
            {"action": "clock", "target": "pserver:0", "by": -60},
            Hurt(action="clock", role="pserver", by=-60.0),
        ),
        (
            {"action": "drop", "target": "pserver:1", "peer": "worker:0", "rate": 0.5},
            Hurt(action="drop", role="worker", peer="pserver:1", rate=0.5, for_s=8.0),
        ),
        (
            {"action": "partition", "target": "coordinator", "peer": "registry"},
            Hurt(action="partition", role="coordinator", peer="registry", for_s=8.0),
        ),
        (
            {"action": "partition", "target": "coordinator", "peer": "pserver:1"},
            Hurt(action="partition", role="pserver", index=1, peer="coordinator", for_s=8.0),
        ),
    ],
)
def test_what_is_asked_for_is_read(asked: dict[str, Any], hurt: Hurt) -> None:
    assert read_hurt(asked) == hurt
    assert Hurt.from_facts({**hurt.facts(), "of_later_versions": 1}) == hurt
    orders = Orders(version=3, hurts=(hurt,))
    assert Orders.from_json(orders.to_json()) == orders


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ({"action": "melt", "target": "worker:1"}, "action"),
        ({"action": "kill"}, "target"),
        ({"action": "kill", "target": "worker:x"}, "target"),
        ({"action": "kill", "target": 7}, "target"),
        ({"action": "full", "target": "worker:1"}, "target"),
        ({"action": "clock", "target": "redis"}, "target"),
        ({"action": "kill", "target": "worker:1", "peer": "pserver:0"}, "peer"),
        ({"action": "drop", "target": "worker:1", "peer": "worker:0"}, "peer"),
        ({"action": "drop", "target": "worker:1", "peer": "pserver:0:1"}, "peer"),
        ({"action": "kill", "target": "worker:1", "at": "before_write"}, "at"),
        ({"action": "kill", "target": "pserver:1", "at": "before_write:0"}, "at"),
        ({"action": "full", "target": "pserver:1", "at": "before_apply"}, "at"),
        ({"action": "kill", "target": "worker:1", "for": 3}, "for"),
        ({"action": "stop", "target": "worker:1", "for": -3}, "for"),
        ({"action": "stop", "target": "worker:1", "for": float("nan")}, "for"),
        ({"action": "stop", "target": "worker:1", "for": True}, "for"),
        ({"action": "stop", "target": "worker:1", "rate": 0.5}, "rate"),
        ({"action": "drop", "target": "worker:1", "rate": 1.5}, "rate"),
        ({"action": "drop", "target": "worker:1", "for": 10**400}, "for"),
        ({"action": "slow", "target": "worker:1", "by": -(10**400)}, "by"),
        ({"action": "drop", "target": "worker:1", "by": 5}, "by"),
        ({"action": "slow", "target": "worker:1", "by": 1}, "by"),
    ],
)
def test_what_can_not_be_is_refused_by_name(asked: dict[str, Any], name: str) -> None:
    with pytest.raises(SettingError) as refused:
        read_hurt(asked)

    assert refused.value.facts["name"] == name
    assert refused.value.facts["rule"]


def hurt(action: str, peer: str = "", **more: Any) -> Hurt:
    return Hurt(action=action, role="worker", peer=peer, for_s=5.0, **more)


def test_calls_break_for_a_while_and_those_to_the_peer_alone() -> None:
    network = NetworkHurts()
    assert network.of("pserver:0", 0.0) is None

    network.add(hurt("drop", "pserver:0", rate=0.25), 1.0)

    assert network.of("pserver:0", 1.0) == Broken(drop=0.25)
    assert network.of("pserver:1", 1.0) is None
    assert network.of("pserver:0", 6.0) is None


def test_several_faults_are_there_at_once() -> None:
    network = NetworkHurts()
    for each in (
        hurt("drop", rate=0.25),
        hurt("drop", rate=0.5),
        hurt("duplicate", rate=0.125),
        hurt("delay", rate=0.5, by=20.0),
        hurt("reorder", rate=1.0, by=40.0),
        hurt("partition"),
    ):
        network.add(each, 1.0)

    assert network.of("registry", 2.0) == Broken(
        drop=0.5,
        duplicate=0.125,
        delay=0.5,
        delay_s=0.02,
        reorder=1.0,
        reorder_s=0.04,
        apart_s=4.0,
    )


def test_what_is_of_no_call_breaks_none() -> None:
    network = NetworkHurts()

    network.add(hurt("kill"), 1.0)

    assert network.of("registry", 2.0) == Broken()


def test_each_action_can_be_asked_for_without_more() -> None:
    for action, about in ACTIONS.items():
        for role in about.roles:
            assert read_hurt({"action": action, "target": role}).role == role
