"""``paramfleet delta follow`` beside a launched job: it ends with it, and has all of it."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paramfleet as fleet
from paramfleet_shared.deltas.reader import StreamReader
from paramfleet_shared.system.processes.keeping import tied

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.forked]

SCRIPT = """
import time
from pathlib import Path

import torch

import paramfleet as fleet

fleet.init()
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
else:
    strategy = fleet.DistributedStrategy()
    strategy.a_sync = True
    torch.manual_seed(0)
    words = fleet.nn.Embedding(0, 4, name="words")
    model = fleet.distributed_model(torch.nn.Sequential(words, torch.nn.Linear(4, 1)))
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    optimizer = fleet.distributed_optimizer(optimizer, strategy)
    fleet.init_worker()
    left = 20
    while left:
        left -= Path("goes_on").exists()
        optimizer.minimize(model(torch.randint(0, 500, (64,))).square().mean())
        time.sleep(0.005)
    fleet.finish_training()
    fleet.save_inference_model("export")
    fleet.stop_worker()
"""


COMMAND = [sys.executable, "-m", "paramfleet_worker", "delta", "follow", "stream"]


@contextmanager
def following(folder: Path, *words: str) -> Iterator["subprocess.Popen[str]"]:
    """Follow a job from a folder."""
    with subprocess.Popen(
        tied([*COMMAND, *words]), cwd=folder, stderr=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def line_with(process: "subprocess.Popen[str]", part: str) -> str:
    """Read what a process says up to a line."""
    assert process.stderr is not None
    line = next((line for line in process.stderr if part in line), "")
    assert line, "it has ended"
    return line


def test_who_stays_waits_for_a_job_that_does_not_run_yet(
    launch: Callable[..., Any], tmp_path: Path
) -> None:
    words = ("--job=later", "--stay", "--every=0.05")
    with following(tmp_path, *words) as process:
        said = line_with(process, "waiting until job later runs on this machine")
        assert "--redis" in said
        launched = launch(SCRIPT, "--job=later", "--server_num=1", "--worker_num=1", words=())
        line_with(process, "serving.stream_begun")
        (tmp_path / "goes_on").touch()
        assert launched.read_to_end() == 0, launched.text
        line_with(process, "serving.job_ended")

        process.terminate()
        rest = process.communicate(timeout=60)[1]

    assert process.returncode == 0, rest
    assert "published, all until" in rest


def test_who_waits_for_a_job_may_be_stopped(tmp_path: Path) -> None:
    with following(tmp_path, "--job=never", "--stay") as process:
        line_with(process, "waiting until job never runs on this machine")

        process.terminate()
        rest = process.communicate(timeout=60)[1]

    assert process.returncode == 0, rest
    assert rest == ""  # it is said once
    assert not (tmp_path / "stream").exists()


def test_a_stream_ends_with_the_job_and_has_all_that_it_changed(
    launch: Callable[..., Any], tmp_path: Path
) -> None:
    job = ("--job=followed", "--server_num=2", "--worker_num=2")
    launched = launch(SCRIPT, *job, words=())
    launched.read_until("job.training")
    process = subprocess.Popen(
        tied([*COMMAND, "--job=followed", "--every=0.05"]),
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    )
    line_with(process, "serving.stream_begun")
    second = subprocess.run(
        tied([*COMMAND, "--job=followed"]),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert second.returncode == 1
    assert f"stream is in use by the writer process {process.pid} on" in second.stderr
    (tmp_path / "goes_on").touch()

    assert launched.read_to_end() == 0, launched.text
    said = process.communicate(timeout=60)[1]

    assert process.returncode == 0, said
    assert "published, all until" in said
    stream = StreamReader(tmp_path / "stream")
    base, last = stream.base(0), stream.look().last
    rows = dict(zip(base.tables["words"].ids.tolist(), base.tables["words"].rows, strict=True))
    for numbered in stream.changes(0, last):
        for ids, values, _ in numbered.change.tables.values():
            rows |= dict(zip(ids.tolist(), values, strict=True))
    served = fleet.serving.tables(tmp_path / "export")["words"]
    assert sorted(rows) == served.ids.tolist()
    np.testing.assert_array_equal([rows[each] for each in sorted(rows)], served.rows)
