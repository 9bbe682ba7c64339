"""Workers of a collective job are one process with the whole batch."""

import json
import math
import subprocess
import sys
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch

from paramfleet.config.features import CLASHES, FEATURES, SETTINGS
from paramfleet_shared.system.processes.keeping import tied

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.forked]

SCRIPT = Path(__file__).parent / "scripts" / "regression.py"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]


def results(command: list[str]) -> dict[str, Any]:
    """Return the JSON that a job's worker 0 prints."""
    done = subprocess.run(
        tied(command), capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def in_one_process() -> tuple[list[float], torch.Tensor]:
    """Return the losses and the parameters of plain torch with the whole batches."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    random = torch.Generator().manual_seed(7)
    losses = []
    for _ in range(20):
        inputs = torch.randn(32, 8, generator=random)
        loss = torch.nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True))
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, torch.cat([p.detach().flatten() for p in model.parameters()])


def check(found: dict[str, Any], size: int) -> None:
    losses, values = in_one_process()
    torch.testing.assert_close(found["losses"], losses, rtol=0, atol=1e-6)
    assert len(found["values"]) == size
    for worker in found["values"]:
        torch.testing.assert_close(torch.tensor(worker), values, rtol=0, atol=1e-6)
    assert found["everyone"] == [[rank, rank == 0] for rank in range(size)]
    each, extra = divmod(5, size)
    counts = [each + (rank < extra) for rank in range(size)]
    assert [len(files) for files in found["shares"]["files"]] == counts
    assert sorted(chain(*found["shares"]["files"])) == ["a", "b", "c", "d", "e"]
    assert {len(share) for share in found["shares"]["samples"]} == {math.ceil(10 / size)}
    assert set(chain(*found["shares"]["samples"])) == set(range(10))
    assert len(found["shares"]["refused"]) == 2
    assert found["names"] == ["0.weight", "0.bias", "2.weight", "2.bias"]


@pytest.fixture(scope="module")
def small_jobs() -> dict[str, Any]:
    """Return what many jobs of the same two workers found."""
    return results([*TORCHRUN, "--nproc_per_node=2", str(SCRIPT.with_name("pairs.py"))])


def test_every_feature_and_every_pair_trains_or_is_an_error_that_names_both(
    small_jobs: dict[str, Any],
) -> None:
    found = small_jobs["pairs"]

    names = {"plain", *FEATURES, *SETTINGS} - {"on_worker_loss"}  # of jobs with servers alone
    assert len(found) == len(names) + math.comb(len(names) - 1, 2)
    for name, outcome in found.items():
        pair = frozenset(name.split("+"))
        clashes = "sync_batch_norm" in pair or any(clash <= pair for clash in CLASHES)
        if clashes:
            named = pair if pair in CLASHES else {"sync_batch_norm = True", "cpu"}
            assert all(each in outcome for each in named), outcome
        else:
            first, last, apart = outcome
            assert last < first, name
            assert apart == 0, name


def test_four_workers_under_torchrun_are_one_process_with_the_whole_batch() -> None:
    found = results([*TORCHRUN, "--nproc_per_node=4", str(SCRIPT)])

    check(found, 4)


def test_workers_whose_losses_are_shares_of_a_sum_are_one_process_too() -> None:
    found = results([*TORCHRUN, "--nproc_per_node=2", str(SCRIPT), "sum"])

    check(found, 2)


def test_workers_agree_on_their_buffers(small_jobs: dict[str, Any]) -> None:
    found = small_jobs["buffers"]

    first, second = map(torch.tensor, found["own"])
    assert not torch.equal(first, second)
    for each in found["agreed"]:
        torch.testing.assert_close(torch.tensor(each), (first + second) / 2)


@pytest.mark.forked(False)
def test_two_workers_of_paramfleet_launch_are_one_process_too(tmp_path: Path) -> None:
    log = f"--log_dir={tmp_path}"
    launch = [sys.executable, "-m", "paramfleet_worker", "launch", "--nproc_per_node=2", log]

    check(results([*launch, str(SCRIPT)]), 2)


def test_the_small_example_learns_in_collective_mode() -> None:
    script = Path(__file__).parents[3] / "examples" / "mlp" / "train.py"
    found = results([sys.executable, str(script), "--mode", "collective", "--steps", "300"])

    assert found["test_accuracy"] > 0.85
    assert (found["mode"], found["servers"], found["workers"]) == ("collective", 0, 1)
