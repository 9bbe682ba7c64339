"""Where a followed job is now: by its launch's folder, if that is the same job's."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from paramfleet_serving.jobs.finding import found_settings
from paramfleet_shared.files.job_folder import JobFacts, JobFolder, runtime_dir, write_private
from paramfleet_shared.settings.config import JobSettings

REDIS = "unix:///tmp/none.sock"


@pytest.fixture
def root(tmp_path: Path) -> Iterator[str]:
    """Return the folder of a job that runs, with a secret of this launch."""
    folder = JobFolder.claim(runtime_dir(str(tmp_path / "run")), "flights")
    folder.write_facts(JobFacts(job="flights", launch="l", redis=REDIS, pid=1))
    write_private(folder.secret_file, b"of this launch")
    yield str(tmp_path / "run")
    folder.close()


@pytest.mark.parametrize("given", [JobSettings().redis, REDIS, f"{REDIS}?db=0"])
def test_a_launch_s_folder_says_where_the_job_is_and_its_secret(root: str, given: str) -> None:
    asked = JobSettings(job="flights", redis=given, secret="of before", runtime_dir=root)

    found = found_settings(asked)

    assert (found.redis, found.secret) == (REDIS, "of this launch")


@pytest.mark.parametrize(
    ("job", "redis"), [("flights", "redis://far:6379/0"), ("others", JobSettings().redis)]
)
def test_another_registry_or_name_is_another_job(root: str, job: str, redis: str) -> None:
    asked = JobSettings(job=job, redis=redis, secret="its own", runtime_dir=root)

    assert found_settings(asked) == asked
