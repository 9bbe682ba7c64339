"""Jobs of forks, as tests of whole processes have them."""

from tests.processes.conftest import (
    _own_runtime_dir,
    pytest_runtest_protocol,
    pytest_sessionfinish,
)
from tests.processes.training.conftest import jobs, programs

__all__ = [
    "_own_runtime_dir",
    "jobs",
    "programs",
    "pytest_runtest_protocol",
    "pytest_sessionfinish",
]
