"""Kernels of the tier on disk are compiled before the first test, not inside it."""

import pytest

from paramfleet_shared.tables.disk.warming import warm_disk


@pytest.fixture(scope="session", autouse=True)
def compiled_disk_kernels(compiled_kernels: None) -> None:
    """Compile them, or load them from the cache."""
    warm_disk()
