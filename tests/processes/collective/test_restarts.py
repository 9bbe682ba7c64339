"""Collective jobs whose workers are killed: started again, they go on from a checkpoint."""

import functools
import json
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paramfleet_shared.system.processes.keeping import tied

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.forked]

LAUNCH = [sys.executable, "-m", "paramfleet_worker", "launch"]
SCRIPT = str(Path(__file__).parent / "scripts" / "restarted.py")
WITHIN_S = 250


def launched(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        tied([*LAUNCH, *words]),
        cwd=folder, capture_output=True, text=True, timeout=WITHIN_S, check=False,
    )  # fmt: skip


def trained(folder: Path, *words: str, workers: int = 2, restarts: int = 0) -> dict[str, Any]:
    options = [f"--nproc_per_node={workers}", f"--max-restarts={restarts}"]
    ended = launched(folder, *options, SCRIPT, *words)
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(scope="module")
def without_faults(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], dict[str, Any]]:
    """Return what ten steps of a kind find that nothing interrupts; each is trained once."""
    return functools.cache(
        lambda kind: trained(tmp_path_factory.mktemp("kind"), kind, "whole", "10")
    )


@pytest.mark.parametrize("kind", ["sync", "localsgd", "diloco", "sharding"])
def test_a_job_whose_worker_was_killed_ends_as_one_without_faults(
    kind: str, tmp_path: Path, without_faults: Callable[[str], dict[str, Any]]
) -> None:
    expected = without_faults(kind)

    found = trained(tmp_path, kind, "killed", "10", "1:6", restarts=1)

    assert (found["began"], found["restarts"]) == ("000001-step-4", 1)
    assert found["lacking"] == []
    assert found["values"] == expected["values"]
    assert found["final"] == expected["final"]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_worker_killed_while_it_saves_leaves_the_former_checkpoint(
    rank: int, tmp_path: Path, without_faults: Callable[[str], dict[str, Any]]
) -> None:
    expected = without_faults("sync")

    found = trained(tmp_path, "sync", "killed", "10", f"{rank}:save", restarts=1)

    assert (found["began"], found["restarts"]) == ("000001-step-4", 1)
    assert found["values"] == expected["values"]
    assert names(tmp_path / "killed") == ["000001-step-4", "000002-step-8", "latest"]


@pytest.mark.parametrize("kind", ["sync", "sharding", "localsgd"])
def test_another_number_of_workers_goes_on_with_what_all_had_in_common(
    kind: str, tmp_path: Path
) -> None:
    saved = trained(tmp_path, kind, "saved", "8")
    # the last synchronization before: after steps 1, 4 and 7
    synchronized = trained(tmp_path, kind, "seven", "7") if kind == "localsgd" else {}

    for workers in (1, 3):
        found = trained(tmp_path, kind, "saved", "8", workers=workers)

        assert found["began"] == "000002-step-8"
        began_anew = ["batches", "random"] + (["localsgd"] if kind == "localsgd" else [])
        assert found["lacking"] == sorted(began_anew)
        assert len(set(found["values"])) == 1
        if kind == "localsgd":
            assert found["parameters"] == synchronized["parameters"]
        if kind == "sharding":
            assert found["final"] == saved["final"]
        if kind == "sync":
            assert found["final"] == saved["values"][0]
    on = trained(tmp_path, kind, "saved", "10", workers=1)
    assert on["rates"] == pytest.approx([0.05 * 0.7**3] * 3), "the schedule goes on"


DIES = """
import sys
import paramfleet as fleet

fleet.init(is_collective=True)
rank, count = fleet.worker_index(), fleet.restart_count()
print("start", rank, count, file=sys.stderr, flush=True)
if rank == 1:
    raise ValueError(f"no data in start {count}")
fleet.barrier_worker()
"""


def test_a_worker_that_dies_each_time_ends_the_job_with_its_log(tmp_path: Path) -> None:
    (tmp_path / "dies.py").write_text(DIES, encoding="utf-8")

    ended = launched(tmp_path, "--nproc_per_node=2", "--max-restarts=2", "dies.py")

    assert ended.returncode == 1
    lines = ended.stderr.splitlines()
    assert lines[-1] == (
        "[launcher] the job failed after 2 restarts: worker 1 exited with code 1 "
        "(ValueError: no data in start 2)"
    )
    assert [line for line in lines if line.startswith("[launcher] restart")] == [
        "[launcher] restart 1 of 2: all workers of this machine start again",
        "[launcher] restart 2 of 2: all workers of this machine start again",
    ]
    assert sum("worker 1] start 1" in line for line in lines) == 3
    log = (tmp_path / "log" / "workerlog.1").read_text(encoding="utf-8")
    assert log.count("ValueError: no data in start") == 3


LEAVES = """
import os, pathlib, signal, subprocess, sys
import paramfleet as fleet

LISTENS = '''
import socket, time
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
time.sleep(600)
'''

fleet.init(is_collective=True)
rank = fleet.worker_index()
if fleet.restart_count() == 0:
    pathlib.Path(f"worker{rank}.pid").write_text(str(os.getpid()))
    fleet.barrier_worker()
    if rank == 1:
        child = subprocess.Popen(
            [sys.executable, "-S", "-c", LISTENS], stdout=subprocess.PIPE, text=True
        )
        pathlib.Path("port").write_text(child.stdout.readline())
        os.kill(os.getpid(), signal.SIGKILL)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.pause()
former = [path.read_text() for path in pathlib.Path().glob("*.pid")]
left = [pid for pid in former if pathlib.Path("/proc", pid).exists()]
states = []
for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
    try:
        state, parent = stat.read_text().rpartition(")")[2].split()[:2]
    except OSError:
        continue
    if int(parent) == os.getppid():
        states.append(state)
fleet.stop_worker()
if rank == 0:
    print(len(former), len(left), "".join(states), flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="it looks into /proc")
def test_nothing_of_the_former_start_is_left(tmp_path: Path) -> None:
    (tmp_path / "leaves.py").write_text(LEAVES, encoding="utf-8")

    ended = launched(tmp_path, "--nproc_per_node=2", "--max-restarts=1", "leaves.py")

    assert ended.returncode == 0, ended.stderr
    former, left, states = ended.stdout.split()
    assert (former, left) == ("2", "0"), "workers of the first start"
    assert "Z" not in states, "a zombie"
    with socket.socket() as client:
        port = int((tmp_path / "port").read_text(encoding="utf-8"))
        assert client.connect_ex(("127.0.0.1", port)), "it still listens"


def test_two_machines_start_again_together(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    processes = [
        subprocess.Popen(
            tied([
                *LAUNCH, "--ips=127.0.0.1,127.0.0.2", f"--host_ip=127.0.0.{number}",
                f"--log_dir=log{number}", f"--master_port={port}", "--max-restarts=1",
                SCRIPT, "sync", "saved", "10", "1:6",
            ]),
            cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for number in (1, 2)
    ]  # fmt: skip

    outputs = [process.communicate(timeout=WITHIN_S) for process in processes]

    assert [process.returncode for process in processes] == [0, 0], outputs
    assert json.loads(outputs[0][0].splitlines()[-1])["restarts"] == 1
