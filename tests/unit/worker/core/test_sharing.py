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
        ("os.environ.update({**more})", "variables"),
        ("os.environ.update(OMP_NUM_THREADS='1')", "OMP_NUM_THREADS"),
        ("os.environ.update({'A': '1'}, MKL_NUM_THREADS='1')", "MKL_NUM_THREADS"),
        ("os.environ.update(dict(A='1', KMP_BLOCKTIME='0'))", "KMP_BLOCKTIME"),
        ("os.environ.update([('A', '1'), ('OMP_NUM_THREADS', '1')])", "OMP_NUM_THREADS"),
        ("os.environ.update(**more)", "variables"),
        ("os.environ.update(more)", "variables"),
        ("os.environ.update({'A': '1'}, B='2')", ""),
        ("os.environ |= {'OMP_NUM_THREADS': '1'}", "OMP_NUM_THREADS"),
        ("os.environ |= {'A': '1'} | more", "variables"),
        ("os.environ |= more", "variables"),
        ("os.environ |= {'A': '1'}", ""),
        ("environment = os.environ | {'OMP_NUM_THREADS': '1'}", ""),
        ("os.environ['OMP_NUM_THREADS'] += '1'", "OMP_NUM_THREADS"),
        ("os.environ['A'], os.environ['OMP_NUM_THREADS'] = '1', '2'", "OMP_NUM_THREADS"),
        ("os.environ.pop('OMP_NUM_THREADS', None)", "OMP_NUM_THREADS"),
        ("os.environ.setdefault(key='OMP_NUM_THREADS', value='1')", "OMP_NUM_THREADS"),
        ("os.environ.popitem()", "variables"),
        ("os.environ.clear()", "variables"),
        ("os.environ.__setitem__('OMP_NUM_THREADS', '1')", "OMP_NUM_THREADS"),
        ("os.environb[b'OMP_NUM_THREADS'] = b'1'", "OMP_NUM_THREADS"),
        ("import os as system\nsystem.environ['OMP_NUM_THREADS'] = '1'", "OMP_NUM_THREADS"),
        ("from os import environ as variables\nvariables['OMP_NUM_THREADS'] = '1'", "OMP_"),
        ("from os import environ as variables\nvariables |= {'OMP_NUM_THREADS': '1'}", "OMP_"),
        ("variables = os.environ\nvariables['OMP_NUM_THREADS'] = '1'", "OMP_NUM_THREADS"),
        ("variables: Any = os.environ\nvariables.update(OMP_NUM_THREADS='1')", "OMP_NUM_"),
        ("(variables := os.environ)['OMP_NUM_THREADS'] = '1'", "OMP_NUM_THREADS"),
        ("variables = os.environ.copy()\nvariables['OMP_NUM_THREADS'] = '1'", ""),
        ("counts = {}\ncounts.update(OMP_NUM_THREADS=1)", ""),
        ("kept[0] = os.environ\ncounts = {}\ncounts.update(OMP_NUM_THREADS=1)", ""),
        ("from os import putenv\nputenv('OMP_NUM_THREADS', '1')", "OMP_NUM_THREADS"),
        ("from os import putenv as put\nput('OMP_NUM_THREADS', '1')", "OMP_NUM_THREADS"),
        ("os.unsetenv('OMP_NUM_THREADS')", "OMP_NUM_THREADS"),
        ("import dotenv\ndotenv.load_dotenv()", "variables"),
        ("from dotenv import load_dotenv\nload_dotenv()", "variables"),
        ("import torch\ntorch.set_num_threads(2)", ""),
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
