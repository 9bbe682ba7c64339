"""The environment of a script that joins a job as a worker."""

from paramfleet_shared.config import JobSettings, resolve
from paramfleet_worker.app.script import worker_environment


def test_a_script_finds_the_job_and_leaves_its_index_to_the_coordinator() -> None:
    inherited = {"HOME": "/root", "PARAMFLEET_JOB": "other", "PARAMFLEET_LEASE_TTL_S": "9"}
    settings = resolve(
        JobSettings, section="", arguments={"job": "day3"}, environment=inherited
    )

    found = worker_environment(settings, inherited)

    assert found["TRAINING_ROLE"] == "TRAINER"
    assert found["PARAMFLEET_JOB"] == "day3"
    assert found["PARAMFLEET_REDIS"] == "redis://127.0.0.1:6379/0"
    assert found["PARAMFLEET_LEASE_TTL_S"] == "9.0"
    assert "PADDLE_TRAINER_ID" not in found
    assert "PARAMFLEET_HOST" not in found
