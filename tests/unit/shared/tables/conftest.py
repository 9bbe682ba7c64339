"""Kernels are compiled before the first test, not inside it."""

import pytest

from paramfleet_shared.tables.kernels.basics.parts import ALL_PARTS
from paramfleet_shared.tables.warm import main


@pytest.fixture(scope="session", autouse=True)
def compiled_kernels() -> None:
    """Compile every kernel, or load it from the cache."""
    main(ALL_PARTS)
