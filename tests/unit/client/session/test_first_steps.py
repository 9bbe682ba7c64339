"""What a script that trains alone is told: what it waits for, and what it forgot."""

import logging
from typing import Any

import numba
import pytest
import torch
from numba.core.event import install_listener

from paramfleet.config.roles import PaddleCloudRoleMaker
from paramfleet.config.strategy import DistributedStrategy
from paramfleet.session.backends.first_steps import KernelNews
from paramfleet.session.session import Session
from paramfleet.training.optimizer import DistributedOptimizer
from paramfleet_shared.system.clock import SystemClock


@pytest.fixture
def alone() -> Session:
    session = Session()
    session.init(PaddleCloudRoleMaker())
    return session


def optimizer_of(session: Session) -> DistributedOptimizer:
    model = session.distributed_model(torch.nn.Linear(2, 1))
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    made = session.distributed_optimizer(inner, DistributedStrategy())
    model(torch.ones(1, 2)).sum().backward()
    return made


def test_a_first_step_without_init_worker_is_warned_of_once(
    alone: Session, caplog: pytest.LogCaptureFixture
) -> None:
    optimizer = optimizer_of(alone)
    with caplog.at_level(logging.WARNING):
        optimizer.step()
        optimizer.step()

    (record,) = caplog.records
    assert record.message == "worker.not_begun"
    assert "fleet.init_worker() wasn't called" in vars(record)["reason"]


def test_a_script_that_has_called_it_is_not_warned(
    alone: Session, caplog: pytest.LogCaptureFixture
) -> None:
    optimizer = optimizer_of(alone)
    alone.init_worker()
    with caplog.at_level(logging.WARNING):
        optimizer.step()

    assert not caplog.records


def test_what_numba_compiles_of_ours_is_told_as_it_begins_and_behind_the_step() -> None:
    said: list[tuple[str, dict[str, Any]]] = []
    news = KernelNews(SystemClock(), lambda event, facts: said.append((event, facts)))

    def users() -> int:
        return 1

    def ours() -> int:
        return 2

    compiled: Any = numba.njit
    ours.__module__ = "paramfleet_shared.tables.kernels.made_up"
    with install_listener("numba:compile", news):
        compiled(users)()
        news.tell()
        assert not said, "a script's own functions"

        compiled(ours)()
        (begun,) = said
        news.tell()
        news.tell()

    assert begun[0] == "kernels.compiling"
    assert "only the first start" in begun[1]["doing"]
    (_, ended) = said
    assert ended[0] == "kernels.compiled"
    assert ended[1]["seconds"] >= 0
