"""What a launch shows to a person at a terminal, and to a file: a real pty, real processes."""

import json
import os
import re
import signal
import subprocess
import sys
import termios
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

from paramfleet_shared.settings.config import read_environment
from paramfleet_shared.system.processes.keeping import tied

pytestmark = [pytest.mark.processes, pytest.mark.slow]

TRAINS = """
async def train(session):
    for step in range(1, 7):
        facts = {"step": step, "total_steps": 6, "loss": 1 / step, "staleness": 1}
        await session.publish({**facts, "mode": "sync"})
        await asyncio.sleep(0.4)
    print(f"my own words, {who}", flush=True)

take_part(train)
if who == "worker 0":
    print(json.dumps({"auc": 0.75}), flush=True)
"""
"""Six steps, each of some heartbeats, and nearly as many looks of the launcher."""

FAILS = """
if who == "worker 1":
    raise ValueError("no rows in part 3")
wait()
"""

QUIET = {"PARAMFLEET_LAUNCH__VERBOSE": "0", "PARAMFLEET_LEASE_RENEW_S": "0.2"}


@dataclass
class Seen:
    """What was on the terminal until the end."""

    raw: bytes
    code: int

    @property
    def plain(self) -> str:
        return re.sub(r"\x1b\[[0-9;]*m", "", self.raw.decode()).replace("\r\n", "\n")

    @property
    def lines(self) -> list[str]:
        """What stayed: a line that was erased is drawn over."""
        return [line.rpartition("\r\x1b[2K")[2] for line in self.plain[:-1].split("\n")]


def after_the_error(seen: Seen) -> list[str]:
    """Return the line that says what failed, and all of the launcher's that follow."""
    found = [at for at, line in enumerate(seen.lines) if line.startswith("error: ")]
    assert len(found) == 1, seen.plain
    lines = seen.lines[found[0] :]
    return [
        line for line in lines if "] waiting pid=" not in line
    ]  # of the others: when it comes


def at_terminal(
    folder: Path, preamble: str, body: str, *options: str, **variables: str
) -> Seen:
    script = folder / "train.py"
    script.write_text(preamble + textwrap.dedent(body))
    leader, follower = os.openpty()
    termios.tcsetwinsize(follower, (40, 110))
    command = [sys.executable, "-m", "paramfleet_worker", "launch", "--worker_num=2", *options]
    process = subprocess.Popen(
        tied([*command, str(script)]),
        cwd=folder,
        env={**read_environment(), "LANG": "C.UTF-8", "TERM": "xterm", **QUIET, **variables},
        stdin=follower,
        stdout=follower,
        stderr=follower,
        start_new_session=True,
    )
    os.close(follower)
    raw = b""
    try:
        while data := os.read(leader, 1 << 16):
            raw += data
    except OSError:  # the last process that had the terminal has ended
        pass
    finally:
        os.close(leader)
    return Seen(raw, process.wait())


def test_a_terminal_has_the_job_its_page_its_progress_and_its_result(
    tmp_path: Path, preamble: str
) -> None:
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" >> {tmp_path}/opened\n')
    browser.chmod(0o700)

    seen = at_terminal(tmp_path, preamble, TRAINS, "--job=seen", "--open", BROWSER=str(browser))

    assert seen.code == 0, seen.plain
    assert (
        seen.lines[0]
        == "job seen: 2 workers, 1 pserver; logs in log (--verbose shows them here)"
    )
    page = re.search(r"the job's page, .*: (http://127.0.0.1:\d+/)#code=([\w-]+) ", seen.plain)
    assert page is not None, seen.plain
    opened = re.fullmatch(r"(.*)#code=([\w-]+)\n", (tmp_path / "opened").read_text())
    assert opened is not None
    assert opened[1] == page[1]
    assert opened[2] != page[2], "a code opens the page once"
    assert re.search(r"\r\x1b\[2K\x1b\[36m━.*/6  .*loss 0\.\d+  sync", seen.raw.decode())
    assert "[worker 1] my own words, worker 1" in seen.lines
    assert "my own words, worker 0" in seen.lines
    assert '{"auc": 0.75}' in seen.lines
    assert re.match(r"finished after 0:\d\d: step 6 of 6, loss 0\.", seen.lines[-1]), seen.lines
    assert "job.joined" not in seen.plain
    assert "setting" not in seen.plain
    kept = (tmp_path / "log" / "launcherlog.0").read_text()
    assert "launcher worker_num = 2 (argument)\n" in kept
    assert "#code=" not in kept
    assert "job.training" in (tmp_path / "log" / "coordinatorlog.0").read_text()


ENDS_AT_ONCE = """
async def train(session):
    facts = {"total_steps": 600, "loss": 0.5, "staleness": 0, "mode": "sync"}
    await session.publish({**facts, "step": 1})
    await asyncio.sleep(2)
    await session.publish({**facts, "step": 600, "loss": 0.25})

take_part(train)
threading.Event().wait(1)
"""
"""Takes all but one of its steps within one look of the launcher, and ends after the job."""


def test_the_result_has_the_last_step_that_was_taken(tmp_path: Path, preamble: str) -> None:
    seen = at_terminal(tmp_path, preamble, ENDS_AT_ONCE)

    assert seen.code == 0, seen.plain
    last = r"finished after 0:\d\d: step 600 of 600, loss 0\.2500, sync; logs in log"
    assert re.fullmatch(last, seen.lines[-1]), seen.lines


def test_of_a_failure_who_and_the_cause_come_first_and_in_red(
    tmp_path: Path, preamble: str
) -> None:
    seen = at_terminal(tmp_path, preamble, FAILS)

    assert seen.code == 1
    line = preamble.count("\n") + 3
    assert after_the_error(seen) == [
        "error: worker 1: ValueError: no rows in part 3",
        f"    {tmp_path}/train.py:{line}, in <module>",
        '        raise ValueError("no rows in part 3")',
        "    its log: log/workerlog.1",
        "the job failed; logs in log (--verbose shows them here)",
    ]
    assert b"\x1b[1;31merror: worker 1: ValueError: no rows in part 3\x1b[0m" in seen.raw
    assert seen.plain.count("ValueError: no rows") == 1
    assert "Traceback" not in seen.plain
    log = (tmp_path / "log" / "workerlog.1").read_text()
    assert "Traceback (most recent call last):" in log


MEETS = """
import torch
import paramfleet as fleet

fleet.init()
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
    sys.exit()
model = fleet.distributed_model(fleet.nn.Embedding(0, 8, name="deep"))
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
fleet.distributed_optimizer(optimizer, fleet.DistributedStrategy())
fleet.init_worker()
if who == "worker 1":
    END
fleet.barrier_worker()
wait()
"""


def test_who_only_misses_the_one_that_failed_says_nothing(
    tmp_path: Path, preamble: str
) -> None:
    raises = MEETS.replace("END", "raise ValueError('no rows in part 3')")

    seen = at_terminal(tmp_path, preamble, raises)

    said = after_the_error(seen)
    assert said[0] == "error: worker 1: ValueError: no rows in part 3"
    assert len(said) == 5, seen.plain
    assert "Traceback" not in seen.plain
    assert "SIGTERM" not in seen.plain
    for name in ("workerlog.0", "serverlog.0"):
        assert "Traceback" not in (tmp_path / "log" / name).read_text()


@pytest.mark.parametrize("begun", ["", MEETS.partition("if who ==")[0]])
def test_the_message_that_ends_a_script_is_the_cause(
    tmp_path: Path, preamble: str, begun: str
) -> None:
    ends = "sys.exit('no data folder: set --data')"
    script = f"import paramfleet\n{begun}if who == 'worker 1':\n    {ends}\nwait()"

    seen = at_terminal(tmp_path, preamble, script)

    assert seen.code == 1
    line = (preamble + script).partition(ends)[0].count("\n") + 1
    assert after_the_error(seen) == [
        "error: worker 1: no data folder: set --data",
        f"    {tmp_path}/train.py:{line}, in <module>",
        f"        {ends}",
        "    its log: log/workerlog.1",
        "the job failed; logs in log (--verbose shows them here)",
    ]
    assert seen.plain.count("no data folder") == 2, "the cause, and the source of the line"
    log = (tmp_path / "log" / "workerlog.1").read_text()
    assert log.endswith("no data folder: set --data\n")


def test_the_message_of_a_script_without_paramfleet_is_the_cause(
    tmp_path: Path, preamble: str
) -> None:
    ends = "sys.exit('no data folder: set --data')"

    seen = at_terminal(tmp_path, preamble, f"if who == 'worker 1':\n    {ends}\nwait()")

    assert seen.code == 1
    assert after_the_error(seen) == [
        "error: worker 1: no data folder: set --data",
        "    its log: log/workerlog.1",
        "the job failed; logs in log (--verbose shows them here)",
    ]


IMITATES = r"""
import logging, torch
import paramfleet as fleet

if who == "worker 1":
    try:
        1 / 0
    except ZeroDivisionError:
        logging.exception("a step failed")
    text = 'no rows; the reader said:\n'
    text += 'Traceback (most recent call last):\n  File "reader.py", line 1, in <module>\n'
    raise ValueError(text + 'OSError: gone')
wait()
"""


@pytest.mark.parametrize("options", [(), ("--no-share_imports",)])
def test_a_traceback_in_the_text_of_an_error_is_not_the_cause(
    tmp_path: Path, preamble: str, options: tuple[str, ...]
) -> None:
    seen = at_terminal(tmp_path, preamble, IMITATES, *options)

    said = after_the_error(seen)
    assert said[0] == "error: worker 1: ValueError: no rows; the reader said:"
    line = (preamble + IMITATES).partition("    raise")[0].count("\n") + 1
    assert said[1].startswith(f"    {tmp_path}/train.py:{line}, in <module>")
    assert len(said) == 5
    assert "OSError" not in seen.plain.replace(said[2], "")


KILLS = """
if who == "NAME":
    os.kill(os.getpid(), signal.SIGKILL)
wait()
"""


@pytest.mark.parametrize("name", ["worker 1", "pserver 0"])
def test_of_a_killed_process_the_usual_reason_is_told(
    tmp_path: Path, preamble: str, name: str
) -> None:
    seen = at_terminal(tmp_path, preamble, KILLS.replace("NAME", name))

    assert seen.code == 128 + signal.SIGKILL
    said = after_the_error(seen)
    assert said[0] == f"error: {name} was killed by SIGKILL"
    assert said[1].startswith("    SIGKILL often means that memory was exhausted: `dmesg` ")
    assert ("--data_dir, or --replicas 1" in said[1]) == (name == "pserver 0")
    log = "workerlog.1" if name == "worker 1" else "serverlog.0"
    assert said[2:] == [
        f"    its log: log/{log}",
        "the job failed; logs in log (--verbose shows them here)",
    ]


def test_of_an_exit_without_a_word_the_place_and_the_last_lines_are_told(
    tmp_path: Path, preamble: str
) -> None:
    script = (
        "import paramfleet\nif who == 'worker 1':\n    say('step 1')\n    sys.exit(7)\nwait()"
    )

    seen = at_terminal(tmp_path, preamble, script)

    assert seen.code == 7
    line = preamble.count("\n") + 4
    assert after_the_error(seen) == [
        "error: worker 1 exited with code 7",
        f"    {tmp_path}/train.py:{line}, in <module>",
        "        sys.exit(7)",
        f"the last lines of {tmp_path}/log/workerlog.1:",
        "    step 1",
        "the job failed; logs in log (--verbose shows them here)",
    ]


def test_a_file_gets_neither_colours_nor_what_is_for_the_logs(
    tmp_path: Path, preamble: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(preamble + textwrap.dedent(TRAINS))
    command = [sys.executable, "-m", "paramfleet_worker", "launch", "--worker_num=2"]

    ended = subprocess.run(
        tied([*command, "--job=kept", str(script)]),
        cwd=tmp_path,
        env={**read_environment(), **QUIET},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )

    assert json.loads(ended.stdout.splitlines()[-1]) == {"auc": 0.75}
    assert "\x1b" not in ended.stderr
    patterns = (
        r"\[launcher\] job kept: 2 workers, 1 pserver; logs in log \(.*\)",
        r"\[launcher\] the job's page: http://127.0.0.1:\d+/ \(.*\)",
        r"\[(worker 1|pserver 0)\] .*",
        r"\[worker 0\] done",
        r"\[launcher\] finished after 0:\d\d: step 6 of 6, .*",
    )
    strange = [
        line
        for line in ended.stderr.splitlines()
        if not any(re.fullmatch(pattern, line) for pattern in patterns)
    ]
    assert not strange
    assert "job.joined" not in ended.stderr
