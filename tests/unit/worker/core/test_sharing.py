"""Which scripts may run in forks of a process that has imported for them."""

import pytest

from paramfleet_worker.core.sharing import imports_torch, reason_against


@pytest.mark.parametrize(
    ("source", "imports"),
    [
        ("import torch", True),
        ("import json, torch.nn as nn", True),
        ("def main():\n    from paramfleet import nn", True),
        ("import paramfleet as fleet", True),
        ("import paramfleet_shared.errors", False),
        ("import json", False),
        ("from . import torch", False),
        ("import torch (", False),
        ("import torch\0", False),
    ],
)
def test_only_a_script_that_imports_torch_or_paramfleet_has_something_to_share(
    source: str, imports: bool
) -> None:
    assert imports_torch(source) is imports


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("", ""),
        ("import os\nprint(os.environ['OMP_NUM_THREADS'])", ""),
        ("os.environ['CUDA_VISIBLE_DEVICES'] = '0'", ""),
        ("os.environ['MINE'] = '1'; os.environ.setdefault('OURS', '2')", ""),
        ("os.environ['OMP_NUM_THREADS'] = '1'", "OMP_NUM_THREADS"),
        ("from os import environ\nenviron.setdefault('MKL_NUM_THREADS', '1')", "MKL_NUM_"),
        ("os.environ.update({'A': '1', 'TORCH_LOGS': 'all'})", "TORCH_LOGS"),
        ("os.putenv('NUMBA_CACHE_DIR', '/x')", "NUMBA_CACHE_DIR"),
        ("del os.environ['KMP_AFFINITY']", "KMP_AFFINITY"),
        ("os.environ[name] = '1'", "variables"),
        ("os.environ.update(OMP_NUM_THREADS='1')", "variables"),
        ("os.environ.update({**more})", "variables"),
    ],
)
def test_a_script_that_sets_what_libraries_read_imports_for_itself(
    source: str, reason: str
) -> None:
    found = reason_against(source, {})

    assert reason in found
    assert bool(reason) == bool(found)


def test_an_interpreter_that_is_watched_is_one_of_its_own() -> None:
    assert (
        reason_against("", {"COVERAGE_PROCESS_START": "x"}) == "COVERAGE_PROCESS_START is set"
    )
    assert not reason_against("", {"COVERAGE_PROCESS_START": "", "PATH": "/bin"})
