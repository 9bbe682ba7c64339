"""Hooks for a ``conftest.py``: tests with the mark ``forked`` start forks."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.prepared.starting import Prepared

from paramfleet_shared.settings.config import read_environment
from paramfleet_shared.system.processes.keeping import tied

__all__ = ["pytest_runtest_protocol", "pytest_sessionfinish"]

FORKED = "forked"
"""The mark of tests whose processes are forks of a prepared one."""

PADDING = "." * 4096
"""Room for the command lines of forks."""


class _OfThisRun:
    """The prepared process of this pytest process; it starts when a test first needs it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self.prepared = Prepared(self._prepare, starters=True)

    def close(self) -> None:
        self.prepared.close()
        if self._process is not None:
            self._process.wait()

    def _prepare(self) -> socket.socket:
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        module = "tests.prepared.process"
        with its:
            self._process = subprocess.Popen(
                tied([sys.executable, "-m", module, str(its.fileno()), PADDING]),
                cwd=Path(__file__).parents[2],
                env={**read_environment(), "OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[its.fileno()],
                start_new_session=True,
            )
        return ours


_OF_THIS_RUN = _OfThisRun()


def _is_forked(item: pytest.Item) -> bool:
    mark = item.get_closest_marker(FORKED)
    if mark is not None:
        return mark.args != (False,)
    return "programs" in getattr(item, "fixturenames", ())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Fork what a test and its fixtures start, if the test has the mark or runs ``jobs``."""
    if not _is_forked(item):
        return (yield)
    with _OF_THIS_RUN.prepared.starting():
        return (yield)


def pytest_sessionfinish() -> None:
    """End the prepared process."""
    _OF_THIS_RUN.close()
