"""Which job is meant, where nobody or somebody says it."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest
from click.testing import CliRunner

from paramfleet_shared.discovery.errors import NoCoordinatorError
from paramfleet_shared.discovery.job_registry import JobRegistry
from paramfleet_shared.discovery.redis.store import RedisStore
from paramfleet_shared.discovery.registry import CoordinatorRecord
from paramfleet_shared.files.job_folder import JobFacts, JobFolder, runtime_dir, write_private
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.system.processes.keeping import tied
from paramfleet_worker.__main__ import main
from paramfleet_worker.app.finding import SeveralJobsError, find_job
from paramfleet_worker.app.operating import operator_of

FACTS = JobFacts(job="flights", launch="l", redis="unix:///tmp/none.sock", pid=1)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PARAMFLEET_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.delenv("PARAMFLEET_REDIS", raising=False)
    return runtime_dir(str(tmp_path / "run"))


def test_without_a_running_job_that_is_said_and_no_registry_is_blamed(root: Path) -> None:
    ended = CliRunner().invoke(main, ["status"])

    assert ended.exit_code == 1
    assert "no job of yours runs here: start one with `paramfleet launch`" in ended.output
    assert "no answer from Redis" not in ended.output


def test_a_name_that_none_has_is_answered_with_those_that_run(root: Path) -> None:
    folder = JobFolder.claim(root, "flights")
    folder.write_facts(FACTS)

    ended = CliRunner().invoke(main, ["status", "--job", "fligths"])

    assert ended.exit_code == 1
    assert "no job fligths of yours runs here" in ended.output
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


def test_a_coordinator_that_has_died_here_is_none_though_the_registry_names_it(
    root: Path, redis_url: str, job_name: str
) -> None:
    with subprocess.Popen(tied([sys.executable, "-c", "input()"]), stdin=PIPE) as process:
        record = CoordinatorRecord(
            endpoint="127.0.0.1:1", admin="127.0.0.1:2", host="127.0.0.1", pid=process.pid
        )
        asyncio.run(claim(redis_url, job_name, record))
        folder = JobFolder.claim(root, job_name)
        folder.write_facts(replace(FACTS, job=job_name, redis=redis_url))
        found = find_job({"job": job_name}, {"PARAMFLEET_RUNTIME_DIR": str(root)})
        while_it_lived = operator_of(found).url

    with pytest.raises(NoCoordinatorError):
        operator_of(found)
    elsewhere = operator_of(replace(found, folder=None)).url

    assert while_it_lived == elsewhere == "http://127.0.0.1:2"
    folder.close()


def test_a_given_token_is_no_launchs_and_certificates_ask_by_https(
    root: Path, certificates: Any
) -> None:
    folder = JobFolder.claim(root, "flights")
    folder.write_facts(FACTS)
    write_private(folder.admin_token_file, b"own")
    write_private(folder.admin_url_file, b"http://127.0.0.1:2")
    found = find_job({"job": "flights"}, {"PARAMFLEET_RUNTIME_DIR": str(root)})

    own, given = operator_of(found), operator_of(found, token="given", timeout_s=1.0)

    assert (own.url, own.token, own.is_own, own.tls) == (found.url, "own", True, None)
    assert (given.token, given.is_own, given.timeout_s) == ("given", False, 1.0)
    tls_dir = str(certificates.issue("admin").ca.parent)
    with_tls = replace(found, settings=replace(found.settings, tls_dir=tls_dir))
    assert operator_of(with_tls).tls is not None
    folder.close()


async def claim(redis_url: str, job: str, record: CoordinatorRecord) -> None:
    store = RedisStore(redis_url, clock=SystemClock(), timeout_s=2.0)
    registry = JobRegistry(store, job=job, record=record, lease_ttl_s=60.0)
    assert await registry.try_claim() is None
    await store.close()


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
