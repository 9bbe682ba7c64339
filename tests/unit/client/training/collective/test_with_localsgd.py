"""The LocalSGD family by its strategy, in a collective job of one worker."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import distributed

from paramfleet.config.roles import PaddleCloudRoleMaker
from paramfleet.config.strategy import DistributedStrategy
from paramfleet.session.backends.collective import CollectiveBackend
from paramfleet.session.session import Session
from paramfleet.training.localsgd.core.ledger import Ledger
from paramfleet.training.localsgd.core.settings import LocalSgdSettingsError
from paramfleet.training.localsgd.optimizer import LossMissingError


@pytest.fixture
def session() -> Iterator[Session]:
    made = Session()
    made.init(PaddleCloudRoleMaker(True, environment={}), is_collective=True)
    yield made
    if distributed.is_initialized():
        distributed.destroy_process_group()


def strategy(flag: str, **configs: Any) -> DistributedStrategy:
    made = DistributedStrategy()
    setattr(made, flag, True)
    setattr(made, f"{flag}_configs", configs)
    return made


def ledger(session: Session) -> Ledger | None:
    assert isinstance(session.backend, CollectiveBackend)
    assert session.backend.training.optimizer is not None
    return session.backend.training.optimizer.ledger


@pytest.mark.parametrize(
    ("chosen", "periods", "syncs"),
    [
        (strategy("localsgd", k_steps=4, overlap=True), [[0, 4]], 3),  # steps 1, 5 and the end
        (strategy("adaptive_localsgd", init_k_steps=20), [[0, 16]], 2),  # step 1 and the end
        (strategy("diloco", k_steps=3), [[0, 3]], 2),  # steps 3 and 6
        (
            strategy("diloco", k_steps=4, fragments=2, overlap_steps=1, mixing=0.5),
            [[0, 4]],
            2.5,  # a half after step 2, one after 4, a half after 6, and all in the end
        ),
    ],
    ids=["localsgd", "adaptive", "diloco", "streaming"],
)
def test_each_of_the_family_trains(
    session: Session, chosen: DistributedStrategy, periods: list[list[int]], syncs: float
) -> None:
    model = session.distributed_model(torch.nn.Linear(4, 1))
    optimizer = session.distributed_optimizer(torch.optim.SGD(model.parameters(), 0.01), chosen)
    losses = []
    for _ in range(6):
        loss = model(torch.ones(8, 4)).square().mean() + 1.0
        optimizer.minimize(loss)
        losses.append(loss.item())
    session.finish_training()
    session.stop_worker()

    assert losses[-1] < losses[0]
    counts = ledger(session)
    assert counts is not None
    assert counts.as_json()["k_steps"] == periods
    assert counts.synchronisations == syncs


def test_without_the_family_nothing_is_counted(session: Session) -> None:
    model = session.distributed_model(torch.nn.Linear(4, 1))
    session.distributed_optimizer(torch.optim.SGD(model.parameters(), 0.1))

    assert ledger(session) is None
    session.finish_training()


def test_an_adaptive_period_asks_for_the_loss(session: Session) -> None:
    model = session.distributed_model(torch.nn.Linear(4, 1))
    optimizer = session.distributed_optimizer(
        torch.optim.SGD(model.parameters(), 0.1), strategy("adaptive_localsgd")
    )
    model(torch.ones(2, 4)).square().mean().backward()

    with pytest.raises(LossMissingError):
        optimizer.step()


def test_keys_that_do_not_go_together_are_refused(session: Session) -> None:
    model = session.distributed_model(torch.nn.Linear(4, 1))
    inner = torch.optim.SGD(model.parameters(), 0.1)
    chosen = strategy("localsgd", begin_step=10, outer_optimizer="sgd")

    with pytest.raises(LocalSgdSettingsError, match=r"begin_step = 10.*outer_optimizer"):
        session.distributed_optimizer(inner, chosen)
