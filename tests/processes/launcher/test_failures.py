"""When a process of a local job dies: who is named, what is left, how long it takes."""

import itertools
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paramfleet_shared.system.processes.keeping import tied
from paramfleet_shared.testing.patience import LATE_S

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.forked]

EVERYONE = ("worker 0", "worker 1", "pserver 0", "pserver 1")
LOCAL = ("--server_num=2", "--worker_num=2")


def failures(launched: Any) -> list[str]:
    return [line for line in launched.said if line.startswith("the job failed")]


@pytest.mark.parametrize("name", ["worker 1", "worker 0", "pserver 1"])
def test_a_process_that_exits_non_zero_is_named_and_its_code_is_the_launchers(
    launch: Callable[..., Any], name: str
) -> None:
    launched = launch(f'if who == "{name}": sys.exit(7)\nwait()', *LOCAL)

    code = launched.read_to_end()

    assert code == 7
    assert failures(launched)[0].startswith(f"the job failed: {name} exited with code 7")
    assert launched.said[-1] == f"the job failed: {name} exited with code 7"
    assert launched.survivors(0.0) == []


def test_the_last_twenty_lines_of_the_dead_one_are_shown(launch: Callable[..., Any]) -> None:
    body = """
        if who == "worker 1":
            for number in range(30):
                say(f"line {number}")
            raise RuntimeError("the loss is nan")
        wait()
        """
    launched = launch(body, *LOCAL)

    launched.read_to_end()

    at = launched.said.index(f"the last lines of {launched.cwd}/log/workerlog.1:")
    after = itertools.takewhile(lambda line: line.startswith(" "), launched.said[at + 1 :])
    shown = [line.strip() for line in after]
    assert len(shown) == 20
    assert shown[-1] == "RuntimeError: the loss is nan"
    assert "line 29" in shown
    assert "line 5" not in shown
    last = "the job failed: worker 1 exited with code 1 (RuntimeError: the loss is nan)"
    assert launched.said[-1] == last


@pytest.mark.parametrize(
    ("limit", "code", "begin"),
    [
        (18, 1, "paramfleet launch: the limit of open files, 18 (ulimit -n), is reached: "),
        (200, 0, "[launcher] warning: the limit of open files is 200 (ulimit -n)"),
    ],
)
def test_few_open_files_are_said_with_the_limit_and_the_command(
    launch: Callable[..., Any], limit: int, code: int, begin: str
) -> None:
    bounded = ("bash", "-c", f'ulimit -n {limit}; exec "$@"', "bash")

    launched = launch("take_part()", "--worker_num=1", prefix=bounded)

    assert launched.read_to_end() == code, launched.text
    said = [line for line in launched.lines if line.startswith(begin)]
    assert len(said) == 1, launched.text
    assert "`ulimit -n 16384`" in said[0]


@pytest.mark.parametrize("name", ["worker 1", "pserver 0"])
def test_a_killed_process_is_named_with_its_signal_and_nothing_is_left_after_three_seconds(
    launch: Callable[..., Any], name: str
) -> None:
    launched = launch("wait()", *LOCAL)
    launched.wait_all(*EVERYONE)

    os.kill(launched.pids[name], signal.SIGKILL)
    started = time.perf_counter()
    code = launched.read_to_end()

    assert time.perf_counter() - started < 3 + LATE_S
    assert code == 128 + signal.SIGKILL
    assert failures(launched)[0].startswith(f"the job failed: {name} was killed by SIGKILL")
    assert launched.survivors(0.0) == []


def test_who_ignores_sigterm_is_killed_in_time(launch: Callable[..., Any]) -> None:
    body = """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if who == "worker 1":
            sys.stdin.read()
            os.kill(os.getpid(), signal.SIGSEGV)
        wait()
        """
    launched = launch(body, *LOCAL)
    launched.read_until("the job failed: worker 1 was killed by SIGSEGV")
    started = time.perf_counter()

    launched.read_to_end()

    assert time.perf_counter() - started < 3 + LATE_S
    assert launched.survivors(0.0) == []


@pytest.mark.forked(False)
def test_what_a_script_has_started_dies_with_it(launch: Callable[..., Any]) -> None:
    body = """
        program = (
            "import os, signal, sys, threading;"
            "signal.signal(signal.SIGTERM, signal.SIG_IGN);"
            "print(f'child pid={os.getpid()}', file=sys.stderr, flush=True);"
            "threading.Event().wait()"
        )
        subprocess.Popen([sys.executable, "-c", program])
        wait()
        """
    launched = launch(body, "--server_num=1", "--worker_num=2")
    names = ("worker 0", "worker 1", "pserver 0")
    launched.wait_all(*names)
    launched.read_until(*(f"[{name}] child pid=" for name in names))

    os.kill(launched.pids["worker 0"], signal.SIGKILL)
    launched.read_to_end()

    assert len(launched.pids) == 6
    assert launched.survivors(0.0) == []


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_an_interrupt_leaves_no_process_behind(
    launch: Callable[..., Any], number: signal.Signals, code: int
) -> None:
    launched = launch("wait()", *LOCAL)
    launched.wait_all(*EVERYONE)

    launched.process.send_signal(number)
    started = time.perf_counter()

    assert launched.read_to_end() == code
    assert time.perf_counter() - started < 3 + LATE_S
    assert launched.survivors(0.0) == []
    assert failures(launched) == []


@pytest.mark.forked(False)
def test_a_ctrl_c_while_the_command_imports_ends_it_with_one_line(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("print('imports', flush=True)\ninput()\n")
    launching = subprocess.Popen(
        tied([sys.executable, "-m", "paramfleet_worker", "launch", "train.py"]),
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert launching.stdout is not None
    assert launching.stdout.readline() == "imports\n"

    launching.send_signal(signal.SIGINT)
    _, said = launching.communicate(timeout=60)

    assert launching.returncode == 130
    assert said == "paramfleet: interrupted\n"


def test_a_second_ctrl_c_ends_those_who_ignore_the_first(
    launch: Callable[..., Any],
) -> None:
    body = "signal.signal(signal.SIGTERM, lambda *_: say('not yet'))\nwait()"
    launched = launch(body, *LOCAL)
    launched.wait_all(*EVERYONE)

    launched.process.send_signal(signal.SIGINT)
    launched.read_until("not yet")
    launched.process.send_signal(signal.SIGINT)

    assert launched.read_to_end() == 130
    assert launched.survivors(0.0) == []


@pytest.mark.forked(False)
def test_nothing_survives_a_launcher_that_is_killed(launch: Callable[..., Any]) -> None:
    launched = launch("wait()", *LOCAL)
    launched.wait_all(*EVERYONE)
    group = os.getpgid(launched.process.pid)

    os.killpg(group, signal.SIGKILL)

    assert launched.survivors(3.0) == []
    assert len(launched.pids) == 4
    launched.read_to_end()  # ends only when coordinator and Redis have closed it too


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's help is Linux's")
@pytest.mark.forked(False)
def test_nothing_survives_a_launcher_and_its_keeper_that_are_killed(
    launch: Callable[..., Any],
) -> None:
    launched = launch("wait()", *LOCAL)
    launched.wait_all(*EVERYONE)
    started = children_of(launched.process.pid)
    keeper = next(pid for pid in started if "keeper.py" in command_line_of(pid))
    launched.pids = {f"{command_line_of(pid)} {pid}": pid for pid in started}

    os.kill(keeper, signal.SIGKILL)
    launched.process.kill()

    assert len(started) == 7, "keeper, Redis, coordinator, pservers and workers"
    assert launched.survivors(3.0) == []


@pytest.mark.parametrize(
    ("role", "program"), [("coordinator", "paramfleet_coordinator"), ("redis", "redis-server")]
)
def test_a_supporting_process_that_dies_ends_the_job_too(
    launch: Callable[..., Any], role: str, program: str
) -> None:
    launched = launch("wait()", "--server_num=1", "--worker_num=1")
    launched.wait_all("worker 0", "pserver 0")
    victim = next(
        pid for pid in children_of(launched.process.pid) if program in command_line_of(pid)
    )

    os.kill(victim, signal.SIGKILL)

    assert launched.read_to_end() == 137
    assert failures(launched)[0].startswith(f"the job failed: {role} 0 was killed by SIGKILL")


def children_of(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def command_line_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")


@pytest.mark.parametrize("name", ["PSERVER__DATA_DIR", "COORDINATOR__NUM_SHARDS"])
def test_a_setting_that_no_process_reads_is_found_before_one_is_started(
    launch: Callable[..., Any], name: str
) -> None:
    wrong = {f"PARAMFLEET_{name[:-1]}": "7"}
    launched = launch("say('runs')", "--server_num=1", environment=wrong)

    assert launched.read_to_end() == 2, launched.text

    assert f"did you mean PARAMFLEET_{name}?" in launched.text
    assert "runs" not in launched.text
    assert not (launched.cwd / "log").exists()


@pytest.mark.forked(False)
def test_a_redis_that_does_not_start_is_reported_and_nothing_else_is_started(
    launch: Callable[..., Any], tmp_path: Path
) -> None:
    program = tmp_path / "redis-server"
    program.write_text("#!/bin/sh\necho no memory for you\nexit 3\n")
    program.chmod(0o755)
    launched = launch("wait()", *LOCAL, environment={"PATH": f"{tmp_path}:/usr/bin:/bin"})

    code = launched.read_to_end()

    assert code == 3
    assert "    no memory for you" in launched.said
    assert launched.said[-1] == "the job failed: redis 0 exited with code 3"
    assert not (tmp_path / "log" / "workerlog.0").exists()


def test_a_worker_that_trains_without_init_worker_is_warned_of(
    launch: Callable[..., Any],
) -> None:
    body = """
        import torch
        import paramfleet as fleet
        fleet.init()
        if fleet.is_server():
            fleet.init_server()
            fleet.run_server()
        else:
            model = torch.nn.Linear(2, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            sys.exit(7)
        """
    launched = launch(body, "--server_num=1", "--worker_num=1")

    assert launched.read_to_end() == 7
    log = (launched.cwd / "log" / "workerlog.0").read_text(encoding="utf-8")
    assert "worker.trains_alone optimizer=SGD" in log
    assert "fleet.init_worker()" in log


def test_a_script_that_does_not_serve_is_told_the_two_lines_that_it_lacks(
    launch: Callable[..., Any],
) -> None:
    body = """
        import torch
        import paramfleet as fleet

        fleet.init()
        model = fleet.distributed_model(torch.nn.Linear(2, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = fleet.distributed_optimizer(optimizer)
        fleet.init_worker()
        optimizer.minimize(model(torch.ones(1, 2)).sum())
        say(f"{role} has trained")
        fleet.stop_worker()
        """
    sizes = ("--server_num=1", "--worker_num=1")
    launched = launch(body, *sizes)
    assert launched.read_to_end() == 1
    told = launched.said[-1]
    assert told.startswith("the job failed: pserver 0 exited with code 1 (ServerScriptError: ")
    assert "pserver has trained" not in launched.text

    lines = re.findall("`(.*?)`", told)
    indent = 8 * " "
    added = "".join(f"{indent}{line}\n" for line in lines)
    served = body.replace("fleet.init()\n", "fleet.init()\n" + added)
    launched = launch(served, *sizes)

    assert len(lines) == 2
    assert launched.read_to_end() == 0, launched.text
    assert "worker has trained" in launched.text
