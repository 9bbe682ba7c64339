"""What a worker refuses before it is sent: numbers that would make tables infinite."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from paramfleet.config.roles import RoleMaker
from paramfleet.session.session import Session
from paramfleet.tables.rules import OptimizerOptionError
from paramfleet.training.modes.base import GradientError, LearningRateError
from paramfleet.training.optimizer import DistributedOptimizer, ExamplesError

Wrap = Callable[[torch.optim.Optimizer], DistributedOptimizer]


@pytest.fixture
def wrap() -> Wrap:
    session = Session()
    session.init(RoleMaker(distributed=False))
    return session.distributed_optimizer


@pytest.fixture
def model() -> torch.nn.Linear:
    torch.manual_seed(0)
    return torch.nn.Linear(2, 1)


@pytest.mark.parametrize("rate", [1e39, float("inf"), 1.1e6])
def test_a_rate_that_no_step_can_use_is_refused_when_the_optimizer_is_given(
    wrap: Wrap, model: torch.nn.Linear, rate: float
) -> None:
    with pytest.raises(OptimizerOptionError, match=r"SGD with lr = .*: must be from 0 to 1e"):
        wrap(torch.optim.SGD(model.parameters(), lr=rate))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("weight_decay", float("inf")),
        ("weight_decay", -0.1),
        ("eps", float("nan")),
        ("eps", float("inf")),
        ("betas", (0.9, 1.5)),
        ("betas", (float("nan"), 0.9)),
        ("lr", -0.1),
        ("lr", 10**400),
        ("eps", 10**400),
    ],
)
def test_an_option_that_no_training_can_use_is_refused_by_name(
    wrap: Wrap, model: torch.nn.Linear, option: str, value: Any
) -> None:
    inner = torch.optim.Adam(model.parameters())
    inner.param_groups[0][option] = value  # torch looks only when it makes one
    with pytest.raises(OptimizerOptionError, match=f"Adam with {option} = "):
        wrap(inner)


def test_a_scheduler_that_makes_a_rate_negative_is_found_at_the_step(
    wrap: Wrap, model: torch.nn.Linear
) -> None:
    optimizer = wrap(torch.optim.SGD(model.parameters(), lr=0.1))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 - step)
    optimizer.minimize(model(torch.ones(1, 2)).sum())
    scheduler.step()
    scheduler.step()
    before = model.weight.detach().clone()
    with pytest.raises(LearningRateError, match=r"step 2 is -0\.1, and must be from 0 to 1e"):
        optimizer.minimize(model(torch.ones(1, 2)).sum())
    assert torch.equal(model.weight, before)


@pytest.mark.parametrize("size", [1e30, 2.0**51, -(2.0**60)])
def test_a_gradient_whose_square_no_float_holds_changes_nothing(
    wrap: Wrap, model: torch.nn.Linear, size: float
) -> None:
    optimizer = wrap(torch.optim.Adam(model.parameters()))
    before = model.weight.detach().clone()
    model.weight.grad = torch.tensor([[size, 1.0]])
    model.bias.grad = torch.tensor([2.0**50])
    with pytest.raises(GradientError, match=r"1 values of the gradient .* 2\.25e\+15"):
        optimizer.step()
    assert torch.equal(model.weight, before)
    assert not optimizer.inner.state[model.weight]


def test_many_large_gradients_below_the_limit_are_taken(
    wrap: Wrap, model: torch.nn.Linear
) -> None:
    optimizer = wrap(torch.optim.Adam(model.parameters()))
    model.weight.grad = torch.full((1, 2), 2.0**50.9)
    model.bias.grad = torch.zeros(1)
    optimizer.step()
    assert bool(model.weight.isfinite().all())


@pytest.mark.parametrize("rate", [float("nan"), float("inf"), -1.0, 1e39])
def test_an_operators_rate_that_no_step_can_use_changes_nothing(
    wrap: Wrap, model: torch.nn.Linear, rate: float
) -> None:
    optimizer = wrap(torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(LearningRateError):
        optimizer.adjust("lr", rate)
    assert optimizer.param_groups[0]["lr"] == 0.1


@pytest.mark.parametrize("examples", [-1, float("nan"), float("inf"), 2**60])
def test_a_number_of_examples_that_no_mean_can_use_changes_nothing(
    wrap: Wrap, model: torch.nn.Linear, examples: Any
) -> None:
    optimizer = wrap(torch.optim.SGD(model.parameters(), lr=0.1))
    before = model.weight.detach().clone()
    with pytest.raises(ExamplesError, match="must be from 0 to"):
        optimizer.minimize(model(torch.ones(1, 2)).sum(), examples=examples)
    assert torch.equal(model.weight, before)
