"""``paramfleet delta follow`` beside a launched job: it ends with it, and has all of it."""

import subprocess
import sys
from collections.abc import Callable
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


def test_a_stream_ends_with_the_job_and_has_all_that_it_changed(
    launch: Callable[..., Any], tmp_path: Path
) -> None:
    job = ("--job=followed", "--server_num=2", "--worker_num=2")
    launched = launch(SCRIPT, *job, words=())
    launched.read_until("job.training")
    command = [sys.executable, "-m", "paramfleet_worker", "delta", "follow", "stream"]
    following = subprocess.Popen(
        tied([*command, "--job=followed", "--every=0.05"]),
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert following.stderr is not None
    begun = next((line for line in following.stderr if "serving.stream_begun" in line), "")
    assert begun, "it has ended"
    second = subprocess.run(
        tied([*command, "--job=followed"]),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert second.returncode == 1
    assert f"stream is in use by the writer process {following.pid} on" in second.stderr
    (tmp_path / "goes_on").touch()

    assert launched.read_to_end() == 0, launched.text
    said = following.communicate(timeout=60)[1]

    assert following.returncode == 0, said
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
