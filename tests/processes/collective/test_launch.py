"""``paramfleet launch`` of collective jobs: torch's agent, our options, lines and logs."""

import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from paramfleet_shared.system.processes.keeping import tied

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.forked]

LAUNCH = [sys.executable, "-m", "paramfleet_worker", "launch"]
WITHIN_S = 250

SAYS = """
import os, signal, sys
import paramfleet as fleet

fleet.init(is_collective=True)
rank = fleet.worker_index()
print("out", rank, os.getpid(), *fleet.worker_endpoints(), flush=True)
print("err", rank, file=sys.stderr, flush=True)
if rank == 1 and "fail" in sys.argv:
    sys.exit(7)
if rank == 1 and "raise" in sys.argv:
    raise ValueError("no data")
if rank == 1 and "killed" in sys.argv:
    os.kill(os.getpid(), signal.SIGKILL)
if "stay" in sys.argv:
    signal.pause()
fleet.stop_worker()
"""


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def script(folder: Path) -> str:
    path = folder / "says.py"
    path.write_text(SAYS, encoding="utf-8")
    return str(path)


def test_lines_are_labelled_logs_kept_and_the_failed_worker_is_named(tmp_path: Path) -> None:
    ended = subprocess.run(
        tied([*LAUNCH, "--nproc_per_node=2", script(tmp_path), "fail"]),
        cwd=tmp_path, capture_output=True, text=True, timeout=WITHIN_S, check=False,
    )  # fmt: skip

    assert ended.returncode == 7
    assert ended.stdout.startswith("out 0")
    assert "[worker 0] err 0" in ended.stderr
    assert "[worker 1] out 1" in ended.stderr
    assert "[launcher] the job failed: worker 1 exited with code 7" in ended.stderr
    log = (tmp_path / "log" / "workerlog.1").read_text(encoding="utf-8")
    assert sorted(line[:5] for line in log.splitlines()) == ["err 1", "out 1"]


def test_the_last_line_names_the_error_that_ended_the_failed_worker(tmp_path: Path) -> None:
    ended = subprocess.run(
        tied([*LAUNCH, "--nproc_per_node=2", script(tmp_path), "raise"]),
        cwd=tmp_path, capture_output=True, text=True, timeout=WITHIN_S, check=False,
    )  # fmt: skip

    assert ended.returncode == 1
    last = "[launcher] the job failed: worker 1 exited with code 1 (ValueError: no data)"
    assert ended.stderr.splitlines()[-1] == last


def test_the_error_and_its_place_come_first_and_once(tmp_path: Path) -> None:
    ended = subprocess.run(
        tied([*LAUNCH, "--no-verbose", "--nproc_per_node=2", script(tmp_path), "raise"]),
        cwd=tmp_path, capture_output=True, text=True, timeout=WITHIN_S, check=False,
    )  # fmt: skip

    lines = ended.stderr.splitlines()
    at = lines.index("[launcher] error: worker 1: ValueError: no data")
    assert lines[at + 1].startswith(f"[launcher]     {tmp_path}/says.py:")
    assert lines[at + 3 :] == [
        "[launcher]     its log: log/workerlog.1",
        "[launcher] the job failed; logs in log (--verbose shows them here)",
    ]
    assert ended.stderr.count("ValueError") == 2, "the error, and the source of the line"
    assert "failed (exitcode" not in ended.stderr


def test_of_a_killed_worker_the_usual_reason_is_told(tmp_path: Path) -> None:
    ended = subprocess.run(
        tied([*LAUNCH, "--no-verbose", "--nproc_per_node=2", script(tmp_path), "killed"]),
        cwd=tmp_path, capture_output=True, text=True, timeout=WITHIN_S, check=False,
    )  # fmt: skip

    assert ended.returncode == 128 + signal.SIGKILL
    lines = ended.stderr.splitlines()
    at = lines.index("[launcher] error: worker 1 was killed by SIGKILL")
    begin = "[launcher]     SIGKILL often means that memory was exhausted: "
    assert lines[at + 1].startswith(begin)
    assert lines[at + 2 :] == [
        "[launcher]     its log: log/workerlog.1",
        "[launcher] the job failed; logs in log (--verbose shows them here)",
    ]


def test_two_machines_find_each_other_by_their_addresses(
    tmp_path: Path, free_port: int
) -> None:
    processes = [
        subprocess.Popen(
            tied([
                *LAUNCH, "--ips=127.0.0.1,127.0.0.2", f"--host_ip=127.0.0.{number}",
                f"--log_dir=log{number}", f"--master_port={free_port}", script(tmp_path),
            ]),
            cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for number in (1, 2)
    ]  # fmt: skip

    outputs = [process.communicate(timeout=WITHIN_S) for process in processes]

    assert [process.returncode for process in processes] == [0, 0], outputs
    assert outputs[0][0].endswith(" 127.0.0.1 127.0.0.2\n")
    assert "[worker 1] out 1" in outputs[1][1]


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's help is Linux's")
def test_workers_do_not_outlive_a_launcher_that_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen(
        tied([*LAUNCH, "--nproc_per_node=1", script(tmp_path), "stay"]),
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        worker = os.pidfd_open(int(process.stdout.readline().split()[2]))
        poll = select.poll()
        poll.register(worker, select.POLLIN)

        process.kill()

        assert poll.poll(WITHIN_S * 1000), "it is still there"
        os.close(worker)
