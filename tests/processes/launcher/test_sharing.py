"""Pservers and workers of a launch are forks of one process that has imported for them."""

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paramfleet_shared.settings.config import Resolved, read_environment, resolve
from paramfleet_shared.system.processes.keeping import tied
from paramfleet_shared.testing.clock import FakeClock
from paramfleet_shared.testing.patience import LATE_S
from paramfleet_worker.app.launch.planning import plan_launch
from paramfleet_worker.app.launch.preparing import prepared_launch
from paramfleet_worker.app.launch.sharing import Sharing
from paramfleet_worker.config import LaunchSettings
from paramfleet_worker.core.events import ProcessName
from paramfleet_worker.process.ports import PortReservations
from paramfleet_worker.process.prepared.sharing import SharedImports

pytestmark = [
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.forked(False),
    pytest.mark.skipif(os.uname().sysname != "Linux", reason="forks are made on Linux alone"),
]

TELLS = """
was_there = "torch._dynamo" in sys.modules
import torch
say(json.dumps([
    who, was_there, sys.argv[1:], __name__, os.path.basename(__file__),
    os.environ["OMP_NUM_THREADS"], sys.orig_argv[1:],
]))
left = open(f"left-{who}.txt", "w")
left.write("behind")
"""


def told(launched: Any) -> list[list[Any]]:
    lines = [line.partition("] ")[2] for line in launched.lines if '] ["' in line]
    return sorted(json.loads(line) for line in lines)


def test_workers_and_pservers_share_their_imports_and_end_as_interpreters(
    launch: Callable[..., Any], tmp_path: Path
) -> None:
    ends = 'take_part()\nif who == "worker 0":\n    print("the result")\n'
    launched = launch(TELLS + ends, "--server_num=1", "--worker_num=2")

    assert launched.read_to_end() == 0, launched.text

    script = str(tmp_path / "train.py")
    rest = [["--epochs=3"], "__main__", "train.py", "1", [script, "--epochs=3"]]
    assert told(launched) == [
        ["pserver 0", False, *rest],  # it needs no optimizer
        ["worker 0", True, *rest],
        ["worker 1", True, *rest],
    ]
    assert launched.stdout == "the result\n"
    for who in ("pserver 0", "worker 0", "worker 1"):
        assert (tmp_path / f"left-{who}.txt").read_text() == "behind"


def test_who_asks_for_it_gets_new_interpreters(launch: Callable[..., Any]) -> None:
    body = TELLS.replace("import torch\n", "if False: import torch\n") + "take_part()\n"

    launched = launch(body, "--no-share-imports")

    assert launched.read_to_end() == 0, launched.text
    assert [was for _, was, *_ in told(launched)] == [False, False]


def test_an_interrupt_while_all_wait_for_the_imports_ends_the_launch(
    launch: Callable[..., Any],
) -> None:
    launched = launch("import torch\nwait()\n", "--worker_num=2")
    launched.read_until("logs in")

    launched.process.send_signal(signal.SIGINT)

    assert launched.read_to_end() == 128 + signal.SIGINT, launched.text


def test_a_prepared_process_that_does_not_answer_is_killed_and_said_to_be(
    tmp_path: Path,
) -> None:
    script = tmp_path / "writes.py"
    script.write_text("print('done')\n")
    said: list[str] = []
    before = children()
    imports = SharedImports(read_environment(), ["json"], say=said.append, answer_within_s=1.0)
    (prepared,) = children() - before
    descriptor = os.pidfd_open(prepared)
    try:
        os.kill(prepared, signal.SIGSTOP)

        with imports.starting():
            program = subprocess.Popen(
                tied([sys.executable, str(script)]), stdout=subprocess.PIPE, text=True
            )

        assert select.select([descriptor], [], [], 0)[0], "it has ended"
        assert not imports.is_alive
        assert len(said) == 1
        assert f"pid {prepared}, has ended or did not answer within 1 s" in said[0]
        assert program.communicate(timeout=60)[0] == "done\n", "the program ran, and once"
    finally:
        os.close(descriptor)
        imports.close()


async def test_shared_imports_that_do_not_end_are_named_and_given_up(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\n")
    settings: Resolved[LaunchSettings] = resolve(
        LaunchSettings,
        section="launch",
        arguments={"log_dir": tmp_path / "log", "runtime_dir": str(tmp_path / "run")},
        environment={},
    )
    said: list[str] = []

    async def renew() -> None:
        said.append("renewed")

    with PortReservations() as reservations:
        plan = plan_launch(
            settings.value, script=(str(script),), pod_ip="", reservations=reservations
        )
        with prepared_launch(settings, plan, read_environment()) as prepared:
            clock, before = FakeClock(), children()
            sharing = Sharing(prepared, clock)
            sharing.begin(said.append)
            (process,) = children() - before
            os.kill(process, signal.SIGSTOP)

            async with asyncio.TaskGroup() as group:
                group.create_task(sharing.wait(ProcessName("worker", 0), lambda: False, renew))
                await clock.advance(61.0)

    assert children() == before
    assert "renewed" in said
    assert [line for line in said if line != "renewed"] == [
        (
            f"waiting for process {process}, which imports torch for all processes of the "
            "job; at most 60 s"
        ),
        (
            "the shared imports were not done after 60 s: each process does its own imports, "
            "which takes longer"
        ),
    ]


def test_a_fork_that_is_made_too_late_ends_before_it_begins(tmp_path: Path) -> None:
    script = tmp_path / "writes.py"
    script.write_text("print('done')\n")
    before = children()
    imports = SharedImports(
        read_environment(), ["json"], say=lambda _: None, answer_within_s=0.5
    )
    (prepared,) = children() - before
    descriptor = os.pidfd_open(prepared)
    try:
        while not imports.has(1):
            select.select([descriptor], [], [], 0.05)
        os.kill(prepared, signal.SIGSTOP)

        with imports.starting():
            program = subprocess.Popen(
                tied([sys.executable, str(script)]), stdout=subprocess.PIPE, text=True
            )
            os.kill(prepared, signal.SIGCONT)
            select.select([descriptor], [], [], LATE_S)  # it has nobody to answer, and ends

        assert program.communicate(timeout=60)[0] == "done\n", "the program ran once"
    finally:
        os.close(descriptor)
        imports.close()


def children() -> set[int]:
    """Return this process's children."""
    return {
        int(word)
        for task in Path("/proc/self/task").iterdir()
        for word in (task / "children").read_text().split()
    }
