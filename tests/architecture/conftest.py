"""Programs of pages start as forks, where a test says so."""

from tests.prepared.plugin import pytest_runtest_protocol, pytest_sessionfinish

__all__ = ["pytest_runtest_protocol", "pytest_sessionfinish"]
