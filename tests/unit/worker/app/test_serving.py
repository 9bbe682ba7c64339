"""What a server that follows a job of this machine takes from the folder of its launch."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from paramfleet_shared.files.job_folder import JobFacts, JobFolder, runtime_dir, write_private
from paramfleet_worker.app.serving import job_variables

REDIS = "unix:///tmp/none.sock"
Here = tuple[JobFolder, dict[str, str]]


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Here]:
    """Return the folder of a job that runs, and an environment in which it is found."""
    root = tmp_path / "run"
    folder = JobFolder.claim(runtime_dir(str(root)), "flights")
    folder.write_facts(JobFacts(job="flights", launch="l", redis=REDIS, pid=1))
    write_private(folder.secret_file, b"of this launch")
    yield folder, {"PARAMFLEET_RUNTIME_DIR": str(root)}
    folder.close()


@pytest.mark.parametrize(
    "arguments",
    [
        ("--from", "job:flights"),
        ("--from=job:flights", "--port=0"),
        ("--source", "job:flights"),
    ],
)
def test_registry_and_secret_are_those_of_the_launch(
    here: Here, arguments: tuple[str, ...]
) -> None:
    folder, environment = here
    own = {"PARAMFLEET_REDIS": REDIS, "PARAMFLEET_SECRET_FILE": str(folder.secret_file)}

    assert job_variables(arguments, environment) == own
    by_variable = environment | {"PARAMFLEET_SERVING__SOURCE": "job:flights"}
    assert job_variables((), by_variable) == own


def test_certificates_take_the_place_of_a_secret(here: Here) -> None:
    folder, environment = here
    facts = JobFacts(job="flights", launch="l", redis=REDIS, pid=1, tls_dir="/certificates")
    folder.write_facts(facts)

    assert job_variables(("--from=job:flights",), environment) == {
        "PARAMFLEET_REDIS": REDIS,
        "PARAMFLEET_TLS_DIR": "/certificates",
    }


def test_what_the_environment_says_itself_stays(here: Here) -> None:
    _, environment = here
    given = environment | {"PARAMFLEET_REDIS": REDIS, "PARAMFLEET_SECRET": "its own"}

    assert job_variables(("--from=job:flights",), given) == {}


@pytest.mark.parametrize(
    ("arguments", "more"),
    [
        (("--from=/streams/flights",), {}),
        (("--from",), {}),
        (("--from=job:others",), {}),
        (("--from=job:flights",), {"PARAMFLEET_REDIS": "redis://far:6379/0"}),
    ],
    ids=["folder", "nothing", "another name", "another registry"],
)
def test_no_other_job_gets_what_this_launch_has(
    here: Here, arguments: tuple[str, ...], more: dict[str, str]
) -> None:
    assert job_variables(arguments, here[1] | more) == {}
