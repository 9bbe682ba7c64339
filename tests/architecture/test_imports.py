"""What each process of a job imports: a pserver's start is most of the time of a recovery."""

import subprocess
import sys
from pathlib import Path

import pytest

from paramfleet_shared.system.processes.keeping import tied

PRINT = "import sys; import {module}; print(*sys.modules)"

OF_TRAINING = {"torch", "pandas", "fsspec", "rich", "tensorboard", "ray"}
"""What no process needs that only serves."""

MOST = {
    "paramfleet_pserver.__main__": 375,
    "paramfleet_coordinator.__main__": 160,
    "paramfleet_serving.__main__": 150,
}
"""Modules of ours that a process may import. A new one costs half a millisecond."""

MOST_OF_CLIENT = 400
"""As many in a script, before it joins a job."""


def imported_by(module: str) -> list[str]:
    ended = subprocess.run(
        tied([sys.executable, "-c", PRINT.format(module=module)]),
        capture_output=True,
        text=True,
        check=True,
    )
    return ended.stdout.split()


@pytest.mark.parametrize("module", sorted(MOST))
def test_a_process_that_serves_imports_what_it_needs_alone(module: str) -> None:
    found = imported_by(module)

    roots = [name.partition(".")[0] for name in found]
    assert not OF_TRAINING & set(roots)
    ours = [name for name in roots if name.startswith("paramfleet")]
    assert 50 < len(ours) <= MOST[module], len(ours)


def test_the_command_line_imports_what_a_command_needs_when_it_runs() -> None:
    roots = {name.partition(".")[0] for name in imported_by("paramfleet_worker.__main__")}

    assert not roots & (OF_TRAINING | {"numba", "numpy", "aiohttp"})


def test_the_client_adds_little_to_torch_until_it_joins_a_job() -> None:
    with_torch = set(imported_by("torch"))
    found = {
        each for each in imported_by("torch, paramfleet.api.public") if each not in with_torch
    }
    roots = [name.partition(".")[0] for name in found]

    assert not set(roots) & {"aiohttp", "cryptography", "pandas", "ray", "redis", "rich"}
    assert not found & {"torch._dynamo", "paramfleet.session.backends.pservers"}
    ours = [name for name in roots if name.startswith("paramfleet")]
    assert 50 < len(ours) <= MOST_OF_CLIENT, len(ours)


def test_the_client_is_imported_when_it_is_used() -> None:
    roots = {name.partition(".")[0] for name in imported_by("paramfleet")}

    assert not roots & (OF_TRAINING | {"numba", "numpy", "aiohttp", "redis"})


def test_a_script_of_the_name_of_torch_may_do_without_it(tmp_path: Path) -> None:
    script = tmp_path / "torch.py"
    script.write_text(
        "import paramfleet as fleet\nprint(fleet.MultiSlotDataGenerator.__name__)"
    )

    ended = subprocess.run(
        tied([sys.executable, str(script)]), capture_output=True, text=True, check=True
    )

    assert ended.stdout == "MultiSlotDataGenerator\n"


@pytest.mark.parametrize(("first", "then"), [("torch", "paramfleet"), ("paramfleet", "torch")])
@pytest.mark.parametrize("name", ["torch.py", "train.py"])
def test_a_file_that_hides_torch_is_named(
    tmp_path: Path, name: str, first: str, then: str
) -> None:
    (tmp_path / "torch.py").touch()
    script = tmp_path / name
    script.write_text(f"import {first}\nimport {then}\ntorch.nn\n")

    ended = subprocess.run(
        tied([sys.executable, str(script)]), capture_output=True, text=True, check=False
    )

    if name == "train.py" and first == "paramfleet":  # which can't know what comes
        assert "AttributeError" in ended.stderr
        return
    last = ended.stderr.splitlines()[-1]
    assert last.startswith(
        f"ImportError: `import torch` imports {tmp_path / 'torch.py'} instead"
    )
