"""The suite's runner: its three phases, and what it makes of coverage data."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from paramfleet_shared.system.processes.keeping import tied

RUNNER = Path(__file__).parents[3] / "scripts" / "run_tests.py"

PROJECT = """
[tool.pytest.ini_options]
filterwarnings = ["error"]
asyncio_default_fixture_loop_scope = "function"
addopts = [
  "--strict-markers", "-p", "no:cacheprovider",
  "-p", "no:schemathesis", "-p", "no:hypothesispytest",
]
markers = ["slow_machine"]
[tool.coverage.run]
branch = true
parallel = true
patch = ["_exit", "subprocess"]
disable_warnings = ["no-data-collected"]
"""

A_TEST_WHOSE_PROCESS_DIED = """
from pathlib import Path

def test_a_killed_process_leaves_half_a_file():
    Path(".coverage.host.pid7.Xabcdefx").write_bytes(b"SQLite format 3")
    assert True
"""


A_TEST_THAT_STARTS_A_PROCESS = """
import subprocess, sys

def test_a_process_of_pytest_is_measured_and_not_what_it_starts():
    assert "coverage" in sys.modules
    ask = [sys.executable, "-c", "import sys; print('coverage' in sys.modules)"]
    assert subprocess.check_output(ask, text=True) == "False\\n"
"""


A_TEST_THAT_IMPORTS = """
import subprocess, sys

def test_what_is_imported_is_compiled_once_and_for_all():
    assert not sys.dont_write_bytecode
    ask = [sys.executable, "-c", "import sys; print(sys.dont_write_bytecode)"]
    assert subprocess.check_output(ask, text=True) == "False\\n"
"""

TESTS_THAT_ARE_NOT_TRACED = """
import os
import pytest

@pytest.mark.parametrize("number", range(3))
def test_a_process_ends_as_it_did(number, seen=[]):
    seen.append(os._exit)
    assert all(each is seen[0] for each in seen)
    assert "COVERAGE_PROCESS_CONFIG" not in os.environ
"""

MEASURED = Path("shared/paramfleet_shared/net/wire")
COVERING = Path("tests/unit/shared/net/wire")

TWO_HALVES = """
def one(x):
    y = x + 1
    return 2 * y


def two(x):
    y = x + 2
    return 3 * y
"""

ORDINARY = """
import sys
from pathlib import Path

def test_the_first_half():
    sys.path.insert(0, "shared/paramfleet_shared/net/wire")
    import halves
    assert halves.one(1) == 4
    Path("{mark}").touch()
"""

ALONE = """
import sys
from pathlib import Path
import pytest

@pytest.mark.slow_machine
def test_the_second_half_when_all_others_have_ended():
    sys.path.insert(0, "shared/paramfleet_shared/net/wire")
    import halves
    assert halves.two(1) == {expected}
    assert Path("b").exists() and Path("c").exists()

def test_of_the_same_file():
    Path("c").touch()
"""

FAILS = """
from pathlib import Path

def test_it_fails():
    Path("b").touch()
    assert False
"""


def run(
    tmp_path: Path, test: str, *options: str, environment: dict[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run the runner on a project that has one measured folder, and in it this test."""
    (tmp_path / MEASURED).mkdir(parents=True)
    (tmp_path / MEASURED / "test_it.py").write_text(test)
    return started(tmp_path, *options, str(MEASURED / "test_it.py"), environment=environment)


def run_whole(tmp_path: Path, **tests: str) -> "subprocess.CompletedProcess[str]":
    """Run the whole suite of a project with one measured module and these files of tests."""
    (tmp_path / MEASURED).mkdir(parents=True)
    (tmp_path / MEASURED / "halves.py").write_text(TWO_HALVES)
    (tmp_path / COVERING).mkdir(parents=True, exist_ok=True)
    for name, text in tests.items():
        (tmp_path / COVERING / f"test_{name}.py").write_text(text)
    text = RUNNER.read_text()
    assert "--numprocesses=3" in text
    runner = tmp_path / RUNNER.name  # one process is enough for two tests, and starts sooner
    runner.write_text(text.replace("--numprocesses=3", "--numprocesses=1"))
    return started(tmp_path, runner=runner)


def started(
    tmp_path: Path,
    *arguments: str,
    runner: Path = RUNNER,
    environment: dict[str, str] | None = None,
) -> "subprocess.CompletedProcess[str]":
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    return subprocess.run(
        tied([sys.executable, str(runner), *arguments]),
        cwd=tmp_path,
        env=environment or {},
        capture_output=True,
        text=True,
        check=False,
    )


def test_each_test_that_is_not_traced_leaves_how_a_process_ends(tmp_path: Path) -> None:
    (tmp_path / "tests" / "other").mkdir(parents=True)
    path = tmp_path / "tests" / "other" / "test_it.py"
    path.write_text(TESTS_THAT_ARE_NOT_TRACED)

    ran = started(tmp_path, "--numprocesses=1", str(path))

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "3 passed" in ran.stdout


def test_half_a_data_file_is_named_and_fails_nothing(tmp_path: Path) -> None:
    ran = run(tmp_path, A_TEST_WHOSE_PROCESS_DIED)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "1 passed" in ran.stdout
    assert "left out: Couldn't use data file" in ran.stdout
    assert ".coverage.host.pid7.Xabcdefx" in ran.stdout


@pytest.mark.parametrize("processes", [0, 1])
def test_what_tests_start_is_not_measured(tmp_path: Path, processes: int) -> None:
    ran = run(tmp_path, A_TEST_THAT_STARTS_A_PROCESS, f"--numprocesses={processes}")

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "test_it.py" in ran.stdout.partition("branch coverage")[2]


@pytest.mark.parametrize("processes", [0, 1])
def test_what_tests_import_is_compiled_once_whatever_the_shell_says(
    tmp_path: Path, processes: int
) -> None:
    shell = {"PYTHONDONTWRITEBYTECODE": "1"}

    ran = run(tmp_path, A_TEST_THAT_IMPORTS, f"--numprocesses={processes}", environment=shell)

    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_tests_for_a_slow_machine_run_last_and_the_floor_is_judged_over_both(
    tmp_path: Path,
) -> None:
    ran = run_whole(tmp_path, a=ALONE.format(expected=9), b=ORDINARY.format(mark="b"))

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "cores and wire: 100.0 % (at least 95 %)" in ran.stdout


TRACED = """
import sys, threading
sys.path.insert(0, "shared/paramfleet_shared/net/wire")
import halves

def test_it():
    assert (sys.gettrace() is not None) is {is_traced}
    assert threading.gettrace() is None, "no thread that a test starts is traced"
    assert halves.{name}(1)
"""


@pytest.mark.parametrize("processes", [0, 1])
def test_tests_of_cores_and_the_wire_alone_are_measured(tmp_path: Path, processes: int) -> None:
    (tmp_path / MEASURED).mkdir(parents=True)
    (tmp_path / MEASURED / "halves.py").write_text(TWO_HALVES)
    wire = COVERING.relative_to("tests")
    for number, folder in enumerate([Path("integration"), wire, wire.parent, Path("zoo")]):
        (tmp_path / "tests" / folder).mkdir(parents=True, exist_ok=True)
        is_traced = folder == wire
        text = TRACED.format(name="one" if is_traced else "two", is_traced=is_traced)
        (tmp_path / "tests" / folder / f"test_{number}.py").write_text(text)

    ran = started(tmp_path, f"--numprocesses={processes}", "tests")

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "4 passed" in ran.stdout
    assert "cores and wire: 66.7 %" in ran.stdout, "one of the two halves"


SAYS_ITS_PLACE = """
import os

def test_it():
    with open("order", "a") as order:
        order.write(f"{name} {{os.getpriority(os.PRIO_PROCESS, 0)}}\\n")
"""


def test_tests_of_single_processes_give_way_to_those_that_wait(tmp_path: Path) -> None:
    for name in ("architecture", "compose", "processes"):
        (tmp_path / "tests" / name).mkdir(parents=True)
        path = tmp_path / "tests" / name / f"test_{name}.py"
        path.write_text(SAYS_ITS_PLACE.format(name=name))

    ran = run_whole(tmp_path, a=ALONE.format(expected=9), b=ORDINARY.format(mark="b"))

    assert ran.returncode == 0, ran.stdout + ran.stderr
    own = os.getpriority(os.PRIO_PROCESS, 0)
    order = (tmp_path / "order").read_text().splitlines()
    assert order == [f"processes {own}", f"compose {own}", "architecture 19"]
    assert [f"= {n} passed" in ran.stdout for n in (1, 4)] == [True, True], ran.stdout


def test_a_failure_and_low_coverage_in_an_earlier_phase_are_the_suites(tmp_path: Path) -> None:
    ran = run_whole(tmp_path, a=ALONE.format(expected=9), b=FAILS)

    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "1 failed" in ran.stdout
    assert "= 1 passed in" in ran.stdout, "the last phase ran"
    assert "FAILED: cores and wire: 66.7 % (at least 95 %)" in ran.stdout


def test_a_failure_in_the_last_phase_is_the_suites(tmp_path: Path) -> None:
    ran = run_whole(tmp_path, a=ALONE.format(expected=0), b=ORDINARY.format(mark="b"))

    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "2 passed" in ran.stdout
    assert ran.stdout.count("1 failed") == 1


def test_the_files_of_long_folders_begin_first(tmp_path: Path) -> None:
    folders = ("architecture", "compose", "processes", "unit")
    for name in folders:
        (tmp_path / "tests" / name).mkdir(parents=True)
        text = f"def test_it():\n    with open('order', 'a') as order: order.write('{name} ')\n"
        (tmp_path / "tests" / name / f"test_{name}.py").write_text(text)
    (tmp_path / MEASURED).mkdir(parents=True)
    (tmp_path / MEASURED / "halves.py").write_text(TWO_HALVES)

    ran = started(tmp_path, "--numprocesses=0", "tests")

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert (tmp_path / "order").read_text() == "compose processes architecture unit "
