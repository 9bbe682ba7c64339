"""From settings to what one machine starts."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paramfleet_worker.app.launch.planning import LaunchPlan, NotMyJobError, plan_launch
from paramfleet_worker.config import LaunchSettings
from paramfleet_worker.core.events import ProcessName
from paramfleet_worker.core.topology import TopologyError
from paramfleet_worker.process.ports import PortReservations

SEVERAL = {
    "servers": "127.0.0.1:6000,127.0.0.2:6000",
    "workers": "127.0.0.1,127.0.0.2",
    "coordinator": "127.0.0.1:7000",
    "redis": "redis://127.0.0.1:1/0",  # nothing listens on port 1
}


@pytest.fixture
def reservations() -> Iterator[PortReservations]:
    with PortReservations() as held:
        yield held


def plan(reservations: PortReservations, *, pod_ip: str = "", **settings: Any) -> LaunchPlan:
    return plan_launch(
        LaunchSettings(**{"job": "default", **settings}),
        script=("train.py", "--epochs=3"),
        pod_ip=pod_ip,
        reservations=reservations,
    )


def labels(planned: LaunchPlan) -> list[str]:
    return [name.label for name in planned.names]


def test_a_local_job_starts_everything_on_loopback_ports(
    reservations: PortReservations,
) -> None:
    planned = plan(reservations, server_num=1, worker_num=2)

    assert labels(planned) == ["coordinator 0", "pserver 0", "worker 0", "worker 1"]
    assert planned.alone
    assert planned.redis is None, "it gets a Unix socket in the job's folder"
    assert planned.facts.redis == ""
    assert planned.folder_name == "default"
    assert planned.facts.topology.hosts == {"127.0.0.1"}


def test_each_of_several_machines_starts_its_part_and_the_redis_that_is_its_own(
    reservations: PortReservations,
) -> None:
    first = plan(reservations, host_ip="127.0.0.1", **SEVERAL)
    second = plan(reservations, pod_ip="127.0.0.2", **SEVERAL)

    assert labels(first) == ["coordinator 0", "pserver 0", "worker 0"]
    assert labels(second) == ["pserver 1", "worker 1"]
    assert first.redis is not None
    assert second.redis is None
    assert not first.alone
    assert (first.folder_name, second.folder_name) == ("default", "default@127.0.0.2")


def test_without_an_own_address_the_interfaces_decide(reservations: PortReservations) -> None:
    planned = plan(reservations, **SEVERAL)

    assert len(planned.names) == 5
    assert planned.alone


def test_a_machine_without_a_part_is_told_so(reservations: PortReservations) -> None:
    with pytest.raises(NotMyJobError, match=r"this machine is 127\.0\.0\.3") as caught:
        plan(reservations, host_ip="127.0.0.3", **SEVERAL)

    assert caught.value.facts["hosts"] == ["127.0.0.1", "127.0.0.2"]


def test_a_number_that_contradicts_the_addresses_is_refused(
    reservations: PortReservations,
) -> None:
    with pytest.raises(TopologyError, match="--worker_num='3': the list of addresses has 2"):
        plan(reservations, worker_num=3, **SEVERAL)
    assert plan(reservations, worker_num=2, **SEVERAL).alone


def test_a_redis_that_cannot_be_started_is_left_to_others(
    reservations: PortReservations,
) -> None:
    assert plan(reservations, redis="unix:///run/redis.sock").redis is None


def test_pservers_and_workers_run_the_script_and_the_coordinator_knows_the_sizes(
    reservations: PortReservations,
) -> None:
    planned = plan(reservations, server_num=1, worker_num=2)

    script = planned.command_of(ProcessName("pserver", 0), {})
    coordinator = planned.command_of(ProcessName("coordinator", 0), {})

    assert script == [sys.executable, "train.py", "--epochs=3"]
    assert coordinator[1:6] == [
        "-P",
        "-m",
        "paramfleet_coordinator",
        "--worker-num=2",
        "--server-num=1",
    ]


def test_a_pserver_is_started_again_with_what_the_script_gave_it_unless_the_script_is_wanted(
    reservations: PortReservations,
) -> None:
    given = {"host": "127.0.0.1", "checkpoint_dirs": "/a:/b"}

    command = plan(reservations, data_dir="data").command_of_server(given)

    assert command == [
        sys.executable, "-P", "-m", "paramfleet_pserver",
        "--checkpoint-dirs=/a:/b", "--host=127.0.0.1",
    ]  # fmt: skip
    assert plan(reservations, data_dir="data").keeps_arguments
    assert not plan(reservations, data_dir="data", rerun_script=True).keeps_arguments
    assert not plan(reservations, data_dir="data", max_restarts=0).keeps_arguments
    assert not plan(reservations).keeps_arguments


@pytest.mark.parametrize(("servers", "shards"), [(8, []), (9, ["--num-shards=9"])])
def test_a_job_of_many_pservers_gets_a_shard_for_each(
    reservations: PortReservations, servers: int, shards: list[str]
) -> None:
    planned = plan(reservations, server_num=servers, worker_num=1)

    command = planned.command_of(ProcessName("coordinator", 0), {})

    assert [word for word in command if "shards" in word] == shards


def test_a_number_of_shards_that_the_user_chose_is_not_overruled(
    reservations: PortReservations, tmp_path: Path
) -> None:
    planned = plan(reservations, server_num=9, worker_num=1)
    file = tmp_path / "fleet.toml"
    file.write_text("[coordinator]\nnum_shards = 32\n", encoding="utf-8")

    for chosen in (
        {"PARAMFLEET_COORDINATOR__NUM_SHARDS": "64"},
        {"PARAMFLEET_CONFIG": str(file)},
    ):
        command = planned.command_of(ProcessName("coordinator", 0), chosen)
        assert not [word for word in command if "shards" in word]


def test_logs_have_the_names_that_fleet_users_know(
    reservations: PortReservations, tmp_path: Path
) -> None:
    planned = plan(reservations, log_dir=tmp_path)

    names = [planned.log_of(name).name for name in planned.names]

    assert names == ["coordinatorlog.0", "serverlog.0", "workerlog.0"]
    assert planned.log_of(ProcessName("worker", 3)) == tmp_path / "workerlog.3"


def test_each_worker_beside_pservers_sees_its_own_gpu(reservations: PortReservations) -> None:
    planned = plan(reservations, server_num=2, gpus="1,3")

    seen = {
        name.label: planned.environment_of(name, {})["CUDA_VISIBLE_DEVICES"]
        for name in planned.names
    }

    assert seen == {
        "coordinator 0": "",
        "pserver 0": "",
        "pserver 1": "",
        "worker 0": "1",
        "worker 1": "3",
    }


def test_a_machine_has_as_many_gpus_as_workers(reservations: PortReservations) -> None:
    with pytest.raises(TopologyError, match="this machine has 2 workers of the job"):
        plan(reservations, gpus="0", **SEVERAL)


def test_the_environment_adds_to_what_is_inherited(reservations: PortReservations) -> None:
    planned = plan(reservations)

    found = planned.environment_of(ProcessName("worker", 0), {"HOME": "/root", "POD_IP": "x"})

    assert found["HOME"] == "/root"
    assert found["POD_IP"] == "127.0.0.1"
    assert found["OMP_NUM_THREADS"].isdigit()


def test_the_folders_of_checkpoints_are_handed_on_as_absolute_paths(
    reservations: PortReservations, tmp_path: Path
) -> None:
    planned = plan(reservations, checkpoint_dirs=f"kept{os.pathsep}{tmp_path}")
    for name in planned.names:
        given = planned.environment_of(name, {})["PARAMFLEET_CHECKPOINT_DIRS"]
        own = Path.cwd() / "checkpoints"  # where an operator's go
        assert given == os.pathsep.join(map(str, (Path.cwd() / "kept", tmp_path, own)))

    planned = plan(reservations)
    server = planned.names[1]
    assert "PARAMFLEET_CHECKPOINT_DIRS" not in planned.environment_of(server, {})
    inherited = {"PARAMFLEET_COORDINATOR__CHECKPOINT_DIR": str(tmp_path)}
    given = planned.environment_of(server, inherited)["PARAMFLEET_CHECKPOINT_DIRS"]
    assert given == f"{Path.cwd()}{os.pathsep}{tmp_path}"
    inherited["PARAMFLEET_CHECKPOINT_DIRS"] = "/elsewhere"
    given = planned.environment_of(server, inherited)["PARAMFLEET_CHECKPOINT_DIRS"]
    assert given == f"/elsewhere{os.pathsep}{tmp_path}"


def test_pservers_with_a_data_folder_know_it_their_index_and_how_to_write(
    reservations: PortReservations, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    planned = plan(reservations, server_num=2, data_dir="data", durability="sync")
    names = [f"PARAMFLEET_PSERVER__{name}" for name in ("DATA_DIR", "DURABILITY", "INDEX")]

    found = {
        name.label: [planned.environment_of(name, {}).get(each) for each in names]
        for name in planned.names
    }

    where = str(tmp_path / "data")
    assert found["pserver 0"] == [where, "sync", "0"]
    assert found["pserver 1"] == [where, "sync", "1"]
    assert found["worker 0"] == found["coordinator 0"] == [None] * 3
    assert planned.restarts == 3


def test_without_a_data_folder_pservers_get_none_of_it(reservations: PortReservations) -> None:
    planned = plan(reservations)

    environment = planned.environment_of(ProcessName("pserver", 0), {})

    assert not [name for name in environment if name.startswith("PARAMFLEET_PSERVER__")]
    assert planned.restarts == 0


def test_a_job_that_can_be_scaled_starts_some_processes_for_more_groups(
    reservations: PortReservations,
) -> None:
    planned = plan(reservations, server_num="2:4", worker_num=1, replicas=1)

    assert labels(planned) == ["coordinator 0", "pserver 0", "pserver 1", "worker 0"]
    assert planned.alone
    assert len(planned.facts.topology.servers) == 4, "those that come later have a place"
    command = planned.command_of(ProcessName("coordinator", 0), {})
    assert {"--server-num=4", "--server-processes=2", "--replicas=1"} <= set(command)
    environment = planned.environment_of(ProcessName("pserver", 3), {})
    assert environment["PARAMFLEET_PSERVER__HOSTING"] == "planned"
    assert environment["PARAMFLEET_PSERVER__INDEX"] == "3"


def test_a_plain_number_of_pservers_is_as_before(reservations: PortReservations) -> None:
    planned = plan(reservations, server_num=2, worker_num=1)

    command = planned.command_of(ProcessName("coordinator", 0), {})
    assert "--server-num=2" in command
    assert not any("processes" in word or "replicas" in word for word in command)
    environment = planned.environment_of(ProcessName("pserver", 0), {})
    assert "PARAMFLEET_PSERVER__HOSTING" not in environment
