"""What is forked from the prepared process is the program that an interpreter would be."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from paramfleet_shared.settings.config import read_environment
from paramfleet_shared.system.processes.keeping import tied

pytestmark = [
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.forked,
    pytest.mark.skipif(sys.platform != "linux", reason="forks are made on Linux alone"),
]

NEW = [sys.executable, "-B"]
"""An option that nothing is forked with."""

SAYS = """
import atexit, json, os, signal, sys, threading, time, warnings
print(json.dumps({
    "argv": sys.argv, "path": sys.path, "file": __file__, "name": __name__,
    "main_file": sys.modules["__main__"].__file__, "cwd": os.getcwd(),
    "environment": dict(os.environ),
    "main": sorted(vars(sys.modules["__main__"])), "words": sys.orig_argv[-2:],
    "handlers": [str(signal.getsignal(n)).split(" at ")[0] for n in (2, 13, 15, 17)],
    "streams": [sys.stdin.isatty(), sys.stdout.encoding, sys.stderr.errors,
                sys.stdout.line_buffering, sys.stderr.line_buffering, sys.stdout.write_through],
    "input": sys.stdin.read(),
    "warnings": [sys.warnoptions, warnings.filters[0][0]],
    "descriptors": sorted(os.listdir("/proc/self/fd")),
    "session": os.getsid(0) == os.getpid(), "group": os.getpgid(0) == os.getpid(),
}))
atexit.register(print, "at exit")
print("to stderr", file=sys.stderr)
thread = threading.Thread(target=lambda: print("a thread's", sys.stdin.closed))
thread.start()
"""

ENDS = {
    "whole": "",
    "code": "sys.exit(7)",
    "sentence": "sys.exit('it is over')",
    "error": "def inner():\n    raise OSError('no such thing')\ninner()",
    "interrupt": "os.kill(os.getpid(), signal.SIGINT); time.sleep(9)",
    "killed": "thread.join(); sys.stdout.flush(); os.kill(os.getpid(), signal.SIGKILL)",
}


def run(
    interpreter: list[str], folder: Path, *words: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        tied([*interpreter, *words]),
        cwd=folder,
        env={**read_environment(), **variables},
        input="given",
        capture_output=True,
        text=True,
        check=False,
        start_new_session=True,
    )


@pytest.mark.parametrize("end", ENDS)
def test_a_script_is_run_as_by_a_new_interpreter(tmp_path: Path, end: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(SAYS + ENDS[end])
    more = {"TRAINING_ROLE": "TRAINER"}  # it forks nothing in its turn
    if end == "whole":
        more["PYTHONUNBUFFERED"] = "1"

    strictly = ["-W", "error"]

    forked = run([sys.executable, *strictly], tmp_path, "script.py", "--epochs=3", **more)
    new = run([*NEW, *strictly], tmp_path, "script.py", "--epochs=3", **more)

    assert forked.returncode == new.returncode
    assert forked.stderr == new.stderr
    facts, *lines = forked.stdout.splitlines()
    facts_of_new, *lines_of_new = new.stdout.splitlines()
    assert json.loads(facts) == json.loads(facts_of_new)
    assert lines == lines_of_new


def test_a_fork_is_a_child_whose_command_line_is_that_of_its_program(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, random, sys, torch\n"
        "print(os.getpid(), os.getppid(), random.random(), 'torch._dynamo' in sys.modules)\n"
        "sys.stdin.read()\n"
    )
    said = []
    for _ in range(2):
        with subprocess.Popen(
            tied([sys.executable, str(script), "--mark=1"]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**read_environment(), "PYTHONUNBUFFERED": "1"},
        ) as process:
            assert process.stdout is not None
            pid, parent, *more = process.stdout.readline().split()
            shown = Path(f"/proc/{process.pid}/cmdline").read_text().rstrip("\0").split("\0")
        assert (int(pid), int(parent)) == (process.pid, os.getpid())
        assert shown == [sys.executable, str(script), "--mark=1"]
        said.append(more)

    assert [was_prepared for _, was_prepared in said] == ["True", "True"]
    assert said[0][0] != said[1][0], "the same random number"


def test_a_file_that_a_script_leaves_open_is_whole(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import mine\n")
    (tmp_path / "mine.py").write_text("left = open('left.txt', 'w')\nleft.write('all')\n")

    assert run([sys.executable], tmp_path, "script.py").returncode == 0

    assert (tmp_path / "left.txt").read_text() == "all"


def test_a_script_beside_a_module_that_is_imported_is_run_by_a_new_interpreter(
    tmp_path: Path,
) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys\nprint('torch' in sys.modules)\nimport sympy\n")
    (tmp_path / "sympy.py").write_text("print('mine')\n")
    (tmp_path / "torch").mkdir()  # without a module, it is nothing that is imported

    assert run([sys.executable], tmp_path, "script.py").stdout == "False\nmine\n"

    (tmp_path / "sympy.py").unlink()
    assert run([sys.executable], tmp_path, "script.py").stdout == "True\n"


def test_a_script_that_is_not_there_is_named_as_by_an_interpreter(tmp_path: Path) -> None:
    forked = run([sys.executable], tmp_path, "script.py")
    new = run(NEW, tmp_path, "script.py")

    assert (forked.returncode, forked.stderr) == (new.returncode, new.stderr)


@pytest.mark.forked(False)
def test_a_test_may_ask_for_new_interpreters(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys\nprint('torch' in sys.modules)\n")

    assert run([sys.executable], tmp_path, "script.py").stdout == "False\n"
