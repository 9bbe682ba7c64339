"""A worker that steps torch's optimizer before it has tables is warned that it trains alone."""

import logging
from collections.abc import Iterator

import pytest
import torch

from paramfleet.session.backends.lone_steps import LoneSteps


@pytest.fixture
def lone_steps() -> Iterator[LoneSteps]:
    made = LoneSteps()
    yield made
    made.end()


def sgd() -> torch.optim.Optimizer:
    weight = torch.nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    return torch.optim.SGD([weight], lr=0.1)


@pytest.mark.usefixtures("lone_steps")
def test_the_first_step_of_torchs_optimizer_is_warned_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    optimizer = sgd()
    with caplog.at_level(logging.WARNING):
        optimizer.step()
        optimizer.step()

    (record,) = caplog.records
    assert record.message == "worker.trains_alone"
    assert "fleet.init_worker()" in vars(record)["reason"]


def test_steps_of_a_worker_that_has_its_tables_are_not(
    lone_steps: LoneSteps, caplog: pytest.LogCaptureFixture
) -> None:
    lone_steps.end()
    with caplog.at_level(logging.WARNING):
        sgd().step()

    assert not caplog.records
