"""A job saves itself to S3, and another one continues from there."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.s3_server import serving_s3

from paramfleet_shared.checkpoint.layers import read_layers
from paramfleet_shared.checkpoint.manifest import read_manifest
from paramfleet_shared.files.addresses import Address
from paramfleet_worker.app.checkpoints.listing import list_checkpoints
from paramfleet_worker.app.checkpoints.resuming import RESUME_FROM, resume_environment
from paramfleet_worker.app.checkpoints.verifying import verify

pytest.importorskip("moto.server", reason="no S3 server is installed: dependency group test")
s3fs = pytest.importorskip("s3fs", reason="no client of S3 is installed: dependency group test")

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SCRIPT = "saved_under_load.py"
KEPT = "s3://shop/kept"


@pytest.fixture
def login(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Start a server with a bucket; return what processes need to use it."""
    with serving_s3() as url:
        found = {
            "AWS_ENDPOINT_URL": url,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "anna",
            "AWS_SECRET_ACCESS_KEY": "secret",
        }
        for name, value in found.items():
            monkeypatch.setenv(name, value)
        s3fs.S3FileSystem().mkdir("shop")
        yield found
        s3fs.S3FileSystem.clear_instance_cache()


def test_a_job_saves_to_s3_beside_its_training_and_another_continues_from_there(
    jobs: Any, tmp_path: Any, login: dict[str, str]
) -> None:
    enough, dirs = tmp_path / "enough", {"PARAMFLEET_CHECKPOINT_DIRS": KEPT}
    args = ["--mode", "async", "--until", str(enough), "--kept", KEPT]
    running = jobs.start(SCRIPT, *args, workers=2, servers=2, **login, **dirs)
    running.wait_for("worker0", "training")
    status = running.admin().wait(lambda s: number_of(s["periodic_checkpoint"]) >= 3)
    enough.touch()
    ended = running.end()
    assert ended.codes == dict.fromkeys(running.pids, 0), ended.story()
    assert not status["periodic_checkpoint"]["error"]

    kept = Address(KEPT)
    listed = list_checkpoints(kept)
    assert 1 <= len(listed) <= 5  # three, and what they build on
    assert any(each.base for each in listed)
    assert all(each.whole and each.consistent for each in listed), listed
    newest = Address(resume_environment(kept, lambda _: None)[RESUME_FROM])
    assert not verify(newest).problems
    layers = read_layers(newest, read_manifest(newest))
    assert sum(file.read().num_rows for file in layers.files("ids")) > 0

    args = ["--mode", "sync", "--load", str(newest)]
    (result,) = jobs.run(SCRIPT, *args, workers=1, servers=1, **login, **dirs).results
    assert len(json.loads(json.dumps(result["losses"]))) == 6


def number_of(done: dict[str, Any] | None) -> int:
    return 0 if done is None else int(done["dirname"].rpartition("/")[2].partition("-")[0])
