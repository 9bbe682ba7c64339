"""``import paramfleet`` loads a name when it is used."""

import subprocess
import sys

import pytest

import paramfleet as fleet
from paramfleet_shared.system.processes.keeping import tied

STAR = """
import sys
import paramfleet as fleet
assert "torch" not in sys.modules
import paramfleet.api.prefetching, paramfleet.data
from paramfleet import *
assert {name for name in fleet.__all__ if name not in globals()} == set()
assert fleet.prefetch is prefetch and callable(prefetch)
assert fleet.init.__self__ is fleet.worker_num.__self__
print(sorted(set(fleet.__all__) - set(dir(fleet))))
"""


def test_a_name_that_there_is_not_is_refused() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'int_worker'"):
        _ = fleet.int_worker  # type: ignore[attr-defined]  # as a user mistypes it


@pytest.mark.slow
def test_names_come_when_they_are_used_and_belong_together() -> None:
    done = subprocess.run(
        tied([sys.executable, "-c", STAR]), capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_a_process_loads_what_collective_training_needs_only_where_it_trains_so() -> None:
    heavy = ("sympy", "torch.distributed.fsdp", "paramfleet.training.collective.training")
    asks = f"import sys, paramfleet.api.public; print([n for n in {heavy} if n in sys.modules])"

    done = subprocess.run(
        tied([sys.executable, "-c", asks]),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    assert done.stdout == "[]\n"
