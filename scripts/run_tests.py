"""Run pytest under branch coverage: ``python scripts/run_tests.py [pytest's arguments]``.

Measured are pytest's own processes, not those that tests start: a tracer would make each of
them half as slow again. The run fails if the modules without input and output (the cores and
the wire), which tests can reach wholly without other processes, are covered too little.
"""

import io
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import coverage
import pytest

FLOOR_PERCENT = 95.0
"""Branch coverage that every run of the whole suite must reach in ``MEASURED``."""

AT_ONCE = ("--numprocesses=2", "--dist=loadfile", "--no-loadscope-reorder", "--durations=25")
"""How the whole suite runs: two files at once, because tests of processes often wait; in the
order of folders, because the cluster of containers takes longest and comes near the start."""

MEASURED = ("client/paramfleet/*/core", "services/*/*/core", "shared/paramfleet_shared/wire")
"""Folders of modules without input and output, which tests can reach wholly. Nothing else is
measured: that would slow every test down."""

_INHERITED = "COVERAGE_PROCESS_CONFIG"
"""The variable by which coverage starts in the processes of a process that it measures."""


def pytest_collection_finish() -> None:
    """In each process of pytest that runs tests: let nothing that they start be measured."""
    os.environ.pop(_INHERITED, None)  # noqa: TID251 - what this process hands on


class CoverageFloor:
    """A pytest plugin: measures the run, and fails it below the floor.

    Args:
        is_whole: Whether the whole suite runs; of a part nothing is demanded.
    """

    def __init__(self, *, is_whole: bool) -> None:
        self._is_whole = is_whole
        # Absolute: processes of tests run in folders of their own.
        folders = [str(path) for each in MEASURED for path in sorted(Path.cwd().glob(each))]
        self._measured = coverage.Coverage(source=folders, messages=False)
        self._measured.erase()
        self._measured.start()
        self._lines: list[str] = []

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Put the data of all processes together, and judge them."""
        self._measured.stop()
        self._measured.save()
        combined = coverage.Coverage(messages=False)
        unread = _combine(combined)
        table = io.StringIO()
        floor = combined.report(file=table)
        demanded = f"{floor:.1f} % (at least {FLOOR_PERCENT:.0f} %)"
        self._lines = [
            *table.getvalue().splitlines(),
            *unread,
            f"cores and wire: {demanded}",
        ]
        if self._is_whole and floor < FLOOR_PERCENT:
            self._lines.append("FAILED: the coverage of the cores and the wire is too low")
            if session.exitstatus == pytest.ExitCode.OK:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show the judgement above pytest's last line, and what passed only when run again."""
        for report in terminalreporter.getreports("rerun"):
            terminalreporter.section(f"the first run of {report.nodeid}")
            terminalreporter.line(report.longreprtext)
        terminalreporter.section("branch coverage")
        for line in self._lines:
            terminalreporter.line(line)


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
    """Run pytest; return its exit code, not 0 either below the floor."""
    plugin = CoverageFloor(is_whole=not arguments)
    each = ("-p", Path(__file__).stem)  # this module, in the processes that pytest starts, too
    return int(pytest.main([*each, *(arguments or AT_ONCE)], plugins=[plugin]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
