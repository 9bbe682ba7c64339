"""LocalSGD over the servers: workers synchronize at dense tables, and wait for nobody."""

import json
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SCRIPT = "train_apart.py"
ELASTIC = {
    "PARAMFLEET_COORDINATOR__ELASTIC": "true",
    "PARAMFLEET_COORDINATOR__WORKER_GRACE_S": "20",
    "PARAMFLEET_LEASE_TTL_S": "6",
}


def keys(**configs: Any) -> list[str]:
    return ["--configs", json.dumps(configs)]


@pytest.mark.parametrize(("k_steps", "syncs"), [(1, 12), (4, 4)])
def test_one_worker_is_plain_training(jobs: Any, k_steps: int, syncs: int) -> None:
    alone = jobs.local(SCRIPT)

    (result,) = jobs.run(SCRIPT, *keys(k_steps=k_steps), workers=1).results

    np.testing.assert_allclose(result["values"], alone["values"], atol=1e-6)
    np.testing.assert_allclose(result["losses"], alone["losses"], atol=1e-6)
    assert alone["ledger"]["bytes"] == 0
    assert result["ledger"]["syncs"] == syncs


class Reference:
    """What the workers do in turn, in one process: plain torch and a few sums."""

    def __init__(self, began: list[float], outer: dict[str, Any]) -> None:
        self.served = torch.tensor(began, requires_grad=True)
        kind, lr, momentum = outer.values()
        nesterov = kind == "nesterov"
        self.outer = torch.optim.SGD([self.served], lr, momentum, nesterov=nesterov)
        self.locals = [torch.tensor(began, requires_grad=True) for _ in range(2)]
        self.inner = [torch.optim.SGD([local], lr=0.05) for local in self.locals]
        self.data = [torch.Generator().manual_seed(rank) for rank in range(2)]
        self.snapshots = [torch.tensor(began) for _ in range(2)]

    def turn(self, rank: int, steps: int) -> None:
        """Let a worker take some steps, and exchange."""
        local = self.locals[rank]
        for _ in range(steps):
            x = torch.randn(16, 5, generator=self.data[rank])
            w1, b1, w2, b2 = torch.split(local, [35, 7, 7, 1])
            y = torch.tanh(x @ w1.view(7, 5).T + b1) @ w2 + b2
            loss = torch.nn.functional.mse_loss(y, x.sum(1))
            (local.grad,) = torch.autograd.grad(loss, [local])
            self.inner[rank].step()
        self.served.grad = (self.snapshots[rank] - local.detach()) / 2
        self.outer.step()
        self.snapshots[rank] = self.served.detach().clone()
        local.data.copy_(self.served.detach())


@pytest.mark.parametrize(
    "outer",
    [
        {"outer_optimizer": "none", "outer_lr": 1.0, "outer_momentum": 0.0},
        {"outer_optimizer": "nesterov", "outer_lr": 0.7, "outer_momentum": 0.9},
    ],
    ids=["mean", "nesterov"],
)
def test_two_workers_in_turn_are_as_computed_by_hand(jobs: Any, outer: dict[str, Any]) -> None:
    args = [SCRIPT, "--flag", "diloco", "--in_turn", "4", *keys(k_steps=4, **outer)]
    first, second = jobs.run(*args).results

    reference = Reference(first["began"], outer)
    for turn in range(6):
        reference.turn(turn % 2, 4)

    assert first["values"] == second["values"]
    expected = reference.served.detach().numpy()
    np.testing.assert_allclose(first["values"], expected, atol=1e-6)
    assert [one["ledger"]["syncs"] for one in (first, second)] == [3, 3]


def test_the_fast_finish_every_step_while_a_slow_one_is_held(jobs: Any, tmp_path: Path) -> None:
    enough = tmp_path / "enough"
    args = ["--steps", "60", "--held", "1", "--until", str(enough), *keys(k_steps=5)]
    running = jobs.start(SCRIPT, *args, workers=3)

    for name in ("worker0", "worker2"):
        running.wait_for(name, "took its last step")
    assert "took its last step" not in running.log("worker1")
    enough.touch()

    first, *others = running.end().results
    for one in others:
        assert one["values"] == first["values"]


def test_workers_die_and_come_late_while_the_others_train(jobs: Any, tmp_path: Path) -> None:
    enough = tmp_path / "enough"
    args = ["--flag", "adaptive_localsgd", "--until", str(enough)]
    args += keys(init_k_steps=4, wire_dtype="int8")
    running = jobs.start(SCRIPT, *args, workers=3, **ELASTIC)
    for rank in range(3):
        running.wait_for(f"worker{rank}", "trained ")

    running.send("worker2", signal.SIGKILL)
    for name in ("worker0", "worker1"):
        running.wait_for(name, "trained ", times=running.log(name).count("trained ") + 3)
    running.start_worker(None, SCRIPT, *args, name="worker_late")
    running.wait_for("worker_late", "trained ", times=3)
    enough.touch()
    ended = running.end()

    names = ["worker0", "worker1", "worker_late"]
    assert [ended.codes[name] for name in [*names, "coordinator"]] == [0] * 4, ended.story()
    found = [json.loads(ended.logs[name].splitlines()[-1]) for name in names]
    for one in found:
        assert one["values"] == found[0]["values"]
        assert one["ledger"]["bytes"] > 0
    began = ended.logs["worker_late"].partition("began with ")[2].split()[0]
    assert float(began) not in {float(rank) for rank in range(5)}, "it took what is served"


def test_a_stalled_pserver_ends_with_an_error_that_says_who_and_how_long(jobs: Any) -> None:
    args = ["--until", "never", *keys(k_steps=2)]
    env = {"PARAMFLEET_CALL_TIMEOUT_S": "1"}
    running = jobs.start(SCRIPT, *args, workers=1, servers=1, **env)
    running.wait_for("worker0", "trained ")

    running.send("pserver0", signal.SIGSTOP)

    assert running.code("worker0") == 1
    said = running.log("worker0").splitlines()[-1]
    assert "pserver 0" in said
    assert "'exchange'" in said
    assert re.search(r"within 1\.[0-9]+ s", said)
