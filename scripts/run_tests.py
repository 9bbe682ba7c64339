"""Run pytest under branch coverage: ``python scripts/run_tests.py [pytest's arguments]``.

Without arguments the whole suite runs, in three phases: many files of tests of whole jobs at
once; then the cluster of containers, which mostly waits, and beside it what gives way to it,
the tests of single processes; then alone the tests that a busy machine breaks, which have the
mark ``slow_machine``. With arguments pytest runs once, with them.

Measured are the main threads of pytest's own processes, not what tests start, and of the
suite's tests those of the modules without input and output alone (the cores and the wire):
under a tracer Python takes up to four times as long. Tests can reach these modules wholly
without other processes, so the run fails if they are covered too little.
"""

import contextlib
import io
import os
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import coverage
import pytest

LEAST_PERCENT = 95.0
"""Branch coverage that every run of the whole suite must reach in ``MEASURED``."""

ALONE = "slow_machine"
"""The mark of tests whose bounds hold only while nothing else runs."""

AT_ONCE = ("--numprocesses=3", "--dist=loadfile", "--no-loadscope-reorder", "--durations=25")
"""How most of the suite runs: three files at once on two cores, because tests of processes
often wait; in the order that ``ORDER`` gives. With four it takes a fifth less, and eight
processes want a core at a time: too many for tests that watch what others do."""

BESIDE = ("architecture", "fuzz", "recovery", "unit")
"""Folders of ``tests`` whose tests run beside those of ``WAITING``, and give way to them."""

WAITING = "compose"
"""The folder of ``tests`` whose tests wait for minutes, with bounds that hold only where what
else runs gives way."""

GIVES_WAY = "--gives-way"
"""Pytest's option in the processes that run the second phase."""

LOWEST = 19
"""How much less than others a process wants that gives way."""

ORDER = ("compose", "idioms", "processes", "security", "fuzz", "integration")
"""Folders of ``tests`` whose files begin first, in this order. They have the longest files: the
short ones at the end keep every process busy until the last second."""

MEASURED = (
    "client/paramfleet/training/*/core",
    "services/*/*/core",
    "shared/paramfleet_shared/net/wire",
)
"""Folders of modules without input and output, which tests can reach wholly. Nothing else is
measured: that would slow every test down."""

COVERING = (
    "unit/client/training/localsgd",
    "unit/coordinator",
    "unit/pserver/core",
    "unit/pserver/durability/log",
    "unit/pserver/waiting",
    "unit/shared/net/wire",
    "unit/worker/core",
)
"""Folders of ``tests`` whose tests are measured: those of these modules, and of what is next to
them. To trace all others would double the time of each, and they have to reach nothing."""

_INHERITED = "COVERAGE_PROCESS_CONFIG"
"""The variable by which coverage starts in the processes of a process that it measures."""

_NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"
"""The variable that lets each interpreter compile again what it imports. Hundreds start, and
each process of pytest would also rewrite each assertion, so the suite doesn't have it."""

_ENDED = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
"""How a phase ends that has run its tests. Otherwise no further one begins."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of the second phase."""
    parser.addoption(GIVES_WAY, action="store_true", help="give way to tests that wait")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the files of ``ORDER``'s folders first; all else keeps its order."""
    folders = [config.rootpath / "tests" / name for name in ORDER]

    def rank(item: pytest.Item) -> int:
        inside = (n for n, folder in enumerate(folders) if item.path.is_relative_to(folder))
        return next(inside, len(folders))

    items.sort(key=rank)


def pytest_collection_finish() -> None:
    """In each process of pytest that runs tests: let nothing that they start be measured."""
    os.environ.pop(_INHERITED, None)  # noqa: TID251 - what this process hands on


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Trace a test of the folders of ``COVERING``, and one of no folder of ``tests``."""
    tests = item.config.rootpath / "tests"
    if item.config.getoption(GIVES_WAY) and not item.path.is_relative_to(tests / WAITING):
        os.setpriority(os.PRIO_PROCESS, 0, LOWEST)  # what it starts inherits it
    covering = [tests / name for name in COVERING]
    if not item.path.is_relative_to(tests) or any(map(item.path.is_relative_to, covering)):
        threading.settrace(None)  # threads of tests run kernels and files, and no core
        return (yield)
    with _untraced():
        return (yield)


@contextlib.contextmanager
def _untraced() -> Iterator[None]:
    """Stop the measurement of this process, if there is one, and go on with it afterwards."""
    running = coverage.Coverage.current()
    if running is None:
        yield
        return
    running.stop()
    exits = os._exit
    try:
        yield
    finally:
        running.start()
        os._exit = exits  # each start wraps it once more, at last deeper than Python calls
        os.environ.pop(_INHERITED, None)  # noqa: TID251 - what this process hands on


def phases() -> list[tuple[str, ...]]:
    """Return pytest's arguments of each phase of the whole suite that has tests.

    Collecting takes seconds, so each phase collects its own folders only, and the last one
    only files that name its mark.
    """
    files = sorted(Path("tests").rglob("test_*.py"))
    folders = sorted({path.parts[1] for path in files})
    second = [f"tests/{name}" for name in folders if name in {*BESIDE, WAITING}]
    first = [f"tests/{name}" for name in folders if f"tests/{name}" not in second]
    marked = [str(path) for path in files if ALONE in path.read_text(encoding="utf-8")]
    found = [
        (first, (*AT_ONCE, "-m", f"not {ALONE}")),
        (second, (*AT_ONCE, "-m", f"not {ALONE}", GIVES_WAY)),
        (marked, ("--numprocesses=1", "-m", ALONE)),
    ]
    return [(*options, *paths) for paths, options in found if paths]


def run(runs: Sequence[Sequence[str]]) -> int:
    """Run pytest once with each of these arguments; return the worst exit code."""
    plugin = ("-p", Path(__file__).stem)  # in the processes that pytest starts, too
    worst = 0
    for arguments in runs:
        code = pytest.main([*plugin, *arguments])
        worst = max(worst, int(code))
        if code not in _ENDED:
            break
    return worst


class Measurement:
    """Branch coverage of this process, and of those that pytest runs tests in."""

    def __init__(self) -> None:
        # Absolute: processes of tests run in folders of their own.
        folders = [str(path) for each in MEASURED for path in sorted(Path.cwd().glob(each))]
        self._measured = coverage.Coverage(source=folders, messages=False)
        self._measured.erase()
        self._measured.start()

    def report(self) -> float:
        """Put the data of all processes together and print them; return the percentage."""
        self._measured.stop()
        self._measured.save()
        combined = coverage.Coverage(messages=False)
        unread = _combine(combined)
        table = io.StringIO()
        percent = combined.report(file=table)
        lines = ["branch coverage", *table.getvalue().splitlines(), *unread]
        print(*lines, sep="\n")
        return percent


def _combine(combined: coverage.Coverage) -> list[str]:
    """Put the data files together; return a line for each that could not be read.

    A process that a test killed while it wrote its data leaves half a file. That is no
    fault of the suite, so it must not become an error, as pytest makes of each warning.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        combined.combine()
    combined.save()
    return [f"left out: {warning.message}" for warning in caught]


def main(arguments: Sequence[str]) -> int:
    """Run pytest; return its exit code, of the whole suite not 0 if it covers too little."""
    sys.dont_write_bytecode = False
    os.environ.pop(_NO_BYTECODE, None)  # noqa: TID251 - what this process hands on
    measurement = Measurement()
    code = run([arguments] if arguments else phases())
    percent = measurement.report()
    is_low = not arguments and percent < LEAST_PERCENT
    verdict = f"cores and wire: {percent:.1f} % (at least {LEAST_PERCENT:.0f} %)"
    print(f"FAILED: {verdict}" if is_low else verdict)
    return code or int(is_low and pytest.ExitCode.TESTS_FAILED)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
