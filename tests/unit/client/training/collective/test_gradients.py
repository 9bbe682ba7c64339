"""Which gradients a collective step takes."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import distributed

from paramfleet.config.roles import PaddleCloudRoleMaker
from paramfleet.config.strategy import DistributedStrategy
from paramfleet.session.session import Session
from paramfleet.tables.combined import GroupAddedError
from paramfleet.training.collective.errors import CollectiveSetupError
from paramfleet.training.collective.gradients import UnusedParametersError, _check_embeddings


@pytest.fixture
def session() -> Iterator[Session]:
    made = Session()
    made.init(PaddleCloudRoleMaker(True, environment={}), is_collective=True)
    yield made
    if distributed.is_initialized():
        distributed.destroy_process_group()


def layers() -> Any:
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 1))


def started(session: Session, net: Any, **settings: Any) -> tuple[Any, Any]:
    strategy = DistributedStrategy()
    for name, value in settings.items():
        setattr(strategy, name, value)
    model = session.distributed_model(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    return model, session.distributed_optimizer(optimizer, strategy)


def test_layers_are_frozen_and_thawed_between_batches(session: Session) -> None:
    net, plain = layers(), layers()
    model, optimizer = started(session, net)
    sgd = torch.optim.SGD(plain.parameters(), lr=0.1)
    inputs = torch.ones(2, 4)

    for trains in ((True, True), (False, True), (True, False), (False, True), (True, True)):
        for each in (net, plain):
            for layer, is_trained in zip(each, trains, strict=True):
                layer.requires_grad_(is_trained)
        optimizer.minimize(model(inputs).square().mean())
        plain(inputs).square().mean().backward()
        sgd.step()
        sgd.zero_grad()

    for ours, its in zip(net.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours, its)


def test_parameters_without_a_gradient_are_named_before_the_step(session: Session) -> None:
    net = layers()
    net.extra = torch.nn.Linear(4, 1)
    net.forward = lambda inputs: net[1](net[0](inputs))
    model, optimizer = started(session, net)
    before = [each.clone() for each in net.parameters()]

    with pytest.raises(
        UnusedParametersError, match=r"extra\.weight, extra\.bias: set strategy"
    ):
        optimizer.minimize(model(torch.ones(2, 4)).mean())

    assert all(torch.equal(*each) for each in zip(before, net.parameters(), strict=True))


def test_parameters_without_a_gradient_train_where_they_are_looked_for(
    session: Session,
) -> None:
    net = layers()
    net.extra = torch.nn.Linear(4, 1)
    net.forward = lambda inputs: net[1](net[0](inputs))
    model, optimizer = started(session, net, find_unused_parameters=True)
    before = net[0].weight.clone()

    for _ in range(2):
        optimizer.minimize(model(torch.ones(2, 4)).mean())

    assert not torch.equal(before, net[0].weight)


@pytest.mark.parametrize("options", [{"max_norm": 1.0}, {"scale_grad_by_freq": True}])
def test_options_by_which_workers_would_differ_are_refused(options: Any) -> None:
    net = torch.nn.Sequential(torch.nn.Embedding(3, 2, **options))

    with pytest.raises(CollectiveSetupError, match="of embedding '0': each worker would"):
        _check_embeddings(net)


def test_a_group_of_the_model_is_added_and_one_of_others_refused(session: Session) -> None:
    net = layers()
    model = session.distributed_model(net)
    optimizer = session.distributed_optimizer(torch.optim.SGD(net[0].parameters(), lr=0.1))
    before = net[1].weight.clone()

    optimizer.add_param_group({"params": list(net[1].parameters())})
    optimizer.minimize(model(torch.ones(2, 4)).mean())

    assert not torch.equal(before, net[1].weight)
    with pytest.raises(GroupAddedError, match="would not be all-reduced"):
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})
