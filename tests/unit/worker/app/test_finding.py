"""Which job is meant, where nobody or somebody says it."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from paramfleet_shared.files.job_folder import JobFacts, JobFolder, runtime_dir
from paramfleet_worker.__main__ import main
from paramfleet_worker.app.finding import SeveralJobsError, find_job

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
    assert "no answer from Redis" not in ended.output


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


@pytest.fixture
def two_jobs(root: Path, tmp_path: Path) -> Iterator[Path]:
    """Two jobs, of which ``flights`` was launched from the folder that this returns."""
    here = tmp_path / "here"
    here.mkdir()
    folders = [JobFolder.claim(root, name) for name in ("clicks", "flights")]
    folders[0].write_facts(replace(FACTS, job="clicks", folder=str(tmp_path / "there")))
    folders[1].write_facts(replace(FACTS, folder=str(here)))
    yield here
    for folder in folders:
        folder.close()


def test_of_two_jobs_it_is_the_one_that_was_launched_from_this_folder(
    two_jobs: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(two_jobs)

    found = find_job({}, {"PARAMFLEET_RUNTIME_DIR": str(root)})
    ended = CliRunner().invoke(main, ["status"])

    assert found.settings.job == "flights"
    said = "this is job flights, launched from this folder; for another one that runs here "
    assert found.chosen == f"{said}(clicks) give --job NAME"
    assert found.chosen in ended.output


def test_elsewhere_one_of_two_jobs_is_to_be_named(
    two_jobs: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(two_jobs.parent)

    with pytest.raises(
        SeveralJobsError, match=r"2 jobs .*: clicks, flights; name one with --job"
    ):
        find_job({}, {"PARAMFLEET_RUNTIME_DIR": str(root)})
    named = find_job({"job": "clicks"}, {"PARAMFLEET_RUNTIME_DIR": str(root)})

    assert (named.settings.job, named.chosen) == ("clicks", "")


def test_of_two_jobs_of_one_folder_one_is_to_be_named(
    two_jobs: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(two_jobs)
    other = JobFolder.claim(root, "other")
    other.write_facts(replace(FACTS, job="other", folder=str(two_jobs)))

    with pytest.raises(SeveralJobsError, match="3 jobs"):
        find_job({}, {"PARAMFLEET_RUNTIME_DIR": str(root)})

    other.close()
