"""Guards of steps in one process: what a skipped, a warned of and an ending step leaves."""

import logging
import re
from typing import Any

import pytest
import torch

import paramfleet as fleet
from paramfleet.config.roles import RoleMaker
from paramfleet.session.session import Session
from paramfleet.training.modes.base import GradientError
from paramfleet.training.stepping.guarding import GuardError, GuardLossError


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.deep = fleet.nn.Embedding(0, 2, name="deep")
        self.norm = torch.nn.BatchNorm1d(2)
        self.out = torch.nn.Linear(2, 1)

    def forward(self, ids: torch.Tensor, factor: float) -> torch.Tensor:
        found: torch.Tensor = self.out(self.norm(self.deep(ids) * factor)) * factor
        return found


class Trained:
    """A model, and its optimizer with a guard."""

    def __init__(self, **guard: Any) -> None:
        session = Session()
        session.init(RoleMaker(distributed=False))
        self.model = session.distributed_model(Model())
        strategy = fleet.DistributedStrategy()
        strategy.guard_configs = guard
        inner = torch.optim.Adam(self.model.parameters(), lr=0.1)
        self.optimizer = session.distributed_optimizer(inner, strategy)

    def step(self, ids: list[int], factor: float = 1.0, *, tells: bool = True) -> None:
        loss = self.model(torch.tensor(ids), factor).square().mean()
        loss.backward()
        self.optimizer.step(loss=loss.detach() if tells else None)
        self.optimizer.zero_grad()

    def values(self) -> list[torch.Tensor]:
        self.model.eval()
        with torch.no_grad():
            rows = self.model.deep(torch.arange(40))
        self.model.train()
        return [rows, *(v.clone() for v in self.model.state_dict().values() if v.numel() < 9)]


def test_a_skipped_batch_leaves_nothing_behind(caplog: pytest.LogCaptureFixture) -> None:
    guarded, plain = Trained(action="skip"), Trained()
    guarded.step([1, 2, 3])
    with caplog.at_level(logging.WARNING):
        guarded.step([*range(10, 30)], float("nan"))
    guarded.step([2, 3, 4])
    plain.step([1, 2, 3])
    plain.step([2, 3, 4])

    for mine, others in zip(guarded.values(), plain.values(), strict=True):
        assert torch.equal(mine, others)
    (said,) = [record for record in caplog.records if record.msg == "worker.step_skipped"]
    assert said.__dict__["step"] == 2
    assert re.fullmatch(r"deep (\d+, ){7}\d+ and 12 more", said.__dict__["rows"])
    guard = guarded.optimizer.guard
    assert guard is not None
    assert (guard.facts()["outside"], guard.facts()["skipped"]) == (1, 1)
    assert guarded.optimizer.num_steps == 3, "the script's steps, and those of a scheduler"


def test_rows_with_the_longest_gradients_are_named_first() -> None:
    trained = Trained(action="end", grad_norm_max=1e-9)

    with pytest.raises(GuardError) as raised:
        trained.step([5, 5, 5, 5, 7, 9])

    assert raised.value.facts["rows"].startswith("deep ")
    assert "step 1: the gradient's norm is" in str(raised.value)
    assert "nothing of it was sent; its rows" in str(raised.value)
    named = raised.value.facts["rows"].removeprefix("deep ").split(", ")
    assert sorted(named) == ["5", "7", "9"]


def test_a_warning_takes_the_step_and_a_gradient_that_is_nan_stays_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    guarded, plain = Trained(action="warn", loss_max=1e-9), Trained()
    with caplog.at_level(logging.WARNING):
        for trained in (guarded, plain):
            trained.step([1, 2, 3])

    for mine, others in zip(guarded.values(), plain.values(), strict=True):
        assert torch.equal(mine, others)
    assert [r.msg for r in caplog.records if r.msg.startswith("worker.step")] == [
        "worker.step_outside"
    ]
    with pytest.raises(GradientError):
        guarded.step([1, 2], float("nan"))


def test_too_many_skipped_in_a_row_end_the_training() -> None:
    trained = Trained(action="skip", max_skips=2)
    for _ in range(2):
        trained.step([1, 2], float("inf"))

    with pytest.raises(GuardError, match="as in 2 steps before"):
        trained.step([1, 2], float("inf"))


def test_a_range_of_the_loss_needs_the_loss() -> None:
    with pytest.raises(GuardLossError, match=r"guard_configs\['loss_max'\] needs the loss"):
        Trained(loss_max=3.0).step([1, 2], tells=False)
    Trained(grad_norm_max=1e9).step([1, 2], tells=False)


def test_a_step_without_examples_is_not_looked_at() -> None:
    trained = Trained(action="end")

    trained.optimizer.step(examples=0, loss=float("nan"))

    assert trained.optimizer.num_steps == 1
