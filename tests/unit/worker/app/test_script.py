"""What a job's processes run, and the environment of a script that joins as a worker."""

from pathlib import Path

import pytest

import paramfleet
from paramfleet.config.settings import WorkerSettings
from paramfleet_shared.settings.config import resolve
from paramfleet_worker.app.script import ScriptError, script_of, worker_environment
from paramfleet_worker.process.probes.shadowing import shadowing


def test_a_script_finds_the_job_and_leaves_its_index_to_the_coordinator() -> None:
    inherited = {"HOME": "/root", "PARAMFLEET_JOB": "other", "PARAMFLEET_LEASE_TTL_S": "9"}
    settings = resolve(
        WorkerSettings,
        section="worker",
        arguments={"job": "day3", "admin_port": 7101},
        environment=inherited,
    )

    found = worker_environment(settings, inherited)

    assert found["TRAINING_ROLE"] == "TRAINER"
    assert found["PARAMFLEET_JOB"] == "day3"
    assert found["PARAMFLEET_REDIS"] == "redis://127.0.0.1:6379/0"
    assert found["PARAMFLEET_LEASE_TTL_S"] == "9.0"
    assert "PADDLE_TRAINER_ID" not in found
    assert found["PARAMFLEET_WORKER__ADMIN_PORT"] == "7101"
    assert "PARAMFLEET_HOST" not in found
    assert "PARAMFLEET_WORKER__BIND" not in found


def test_a_secret_stays_in_its_file(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("hunter2")
    inherited = {"PARAMFLEET_REDIS_PASSWORD_FILE": str(tmp_path / "password")}
    settings = resolve(WorkerSettings, section="worker", arguments={}, environment=inherited)

    found = worker_environment(settings, inherited)

    assert settings.value.redis_password == "hunter2"
    assert "hunter2" not in found.values()


def test_a_model_is_run_by_the_runner_with_its_options(tmp_path: Path) -> None:
    model = tmp_path / "config.yaml"

    found = script_of(["c=3", "-o", "d=4"], model=model, options=["a=1", "b=2"])

    assert found[:4] == ("-P", "-m", "paramfleet.runner", "train")
    assert found[4:] == ("-m", str(model), "-oa=1", "-ob=2", "-oc=3", "-od=4")


def test_a_script_keeps_its_arguments(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch()

    assert script_of([str(script), "-o", "x"], model=None, options=()) == (
        str(script),
        "-o",
        "x",
    )


@pytest.mark.parametrize(
    ("arguments", "model", "options", "rule"),
    [
        ([], None, [], "name a training script, or a model's YAML file"),
        (["none.py"], None, [], "there is no such script"),
        (["none.py"], None, ["a=1"], "goes with -m"),
        (["train.py"], Path("config.yaml"), [], "don't go together"),
    ],
)
def test_it_must_be_clear_what_to_run(
    arguments: list[str], model: Path | None, options: list[str], rule: str
) -> None:
    with pytest.raises(ScriptError, match=rule):
        script_of(arguments, model=model, options=options)


@pytest.mark.parametrize("name", ["torch", "numpy", "paramfleet", "random"])
def test_a_script_with_the_name_of_a_package_is_refused(tmp_path: Path, name: str) -> None:
    script = tmp_path / f"{name}.py"
    script.touch()

    with pytest.raises(ScriptError, match=f"{script}: .* instead of the package {name}, "):
        script_of([str(script)], model=None, options=[])


def test_a_package_beside_the_script_is_refused_by_its_name(tmp_path: Path) -> None:
    script, package = tmp_path / "train.py", tmp_path / "redis" / "__init__.py"
    package.parent.mkdir()
    for each in (script, package, tmp_path / "random.py", tmp_path / "test.py"):
        each.touch()

    with pytest.raises(ScriptError, match=f"{package}: .* the package redis, "):
        script_of([str(script)], model=None, options=[])
    package.unlink()  # a folder without it goes before nothing
    assert script_of([str(script)], model=None, options=[]) == (str(script),)


def test_the_sources_of_the_package_itself_may_be_beside_the_script() -> None:
    beside = Path(paramfleet.__file__).parent.parent / "train.py"

    assert shadowing(beside) is None
