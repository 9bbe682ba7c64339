"""A job on a local Ray cluster: started, watched and ended as by the local launcher."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from paramfleet_shared.settings.config import read_environment
from paramfleet_shared.system.processes.keeping import tied
from paramfleet_worker.config import LaunchSettings

pytest.importorskip("ray")
pytestmark = [pytest.mark.processes, pytest.mark.slow]

SCRIPT = """
import os, signal, sys, time
import torch
import paramfleet as fleet

fleet.init()
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
    raise SystemExit(0)
model = fleet.distributed_model(torch.nn.Sequential(fleet.nn.Embedding(0, 4)))
strategy = fleet.DistributedStrategy()
strategy.a_sync = True
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer = fleet.distributed_optimizer(optimizer, strategy)
fleet.init_worker()
rank = fleet.worker_index()
for step in range(5):
    optimizer.minimize(model(torch.arange(8)).sum())
print(f"worker {rank} has trained", file=sys.stderr)
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
fleet.stop_worker()
print('{"rank": %d, "parent": %d}' % (rank, os.getppid()))
"""


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines()


def test_a_job_runs_as_actors_and_ends_as_its_processes_do(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = [
        sys.executable, "-m", "paramfleet_worker", "launch", "--on", "ray", "--elastic",
        "--ray_cpus", "0.5", "--server_num", "1", "--worker_num", "2", str(script),
    ]  # fmt: skip
    environment = {**read_environment(), "RAY_ADDRESS": "local", "OMP_NUM_THREADS": "1"}

    ended = subprocess.run(
        tied(command), cwd=tmp_path, env=environment, capture_output=True, text=True,
        timeout=280, check=False,
    )  # fmt: skip

    assert ended.returncode == 0, ended.stderr
    said = json.loads(ended.stdout)
    assert said["rank"] == 0, "standard output is worker 0's and nothing else"
    assert said["parent"] != os.getpid()
    assert "[worker 0] worker 0 has trained" in ended.stderr
    assert "worker 1 was killed by SIGKILL; the job goes on without it" in ended.stderr
    assert "reason='was killed by SIGKILL'" in ended.stderr, "the coordinator heard of it"
    assert "worker 1 has trained" in lines_of(tmp_path / "log" / "workerlog.1")
    assert any("pserver.serving" in line for line in lines_of(tmp_path / "log" / "serverlog.0"))


def test_ray_and_named_machines_exclude_each_other() -> None:
    with pytest.raises(Exception, match="left out with --on ray") as refused:
        LaunchSettings(on="ray", servers="10.0.0.1:7000", workers="10.0.0.1",
                       coordinator="10.0.0.1:7100", redis="redis://10.0.0.1")  # fmt: skip

    facts: Any = refused.value
    assert facts.name == "servers"
    with pytest.raises(Exception, match="left out with --nproc_per_node"):
        LaunchSettings(on="ray", nproc_per_node=2)
