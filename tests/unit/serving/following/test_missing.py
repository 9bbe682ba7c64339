"""What a server says at once where there is nothing to follow."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from paramfleet_serving.config import ServingSettings
from paramfleet_serving.following.missing import reason_to_wait
from paramfleet_shared.files.job_folder import JobFacts, JobFolder, runtime_dir


@pytest.fixture
def root(tmp_path: Path) -> Iterator[str]:
    """Return where a job ``clicks`` runs."""
    folder = JobFolder.claim(runtime_dir(str(tmp_path / "run")), "clicks")
    folder.write_facts(JobFacts(job="clicks", launch="l", redis="unix:///none", pid=1))
    yield str(tmp_path / "run")
    folder.close()


def reason(source: str, root: str = "") -> str:
    return reason_to_wait(ServingSettings(source=source, runtime_dir=root))


def test_a_stream_has_nothing_missing(tmp_path: Path) -> None:
    (tmp_path / "stream.json").touch()

    assert reason(str(tmp_path)) == ""
    assert reason("memory://elsewhere/stream") == "", "asked only by who follows it"


def test_a_folder_without_a_stream_is_told(tmp_path: Path) -> None:
    assert "doesn't exist: this waits" in reason(str(tmp_path / "none"))
    assert "has no stream.json: this waits" in reason(str(tmp_path))


def test_an_export_and_a_checkpoint_are_told(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").touch()
    assert "is a checkpoint" in reason(str(tmp_path))

    (tmp_path / "rows.ads.safetensors").touch()
    told = reason(str(tmp_path))

    assert "is an export (save_inference_model)" in told
    assert "fleet.serving.load" in told


def test_a_job_that_is_none_is_told_with_the_nearest_name(root: str) -> None:
    assert reason("job:clicks", root) == ""
    assert "no job 'clikcs' of this user runs" in reason("job:clikcs", root)
    assert "did you mean job:clicks?" in reason("job:clikcs", root)
    assert "these do: clicks" in reason("job:weather", root)


def test_another_registry_is_asked_itself(root: str) -> None:
    far = ServingSettings(source="job:clikcs", redis="redis://far:6379/0", runtime_dir=root)

    assert reason_to_wait(far) == ""
