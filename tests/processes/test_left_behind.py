"""A test run that is killed leaves nothing behind that its tests have started."""

import ast
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from paramfleet_shared.system.processes.keeping import tied

pytestmark = [
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="the kernel's help is Linux's"),
]

HERE = Path(__file__).parent
WITHIN_S = 60.0
BRIEF = {"curl", "mount", "umount", "become", "NOBODY"}
"""Programs that end by themselves, and what turns a test into another user to run one."""


@pytest.mark.parametrize("folder", ["training", "launcher"])
def test_nothing_outlives_a_test_run_that_is_killed(tmp_path: Path, folder: str) -> None:
    options = ["-q", "-s", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'run'}"]
    command = [sys.executable, "-m", "pytest", *options, str(HERE / folder / "never_ends.py")]
    with subprocess.Popen(
        tied(command), stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as run:
        assert run.stdout is not None
        said = ""
        while "all runs" not in said:
            line = run.stdout.readline()
            assert line, f"it ended:\n{said}"
            said += line
        started = {pid: os.pidfd_open(pid) for pid in descendants(run.pid)}
        run.kill()

    left = [pid for pid, fd in started.items() if not select.select([fd], [], [], WITHIN_S)[0]]
    for pid, descriptor in started.items():
        if pid in left:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        os.close(descriptor)
    assert left == []
    assert len(started) >= 6, "Redis, keeper, coordinator, pserver, worker and who started them"


def descendants(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").iterdir():
        for word in (task / "children").read_text().split():
            yield int(word)
            yield from descendants(int(word))


def test_a_test_ties_what_it_starts() -> None:
    untied = [
        f"{path.relative_to(HERE)}:{call.lineno}"
        for path in HERE.rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call)
        and ast.unparse(call.func) in {"subprocess.run", "subprocess.Popen"}
        and not is_tied(call.args[0])
    ]

    assert untied == [], "what these lines start outlives a test run that is killed: tied()"


def is_tied(command: ast.expr) -> bool:
    """Return whether this starts what ends with its starter, or soon by itself."""
    if isinstance(command, ast.Call):
        return ast.unparse(command.func) == "tied"
    first = command.elts[0] if isinstance(command, ast.List) else command
    return ast.unparse(first).strip("*'") in BRIEF
