"""The role environment that Fleet users know."""

from typing import Any

import pytest

from paramfleet.config.roles import (
    PaddleCloudRoleMaker,
    Rendezvous,
    Role,
    RoleError,
    UserDefinedRoleMaker,
)

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


TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}


def test_a_collective_role_is_what_torchrun_says() -> None:
    role = PaddleCloudRoleMaker(True, environment={**TORCHRUN, "LOCAL_RANK": "1"})

    assert (role.collective, role.index, role.worker_num) == (True, 1, 2)
    assert role.rendezvous == Rendezvous(
        host="10.0.0.1", port=29500, keeps_store=False, local_index=1
    )


def test_only_worker_0_keeps_the_store_unless_torchruns_agent_does() -> None:
    first = {**TORCHRUN, "RANK": "0"}
    agent = {**first, "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "2"}

    own = PaddleCloudRoleMaker(True, environment=first).rendezvous
    agents = PaddleCloudRoleMaker(True, environment=agent).rendezvous

    assert own is not None
    assert own.keeps_store
    assert agents is not None
    assert (agents.keeps_store, agents.attempt) == (False, "2")


def test_without_torchrun_a_collective_worker_is_alone() -> None:
    role = PaddleCloudRoleMaker(True, environment={})

    assert (role.collective, role.distributed, role.worker_num) == (True, False, 1)


def test_workers_of_torchrun_do_not_each_train_alone() -> None:
    with pytest.raises(RoleError, match=r"WORLD_SIZE = '2'.*is_collective=True"):
        PaddleCloudRoleMaker(environment=TORCHRUN)

    assert not PaddleCloudRoleMaker(
        environment={**TORCHRUN, "RANK": "0", "WORLD_SIZE": "1"}
    ).distributed


@pytest.mark.parametrize(
    ("environment", "name"),
    [
        ({"RANK": "0"}, "WORLD_SIZE"),
        ({**TORCHRUN, "RANK": "2"}, "RANK"),
        ({**TORCHRUN, "MASTER_PORT": "x"}, "MASTER_PORT"),
        ({**TORCHRUN, "TRAINING_ROLE": "TRAINER"}, "TRAINING_ROLE"),
    ],
)
def test_a_wrong_collective_variable_is_named(environment: dict[str, str], name: str) -> None:
    with pytest.raises(RoleError, match=name) as caught:
        PaddleCloudRoleMaker(True, environment=environment)

    assert caught.value.name == name


def test_a_collective_role_may_be_stated_in_code() -> None:
    workers = ["10.0.0.1:7000", "10.0.0.1:7001", "10.0.0.2:7000", "10.0.0.2:7001"]
    role = UserDefinedRoleMaker(True, current_id=3, worker_endpoints=workers)

    assert role.rendezvous == Rendezvous(
        host="10.0.0.1", port=7000, keeps_store=False, local_index=1
    )
    assert UserDefinedRoleMaker(True, worker_num=1).rendezvous is None


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"worker_num": 2}, "worker_endpoints"),
        ({"worker_num": 2, "current_id": 2}, "current_id"),
        ({"worker_num": 2, "server_endpoints": ["a:1"]}, "server_endpoints"),
        ({"worker_num": 2, "role": Role.SERVER}, "role"),
    ],
)
def test_a_wrong_collective_role_is_named(arguments: dict[str, Any], name: str) -> None:
    with pytest.raises(RoleError) as caught:
        UserDefinedRoleMaker(True, **arguments)

    assert caught.value.name == name


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
