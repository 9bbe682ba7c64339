"""Who reads a launcher's output stands still, and the launcher doesn't: real processes."""

import os
import select
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from paramfleet_shared.settings.config import read_environment
from paramfleet_shared.system.processes.keeping import tied
from paramfleet_shared.testing.patience import LATE_S
from paramfleet_worker.process.terminal.outlets import MOST_LINES_BYTES

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.forked]

MANY = 2 * MOST_LINES_BYTES // 100
"""Lines of a hundred bytes: more than wait for a reader."""

TALKS = f"""
if who == "worker 1":
    for number in range({MANY}):
        print(f"{{number:99d}}")
    sys.stdout.flush()
    os.write(os.open("said", os.O_WRONLY), b"!")
wait()
"""


@pytest.fixture
def talking(tmp_path: Path, preamble: str) -> Iterator[subprocess.Popen[bytes]]:
    """Launch a job that says more than its reader takes, which takes nothing.

    It has all been said when the job writes to the pipe ``said``.
    """
    os.mkfifo(tmp_path / "said")
    script = tmp_path / "train.py"
    script.write_text(preamble + textwrap.dedent(TALKS))
    command = [sys.executable, "-m", "paramfleet_worker", "launch", "--worker_num=2"]
    process = subprocess.Popen(
        tied([*command, str(script)]),
        cwd=tmp_path,
        env=read_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def test_logs_go_on_and_an_interrupt_ends_the_job_while_nothing_reads_the_lines(
    talking: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    said = os.open(tmp_path / "said", os.O_RDONLY | os.O_NONBLOCK)
    try:
        ended = select.poll()
        ended.register(said, select.POLLIN)
        assert ended.poll(1000 * (60 + LATE_S)), "the launcher reads what the worker writes"
    finally:
        os.close(said)

    talking.send_signal(signal.SIGINT)

    assert talking.wait(timeout=10 + LATE_S) == 128 + signal.SIGINT
    kept = (tmp_path / "log" / "workerlog.1").read_text().splitlines()
    assert [line for line in kept if line.strip().isdecimal()] == [
        f"{number:99d}" for number in range(MANY)
    ]
