"""Learning rates as torch's users write them, and as they must not be."""

from typing import Any

import numpy as np
import pytest
import torch

from paramfleet.config.roles import RoleMaker
from paramfleet.session.session import Session
from paramfleet.training.modes.base import LearningRateError, learning_rate


@pytest.mark.parametrize("rate", [0.25, torch.tensor(0.25), np.float32(0.25), np.float64(0.25)])
def test_a_rate_may_be_any_kind_of_number(rate: Any) -> None:
    read = learning_rate({"lr": rate})

    assert read == 0.25
    assert type(read) is float, "it travels with every push"


@pytest.mark.parametrize("rate", [float("nan"), float("inf"), torch.tensor(float("nan"))])
def test_a_rate_that_is_not_finite_changes_nothing(rate: Any) -> None:
    session = Session()
    session.init(RoleMaker(distributed=False))
    model = torch.nn.Linear(2, 1)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = session.distributed_optimizer(inner)
    before = model.weight.detach().clone()
    inner.param_groups[0]["lr"] = rate

    with pytest.raises(LearningRateError, match=r"the learning rate of step 1 is (nan|inf)"):
        optimizer.minimize(model(torch.ones(1, 2)).sum())

    assert torch.equal(model.weight, before)
