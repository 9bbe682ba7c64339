"""Hooks for a ``conftest.py``: tests with the mark ``forked`` start forks."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from paramfleet_worker.process.prepared.running import PreparedProcess

__all__ = ["pytest_runtest_protocol", "pytest_sessionfinish"]

FORKED = "forked"
"""The mark of tests whose processes are forks of a prepared one."""

MODULES = ("nursery.process", "peer.process")
"""Programs of the benchmarks, which are forked, too."""

_OF_THIS_RUN = PreparedProcess(MODULES, folder=Path(__file__).parents[2])


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
