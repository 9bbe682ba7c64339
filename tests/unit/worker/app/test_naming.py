"""What a job and a launch are called where nobody says it."""

import re
from pathlib import Path
from typing import Any

import pytest

from paramfleet_shared.settings.config import JobSettings
from paramfleet_worker.app.launch.naming import launch_of, with_name
from paramfleet_worker.app.script import script_of
from paramfleet_worker.config import LaunchSettings

SEVERAL: dict[str, Any] = {
    "servers": "127.0.0.1:6000,127.0.0.2:6000",
    "workers": "127.0.0.1,127.0.0.2",
    "coordinator": "127.0.0.1:7000",
    "redis": "redis://127.0.0.1:1/0",
}


def name_of(*script: str, **settings: Any) -> str:
    return with_name(LaunchSettings(**settings), script=script or ("train.py",)).job


def test_a_job_without_a_name_gets_its_scripts_and_random_digits() -> None:
    names = {name_of("models/train.py", "--epochs=3") for _ in range(8)}

    assert all(re.fullmatch("train-[0-9a-f]{6}", name) for name in names)
    assert len(names) == 8


def test_a_name_that_is_given_is_kept() -> None:
    assert name_of(job="day3") == "day3"
    assert name_of(job="day3", **SEVERAL) == "day3"


@pytest.mark.parametrize("script", ["-.py", "ünïcode und mehr.py", "a" * 200 + ".py", "..py"])
def test_any_scripts_name_makes_one_that_a_job_may_have(script: str) -> None:
    name = name_of(f"/tmp/{script}")

    assert JobSettings(job=name).job == name


def test_a_model_folder_gives_its_name(tmp_path: Path) -> None:
    (tmp_path / "wide_deep").mkdir()
    model = tmp_path / "wide_deep" / "config.yaml"

    script = script_of((), model=model, options=("a=1",))

    assert re.fullmatch("wide_deep-[0-9a-f]{6}", name_of(*script))


def test_the_same_command_gives_the_same_names_on_each_machine_and_another_job_others() -> None:
    here, there = (LaunchSettings(**SEVERAL, host_ip=ip) for ip in ("127.0.0.1", "127.0.0.2"))
    other = LaunchSettings(**{**SEVERAL, "coordinator": "127.0.0.1:7001"})

    assert name_of(**SEVERAL) == name_of(**SEVERAL, host_ip="127.0.0.2")
    assert launch_of(here) == launch_of(there)
    assert launch_of(other) != launch_of(here)
    assert launch_of(LaunchSettings(**SEVERAL, job="a")) != launch_of(here)


def test_on_one_machine_each_launch_has_a_name_of_its_own() -> None:
    assert launch_of(LaunchSettings(job="a")) != launch_of(LaunchSettings(job="a"))
    assert JobSettings(launch=launch_of(LaunchSettings())).launch


def test_with_certificates_the_name_is_the_one_they_are_made_for_by_default() -> None:
    assert name_of(tls_dir="tls") == "default"
