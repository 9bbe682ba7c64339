"""Settings of a launch."""

from typing import Any

import pytest

from paramfleet_shared.settings.config import SettingError, resolve
from paramfleet_worker.config import LaunchSettings


def settings(**arguments: Any) -> LaunchSettings:
    return resolve(
        LaunchSettings,
        section="launch",
        arguments=arguments,
        environment={"PARAMFLEET_LAUNCH__WORKER_NUM": "4", "PARAMFLEET_REDIS": "redis://h9"},
    ).value


def test_an_argument_wins_over_the_environment() -> None:
    assert settings().worker_num == 4
    assert settings(worker_num=2).worker_num == 2
    assert settings().redis == "redis://h9"


@pytest.mark.parametrize("name", ["server_num", "worker_num"])
def test_no_server_or_no_worker_is_no_job(name: str) -> None:
    with pytest.raises(
        SettingError, match=f"{name} = 0: must be a whole number from 1 to 65536"
    ):
        settings(**{name: 0})


@pytest.mark.parametrize(
    ("given", "clash"),
    [
        ({"gpus": "0,1"}, {"elastic": True}),
        ({"nproc_per_node": 2}, {"elastic": True}),
        ({"ips": "h1,h2"}, {"coordinator": "h1:7000"}),
        ({"gpus": "0"}, {"redis": "redis://h1"}),
        ({"gpus": "0,1"}, {"nproc_per_node": 3}),
        ({"nproc_per_node": 2}, {"open": True}),
        ({"quiet": True}, {"verbose": True}),
    ],
)
def test_options_of_both_kinds_of_job_are_both_named(
    given: dict[str, Any], clash: dict[str, Any]
) -> None:
    with pytest.raises(SettingError) as caught:
        LaunchSettings(**given, **clash)

    assert all(name in str(caught.value) for name in (*given, *clash))


def test_with_a_data_folder_what_dies_is_started_again() -> None:
    assert LaunchSettings(data_dir="data").restarts == 3
    assert LaunchSettings(data_dir="data", max_restarts=0).restarts == 0
    assert LaunchSettings(data_dir="data", max_restarts=7, durability="sync").restarts == 7
    assert LaunchSettings().restarts == LaunchSettings(gpus="0").restarts == 0
    assert LaunchSettings(gpus="0", max_restarts=2).restarts == 2


def test_workers_are_started_again_only_if_that_is_asked_for() -> None:
    servers = {"pserver", "coordinator", "redis"}
    assert LaunchSettings().restarted == set()
    assert LaunchSettings(data_dir="data").restarted == servers
    assert LaunchSettings(max_restarts=2).restarted == {"worker"}
    assert LaunchSettings(data_dir="data", max_restarts=2).restarted == servers | {"worker"}
    assert LaunchSettings(max_restarts=2, elastic=True).restarted == {"worker"}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"durability": "sync"}, "without --data_dir"),
        ({"data_dir": "d", "on": "ray"}, "left out with --on ray"),
        ({"durability": "sync", "gpus": "0"}, "without --data_dir"),
        ({"data_dir": "d", "gpus": "0"}, "left out with --gpus"),
        ({"data_dir": "d", "max_restarts": -1}, "max_restarts"),
        ({"max_restarts": 1, "on": "ray"}, "left out with --on ray"),
        ({"rerun_script": True}, "without --data_dir or --replicas"),
        ({"rerun_script": True, "data_dir": "d", "max_restarts": 0}, "with --max_restarts 0"),
        ({"ray_cpus": 2.0}, "without --on ray"),
        ({"ray_gpus": 1.0, "gpus": "0"}, "without --on ray"),
        ({"master_port": 1234}, "without --ips"),
        ({"host_ip": "10.0.0.1"}, "without --servers or --ips"),
        ({"chaos": True, "gpus": "0"}, "chaos = True: must be left out with --gpus"),
        ({"job": "ctr", "nproc_per_node": 2}, "job = 'ctr': must be left out with"),
    ],
)
def test_an_option_without_effect_is_refused_with_the_one_that_it_needs_or_excludes(
    given: dict[str, Any], words: str
) -> None:
    with pytest.raises(SettingError, match=words):
        LaunchSettings(**given)


@pytest.mark.parametrize("gpus", ["a", "0,0", "1,", "-1"])
def test_gpus_are_numbers_each_once(gpus: str) -> None:
    with pytest.raises(SettingError, match="numbers of GPUs"):
        LaunchSettings(gpus=gpus)
    with pytest.raises(SettingError, match="numbers of GPUs"):
        LaunchSettings(gpus=gpus, server_num=1)


def test_gpus_beside_pservers_are_one_for_each_worker() -> None:
    assert not LaunchSettings(gpus="0,3", server_num=1).collective
    with pytest.raises(
        SettingError, match=r"worker_num = 3: must be left out, or 2, with --gpus 0,3"
    ):
        LaunchSettings(gpus="0,3", server_num=1, worker_num=3)
    with pytest.raises(SettingError, match="--ray_gpus says how many"):
        LaunchSettings(gpus="0,3", server_num=1, on="ray")


def test_workers_without_servers_are_a_collective_job() -> None:
    assert LaunchSettings(nproc_per_node=2).collective
    assert LaunchSettings(gpus="0,3", nproc_per_node=2).collective
    assert not LaunchSettings(worker_num=2).collective
    with pytest.raises(SettingError, match="nproc_per_node = 0"):
        LaunchSettings(nproc_per_node=0)
    with pytest.raises(SettingError, match="master_port"):
        LaunchSettings(ips="h1,h2", master_port=0)


def test_the_addresses_of_several_machines_go_together() -> None:
    with pytest.raises(SettingError, match="coordinator = '': must be given"):
        settings(servers="h1:6000", workers="h1")

    both = settings(servers="h1:6000", workers="h1", coordinator="h1:7000")
    assert both.several_machines
    assert not settings().several_machines


@pytest.mark.parametrize("text", ["4:2", "0:2", "2:", ":2", "2:x", "a", "1:2:3", "2:70000"])
def test_a_range_of_pservers_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(SettingError, match="server_num"):
        LaunchSettings(server_num=text)


def test_a_range_of_pservers_is_processes_and_groups() -> None:
    given = settings(server_num="2:4")
    assert (given.process_num, given.group_num, given.is_planned) == (2, 4, True)
    plain = settings(server_num=2)
    assert (plain.process_num, plain.group_num, plain.is_planned) == (2, 2, False)
    assert settings(server_num=2, replicas=1).is_planned


def test_a_copy_needs_another_process() -> None:
    with pytest.raises(SettingError, match="a copy is in another process"):
        LaunchSettings(server_num="1:4", replicas=1)
    assert LaunchSettings(server_num=2, replicas=1).restarts == 3


def test_processes_do_not_come_and_go_on_ray() -> None:
    with pytest.raises(SettingError, match="--on ray"):
        LaunchSettings(server_num="1:4", on="ray")


@pytest.mark.parametrize(
    ("name", "number"), [("servers", "server_num"), ("workers", "worker_num")]
)
def test_a_number_in_place_of_addresses_is_answered_with_the_option_for_numbers(
    name: str, number: str
) -> None:
    with pytest.raises(SettingError, match=f"{name} = '2': must be addresses; --{number} 2"):
        settings(**{name: "2"})
