"""LocalSGD of one process, by the strategy that a job with servers has."""

from typing import Any

import pytest
import torch

import paramfleet as fleet
from paramfleet.config.roles import PaddleCloudRoleMaker
from paramfleet.config.strategy import DistributedStrategy, StrategyError
from paramfleet.session.session import Session
from paramfleet.training.localsgd.core.settings import LocalSgdSettingsError

BATCHES = torch.randn(7, 8, 4, generator=torch.Generator().manual_seed(1))


def strategy(flag: str, **configs: Any) -> DistributedStrategy:
    made = DistributedStrategy()
    setattr(made, flag, True)
    setattr(made, f"{flag}_configs", configs)
    return made


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Linear(4, 1)


def train(chosen: DistributedStrategy, **keys: Any) -> tuple[torch.Tensor, Any]:
    """Return the weights behind ``finish_training``, and the ledger."""
    session = Session()
    session.init(PaddleCloudRoleMaker(environment={}))
    trained = session.distributed_model(model())
    inner = torch.optim.SGD(trained.parameters(), lr=0.1, **keys)
    optimizer = session.distributed_optimizer(inner, chosen)
    for batch in BATCHES:
        optimizer.minimize(trained(batch).square().mean())
    session.finish_training()
    ledger = optimizer.ledger
    session.stop_worker()
    return _flat(trained), ledger


def _flat(trained: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in trained.parameters()])


def test_without_an_outer_optimizer_it_is_the_inner_one() -> None:
    plain = model()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    for batch in BATCHES:
        optimizer.zero_grad()
        plain(batch).square().mean().backward()
        optimizer.step()

    weights, ledger = train(strategy("localsgd", k_steps=3))

    torch.testing.assert_close(weights, _flat(plain), atol=1e-6, rtol=0)
    assert ledger.synchronisations == 3  # after steps 1, 4 and 7


def test_outer_steps_are_taken_as_torch_would() -> None:
    outer_model, inner_model = model(), model()
    outer = torch.optim.SGD(outer_model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    inner = torch.optim.SGD(inner_model.parameters(), lr=0.1)
    for step, batch in enumerate(BATCHES, start=1):
        inner.zero_grad()
        inner_model(batch).square().mean().backward()
        inner.step()
        if step in {3, 6, 7}:
            pairs = list(zip(outer_model.parameters(), inner_model.parameters(), strict=True))
            for kept, moved in pairs:
                kept.grad = (kept - moved).detach()
            outer.step()
            for kept, moved in pairs:
                moved.data.copy_(kept)

    weights, _ = train(strategy("diloco", k_steps=3))

    torch.testing.assert_close(weights, _flat(outer_model), atol=1e-6, rtol=0)


def test_an_adaptive_period_follows_the_losses() -> None:
    _, ledger = train(strategy("adaptive_localsgd", init_k_steps=4))

    assert len(ledger.intervals) > 1


def test_tables_are_refused_as_over_servers() -> None:
    session = Session()
    session.init(PaddleCloudRoleMaker(environment={}))
    trained = session.distributed_model(fleet.nn.Embedding(0, 2))
    inner = torch.optim.SGD(trained.parameters(), lr=0.1)

    with pytest.raises(StrategyError, match="k_steps"):
        session.distributed_optimizer(inner, strategy("localsgd"))


def test_what_servers_cannot_average_is_refused_here_too() -> None:
    with pytest.raises(LocalSgdSettingsError, match="optimizer_state"):
        train(strategy("localsgd", k_steps=2, optimizer_state="average"), momentum=0.9)
