"""What a launcher has before it starts anything."""

import subprocess
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
from click.testing import CliRunner

from paramfleet_shared.errors.logs import DataFolderError
from paramfleet_shared.net.tokens import SeveralTokens, Tokens, new_token
from paramfleet_shared.settings.config import Resolved, resolve
from paramfleet_shared.system.processes.keeping import tied
from paramfleet_worker.__main__ import main
from paramfleet_worker.app.launch.planning import plan_launch
from paramfleet_worker.app.launch.preparing import (
    OF_THE_JOB,
    ColdFolderError,
    LogDirError,
    RuntimeDirFullError,
    prepared_launch,
)
from paramfleet_worker.config import LaunchSettings
from paramfleet_worker.process.admin_token import token_in
from paramfleet_worker.process.ports import PortReservations


@pytest.fixture
def reservations() -> Iterator[PortReservations]:
    with PortReservations() as reservations:
        yield reservations


def resolved(tmp_path: Path, job: str, **arguments: str) -> Resolved[LaunchSettings]:
    given = {"job": job, "log_dir": tmp_path / "log", "runtime_dir": str(tmp_path / "run")}
    return resolve(
        LaunchSettings, section="launch", arguments={**given, **arguments}, environment={}
    )


def test_two_launches_of_one_folder_write_different_logs(
    tmp_path: Path, reservations: PortReservations
) -> None:
    one, two = (resolved(tmp_path, job) for job in ("one", "two"))
    plans = [
        plan_launch(each.value, script=("x.py",), pod_ip="", reservations=reservations)
        for each in (one, two)
    ]
    with (
        prepared_launch(one, plans[0], {}) as first,
        prepared_launch(two, plans[1], {}) as next_,
    ):
        folders = [each.plan.facts.log_dir for each in (first, next_)]
        in_use = f"warning: {tmp_path / 'log'} is in use by another job"
        assert [any(in_use in line for line in each.lines) for each in (first, next_)] == [
            False,
            True,
        ]
    with prepared_launch(two, plans[1], {}) as later:
        assert later.plan.facts.log_dir == str(tmp_path / "log"), "it is free again"

    assert folders == [str(tmp_path / "log"), str(tmp_path / "log-two")]


def test_a_file_of_tokens_is_accepted_beside_the_launchers_own(
    tmp_path: Path, reservations: PortReservations
) -> None:
    token, entry = new_token("read", "prometheus")
    (tmp_path / "tokens").write_text(entry.to_line())
    given = resolved(tmp_path, "one", tokens_file=str(tmp_path / "tokens"))
    plan = plan_launch(given.value, script=("x.py",), pod_ip="", reservations=reservations)
    with prepared_launch(given, plan, {}) as prepared:
        files = prepared.environment["PARAMFLEET_TOKENS_FILE"].split(":")
        tokens = SeveralTokens([Tokens(Path(file)) for file in files])
        found = [tokens.find(each) for each in (token, token_in(prepared.folder), "pf-none")]

    assert [each and each.role for each in found] == ["read", "admin", None]
    assert all(each is None or tokens.has(each) for each in found)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--worker_num", "2"), "--worker_num after x.py goes"),
        (("--worker-num=2", "--epochs=3"), "--worker-num after x.py goes"),
        (("--job=a", "--redis", "b", "--job", "c"), "--job, --redis after x.py go"),
        (("--worker_numbers=2", "--data_dir=x", "--workers=4", "job", "--gpus", "0"), ""),
    ],
)
def test_options_of_the_launch_behind_the_script_are_warned_of_in_one_line(
    tmp_path: Path, reservations: PortReservations, words: tuple[str, ...], named: str
) -> None:
    given = resolved(tmp_path, "one", insecure="true")
    plan = plan_launch(
        given.value, script=("x.py", *words), pod_ip="", reservations=reservations
    )

    with prepared_launch(given, plan, {}) as prepared:
        found = [line for line in prepared.lines if "after x.py" in line]

    rest = " to the script: options of launch come before it"
    assert found == ([f"warning: {named}{rest}"] if named else [])


def test_the_options_that_are_warned_of_are_those_of_the_launch() -> None:
    assert {field.name for field in fields(LaunchSettings)} >= OF_THE_JOB


@pytest.mark.parametrize("inside", ["", "below"])
def test_folders_that_can_not_be_made_are_named_before_anything_starts(
    tmp_path: Path, reservations: PortReservations, inside: str
) -> None:
    file = tmp_path / "file"
    file.touch()
    path = str(file / inside) if inside else str(file)
    reason = "Not a directory" if inside else "File exists"
    for name, error in (("data_dir", DataFolderError), ("log_dir", LogDirError)):
        given = resolved(tmp_path, "one", **{name: path})
        plan = plan_launch(given.value, script=("x.py",), pod_ip="", reservations=reservations)
        with pytest.raises(error, match=reason) as caught, prepared_launch(given, plan, {}):
            pass
        assert isinstance(caught.value, DataFolderError | LogDirError)
        assert caught.value.facts["path"] == path


def test_a_log_that_can_not_be_made_is_named_before_anything_starts(
    tmp_path: Path, reservations: PortReservations
) -> None:
    given = resolved(tmp_path, "one")
    plan = plan_launch(given.value, script=("x.py",), pod_ip="", reservations=reservations)
    (tmp_path / "log" / "serverlog.0").mkdir(parents=True)

    with (
        pytest.raises(LogDirError, match=r"serverlog\.0") as caught,
        prepared_launch(given, plan, {}),
    ):
        pass

    assert caught.value.facts["path"] == str(tmp_path / "log")


def test_logs_of_before_are_kept_aside_once_nothing_keeps_the_launch_from_its_start(
    tmp_path: Path, reservations: PortReservations
) -> None:
    given = resolved(tmp_path, "one")
    plan = plan_launch(given.value, script=("x.py",), pod_ip="", reservations=reservations)
    log = tmp_path / "log"
    log.mkdir()
    (log / "workerlog.0").write_text("old\n")

    budget = {"PARAMFLEET_PSERVER__MEMORY_BUDGET_BYTES": "1000000"}
    with pytest.raises(ColdFolderError), prepared_launch(given, plan, budget):
        pass
    assert (log / "workerlog.0").read_text() == "old\n"
    with prepared_launch(given, plan, {}):
        assert (log / "previous" / "workerlog.0").read_text() == "old\n"
        assert [each.name for each in log.iterdir()] == ["previous"], "none is made"


def test_the_data_folder_is_made(tmp_path: Path, reservations: PortReservations) -> None:
    given = resolved(tmp_path, "one", data_dir=str(tmp_path / "some" / "data"))
    plan = plan_launch(given.value, script=("x.py",), pod_ip="", reservations=reservations)

    with prepared_launch(given, plan, {}):
        assert (tmp_path / "some" / "data").stat().st_mode & 0o777 == 0o700


def test_a_budget_without_a_folder_is_refused_before_anything_starts(
    tmp_path: Path, reservations: PortReservations
) -> None:
    given = resolved(tmp_path, "one")
    plan = plan_launch(given.value, script=("x.py",), pod_ip="", reservations=reservations)
    budget = {"PARAMFLEET_PSERVER__MEMORY_BUDGET_BYTES": "1000000"}

    with (
        pytest.raises(ColdFolderError, match=r"COLD_DIR to a .* or give --data_dir") as caught,
        prepared_launch(given, plan, budget),
    ):
        pass
    assert caught.value.variable == "PARAMFLEET_PSERVER__MEMORY_BUDGET_BYTES"
    with prepared_launch(given, plan, {**budget, "PARAMFLEET_PSERVER__COLD_DIR": "cold"}):
        pass


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """Return a folder on a file system without room."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        tied(["mount", "-t", "tmpfs", "-o", "size=64k,mode=0700", "none", str(folder)]),
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip(f"this system mounts no small file system: {mounted.stderr.strip()}")
    try:
        (folder / "filler").write_bytes(bytes(64 << 10))
        yield folder
    finally:
        subprocess.run(tied(["umount", "-l", str(folder)]), check=True)


def test_a_full_disk_of_the_jobs_folder_is_named_with_what_to_do(
    tmp_path: Path, reservations: PortReservations, full_disk: Path
) -> None:
    given = resolved(tmp_path, "one", runtime_dir=str(full_disk))
    plan = plan_launch(given.value, script=("x.py",), pod_ip="", reservations=reservations)

    with (
        pytest.raises(RuntimeDirFullError, match=f"{full_disk}.*No space left.*--runtime_dir"),
        prepared_launch(given, plan, {}),
    ):
        pass
    assert [each.name for each in full_disk.iterdir() if each.name == "one"] == []


@pytest.mark.parametrize("options", [["--server_num=1"], ["--nproc_per_node=1"]])
def test_faults_are_for_jobs_that_allow_them(tmp_path: Path, options: list[str]) -> None:
    (tmp_path / "train.py").write_text("raise SystemExit('was started')", encoding="utf-8")
    words = ["launch", *options, f"--log_dir={tmp_path / 'log'}", str(tmp_path / "train.py")]

    ended = CliRunner().invoke(main, words, env={"PARAMFLEET_DEFECTS": "windows_left_out"})

    assert ended.exit_code == 2
    assert "PARAMFLEET_DEFECTS injects faults" in ended.stderr
    assert "paramfleet launch --chaos" in ended.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]
