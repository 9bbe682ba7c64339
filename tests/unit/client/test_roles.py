"""The role environment that Fleet users know."""

from typing import Any

import pytest

from paramfleet.roles import PaddleCloudRoleMaker, Role, RoleError, UserDefinedRoleMaker

WORKER = {
    "TRAINING_ROLE": "TRAINER",
    "PADDLE_TRAINER_ID": "1",
    "PADDLE_TRAINERS_NUM": "2",
    "PADDLE_PSERVERS_IP_PORT_LIST": "10.0.0.1:7000,10.0.0.2:7000",
    "PADDLE_TRAINER_ENDPOINTS": "10.0.0.3:8000,10.0.0.4:8000",
}
SERVER = {
    "TRAINING_ROLE": "PSERVER",
    "POD_IP": "10.0.0.2",
    "PADDLE_PORT": "7000",
    "PADDLE_TRAINERS_NUM": "2",
    "PADDLE_PSERVERS_IP_PORT_LIST": "10.0.0.1:7000,10.0.0.2:7000",
}


def test_without_an_environment_the_script_is_not_distributed() -> None:
    role = PaddleCloudRoleMaker(environment={})

    assert not role.distributed
    assert (role.role, role.index, role.worker_num) == (Role.WORKER, 0, 1)


def test_a_worker_reads_its_rank_and_its_peers() -> None:
    role = PaddleCloudRoleMaker(environment=WORKER)

    assert (role.role, role.index, role.worker_num) == (Role.WORKER, 1, 2)
    assert role.server_endpoints == ("10.0.0.1:7000", "10.0.0.2:7000")
    assert role.worker_endpoints == ("10.0.0.3:8000", "10.0.0.4:8000")


def test_a_worker_without_a_rank_lets_the_coordinator_choose() -> None:
    env = {key: value for key, value in WORKER.items() if key != "PADDLE_TRAINER_ID"}

    assert PaddleCloudRoleMaker(environment=env).index is None


def test_a_server_finds_its_index_by_its_address() -> None:
    role = PaddleCloudRoleMaker(environment=SERVER)

    assert (role.role, role.index, role.host, role.port) == (Role.SERVER, 1, "10.0.0.2", 7000)


@pytest.mark.parametrize(
    ("base", "change", "name"),
    [
        (WORKER, {"TRAINING_ROLE": "CHIEF"}, "TRAINING_ROLE"),
        (WORKER, {"PADDLE_TRAINER_ID": "2"}, "PADDLE_TRAINER_ID"),
        (WORKER, {"PADDLE_TRAINER_ID": "one"}, "PADDLE_TRAINER_ID"),
        (WORKER, {"PADDLE_TRAINERS_NUM": "-2"}, "PADDLE_TRAINERS_NUM"),
        (SERVER, {"PADDLE_PORT": "7001"}, "PADDLE_PSERVERS_IP_PORT_LIST"),
    ],
)
def test_a_wrong_variable_is_named(
    base: dict[str, Any], change: dict[str, Any], name: str
) -> None:
    with pytest.raises(RoleError, match=name) as caught:
        PaddleCloudRoleMaker(environment={**base, **change})

    assert caught.value.name == name


def test_collective_mode_is_refused_until_it_exists() -> None:
    with pytest.raises(RoleError, match="collective"):
        PaddleCloudRoleMaker(True, environment={})


def test_a_role_may_be_stated_in_code() -> None:
    role = UserDefinedRoleMaker(
        current_id=0, role=Role.SERVER, worker_num=3, server_endpoints=["127.0.0.1:7000"]
    )

    assert (role.role, role.index, role.port, role.worker_num) == (Role.SERVER, 0, 7000, 3)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (
            {"worker_num": 2, "worker_endpoints": ["a:1"], "server_endpoints": ["b:1"]},
            "worker_num",
        ),
        ({"worker_num": 0, "server_endpoints": ["b:1"]}, "worker_num"),
        ({"worker_num": 1}, "server_endpoints"),
        ({"worker_num": 1, "current_id": 1, "server_endpoints": ["b:1"]}, "current_id"),
        (
            {"worker_num": 1, "role": Role.SERVER, "server_endpoints": ["b"]},
            "server_endpoints",
        ),
    ],
)
def test_contradictions_in_code_are_named(arguments: dict[str, Any], name: str) -> None:
    with pytest.raises(RoleError) as caught:
        UserDefinedRoleMaker(**arguments)

    assert caught.value.name == name
