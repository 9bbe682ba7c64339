"""The variables a launched process finds."""

from paramfleet_worker.core.environment import (
    JobFacts,
    role_environment,
    runtime_environment,
)
from paramfleet_worker.core.events import ProcessName
from paramfleet_worker.core.topology import Endpoint, Host, Topology

FACTS = JobFacts(
    job="day3",
    launch="ab12",
    redis="redis://h1:6379/0",
    topology=Topology(
        servers=(Endpoint(Host("h1"), 6000), Endpoint(Host("h2"), 6001)),
        workers=(Endpoint(Host("h1"), 6170), Endpoint(Host("h2"), 6170)),
        coordinator=Endpoint(Host("h1"), 7000),
    ),
    log_dir="/job/log",
)


def test_a_worker_finds_the_names_that_fleet_users_know() -> None:
    assert role_environment(ProcessName("worker", 1), FACTS) == {
        "TRAINING_ROLE": "TRAINER",
        "PADDLE_TRAINER_ID": "1",
        "PADDLE_TRAINERS_NUM": "2",
        "PADDLE_PSERVERS_IP_PORT_LIST": "h1:6000,h2:6001",
        "PADDLE_TRAINER_ENDPOINTS": "h1:6170,h2:6170",
        "POD_IP": "h2",
        "PADDLE_PORT": "6170",
        "PARAMFLEET_JOB": "day3",
        "PARAMFLEET_LAUNCH": "ab12",
        "PARAMFLEET_REDIS": "redis://h1:6379/0",
        "PARAMFLEET_COORDINATOR": "h1:7000",
        "PARAMFLEET_HOST": "h2",
        "PARAMFLEET_LOG_DIR": "/job/log",
    }


def test_a_pserver_is_known_by_its_endpoint_and_has_no_trainer_id() -> None:
    found = role_environment(ProcessName("pserver", 1), FACTS)

    assert found["TRAINING_ROLE"] == "PSERVER"
    assert f"{found['POD_IP']}:{found['PADDLE_PORT']}" == "h2:6001"
    assert "PADDLE_TRAINER_ID" not in found


def test_workers_and_pservers_share_the_cores_of_their_machine() -> None:
    threads = [
        runtime_environment({}, num_cores=8, num_local_roles=n)["OMP_NUM_THREADS"]
        for n in (0, 1, 3, 16)
    ]

    assert threads == ["8", "8", "2", "1"]


def test_what_the_user_has_set_stays() -> None:
    inherited = {"OMP_NUM_THREADS": "5", "PYTHONUNBUFFERED": ""}

    found = runtime_environment(inherited, num_cores=8, num_local_roles=2)

    assert found.keys() == {"MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"}
