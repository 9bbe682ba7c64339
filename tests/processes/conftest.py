"""What tests of whole processes have in common."""

from collections.abc import Iterator

import pytest
from tests.prepared.plugin import pytest_runtest_protocol, pytest_sessionfinish

__all__ = ["pytest_runtest_protocol", "pytest_sessionfinish"]


@pytest.fixture(scope="module", autouse=True)
def _own_runtime_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep jobs of other test runs on this machine apart, and let those of this one say all.

    For these tests alone: others expect the settings that nobody has set.
    """
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.getbasetemp() / "jobs"
        patch.setenv("PARAMFLEET_RUNTIME_DIR", str(folder))
        patch.setenv("PARAMFLEET_LAUNCH__VERBOSE", "1")
        yield
