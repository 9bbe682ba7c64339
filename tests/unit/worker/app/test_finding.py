"""Which job is meant, where nobody or somebody says it."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from paramfleet_shared.files.job_folder import JobFacts, JobFolder, runtime_dir
from paramfleet_worker.__main__ import main
from paramfleet_worker.app.finding import find_job

FACTS = JobFacts(job="flights", launch="l", redis="unix:///tmp/none.sock", pid=1)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PARAMFLEET_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.delenv("PARAMFLEET_REDIS", raising=False)
    return runtime_dir(str(tmp_path / "run"))


def test_without_a_running_job_that_is_said_and_no_registry_is_blamed(root: Path) -> None:
    ended = CliRunner().invoke(main, ["status"])

    assert ended.exit_code == 1
    assert "no job of this user runs on this machine" in ended.output
    assert "Redis" not in ended.output


def test_a_name_that_none_has_is_answered_with_those_that_run(root: Path) -> None:
    folder = JobFolder.claim(root, "flights")
    folder.write_facts(FACTS)

    ended = CliRunner().invoke(main, ["status", "--job", "fligths"])

    assert ended.exit_code == 1
    assert "no job fligths of this user runs" in ended.output
    assert "running are flights" in ended.output
    folder.close()


def test_two_parts_of_one_job_on_one_machine_are_one_job(root: Path) -> None:
    folders = [JobFolder.claim(root, name) for name in ("flights", "flights@127.0.0.2")]
    for folder in folders:
        folder.write_facts(FACTS)

    found = find_job({}, {"PARAMFLEET_RUNTIME_DIR": str(root)})

    assert found.settings.job == "flights"
    for folder in folders:
        folder.close()
