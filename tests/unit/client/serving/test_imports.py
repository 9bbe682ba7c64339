"""What serving loads: torch, numpy, and nothing that a job talks with."""

import json
import subprocess
import sys
from typing import Any

import pytest
import torch

import paramfleet as fleet
from paramfleet_shared.system.processes.keeping import tied

pytestmark = pytest.mark.slow

LISTING = """
import json, sys, torch, numpy
import torch.export
before = set(sys.modules)
{program}
print(json.dumps(sorted(set(sys.modules) - before)))
"""

TABLES = """
import paramfleet as fleet
table = fleet.serving.tables({path!r})["deep"]
assert table(torch.tensor([5, 70])).shape == (2, 4)
"""

MODEL = """
import paramfleet as fleet
class Words(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.deep = fleet.nn.Embedding(0, 4)
        self.head = torch.nn.Linear(4, 1)
    def forward(self, ids):
        return self.head(self.deep(ids))
served = fleet.serving.load({path!r}, Words())
assert served(torch.tensor([5, 70])).shape == (2, 1)
"""

TRANSPORT = {
    "paramfleet_shared.net.rpc",
    "paramfleet_shared.net.http2",
    "paramfleet_shared.net.wire",
}
TRANSPORT |= {
    "paramfleet_shared.discovery",
    "paramfleet.session.session",
    "paramfleet.api.public",
}


def loaded_by(program: str) -> set[str]:
    text = LISTING.format(program=program)
    ended = subprocess.run(
        tied([sys.executable, "-c", text]), capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return set(json.loads(ended.stdout))


def strangers(modules: set[str]) -> set[str]:
    """Return the packages of others."""
    ours = {"paramfleet", "paramfleet_shared", "torch", "numpy"}
    packages = {name.partition(".")[0] for name in modules} - ours - sys.stdlib_module_names
    return {name for name in packages if not name.startswith("_")}  # the interpreter's own


def test_tables_need_torch_and_numpy_alone(exported: Any) -> None:
    modules = loaded_by(TABLES.format(path=str(exported().path)))

    assert "paramfleet.serving.loading" in modules
    assert strangers(modules) == set()
    assert not TRANSPORT & modules


def test_a_model_of_ours_needs_its_compiler_beside_them(exported: Any) -> None:
    class Words(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.deep = fleet.nn.Embedding(0, 4)
            self.head = torch.nn.Linear(4, 1)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.head(self.deep(ids))
            return found

    modules = loaded_by(MODEL.format(path=str(exported(Words()).path)))

    assert strangers(modules) <= strangers(loaded_by("import numba"))
    assert not TRANSPORT & modules
