"""A collective job of one worker, in this process."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import distributed

import paramfleet as fleet
from paramfleet.api.prefetching import Prefetching
from paramfleet.api.reporting import Reporting
from paramfleet.config.errors import CallOrderError
from paramfleet.config.roles import PaddleCloudRoleMaker, RoleError
from paramfleet.config.strategy import DistributedStrategy
from paramfleet.session.backends.collective import CollectiveBackend
from paramfleet.session.checkpoint.saving import Saving
from paramfleet.session.session import Session
from paramfleet.training.collective.errors import CollectiveSetupError, WrongModeError


@pytest.fixture
def session() -> Iterator[Session]:
    made = Session()
    made.init(PaddleCloudRoleMaker(True, environment={}), is_collective=True)
    yield made
    if distributed.is_initialized():
        distributed.destroy_process_group()


def linear() -> torch.nn.Linear:
    torch.manual_seed(3)
    return torch.nn.Linear(4, 1)


def train(session: Session, strategy: DistributedStrategy | None = None) -> torch.nn.Module:
    model = session.distributed_model(linear())
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = session.distributed_optimizer(sgd, strategy)
    for inputs in batches():
        optimizer.minimize(model(inputs).square().mean())
    return model


def batches() -> Iterator[torch.Tensor]:
    random = torch.Generator().manual_seed(5)
    for _ in range(6):
        yield torch.randn(8, 4, generator=random)


def test_one_worker_alone_trains_as_torch_does(session: Session) -> None:
    plain = linear()
    sgd = torch.optim.SGD(plain.parameters(), lr=0.1)
    for inputs in batches():
        plain(inputs).square().mean().backward()
        sgd.step()
        sgd.zero_grad()

    model = train(session)

    for name, value in plain.state_dict().items():
        assert torch.equal(model.state_dict()[name], value)


def test_who_and_where(session: Session) -> None:
    assert (session.worker_index(), session.worker_num()) == (0, 1)
    assert session.is_first_worker()
    assert not session.is_server()
    session.barrier_worker()
    session.stop_worker()
    session.stop_worker()
    assert not distributed.is_initialized()


def test_merged_batches_are_one_step(session: Session) -> None:
    plain = linear()
    sgd = torch.optim.SGD(plain.parameters(), lr=0.1)
    for number, inputs in enumerate(batches()):
        (plain(inputs).square().mean() / 3).backward()
        if number % 3 == 2:
            sgd.step()
            sgd.zero_grad()
    strategy = DistributedStrategy()
    strategy.gradient_merge = True
    strategy.gradient_merge_configs = {"k_steps": 3}

    model = train(session, strategy)

    torch.testing.assert_close(model.state_dict(), plain.state_dict())
    assert isinstance(session.backend, CollectiveBackend)
    assert session.backend.training.optimizer is not None
    assert session.backend.training.optimizer.num_steps == 2


def test_optimizer_first_is_as_good(session: Session) -> None:
    model = linear()
    optimizer = session.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(CallOrderError, match="distributed_model"):
        optimizer.step()

    wrapped = session.distributed_model(model)
    optimizer.minimize(wrapped(torch.ones(2, 4)).sum())

    assert not torch.equal(wrapped.state_dict()["weight"], linear().weight)


def test_training_needs_an_optimizer_and_evaluation_does_not(session: Session) -> None:
    model = session.distributed_model(linear())

    with pytest.raises(CallOrderError, match="distributed_optimizer"):
        model(torch.ones(2, 4))
    with torch.no_grad():
        assert model(torch.ones(2, 4)).shape == (2, 1)


def test_a_model_with_tables_needs_servers(session: Session) -> None:
    with pytest.raises(CollectiveSetupError, match="is_collective=True"):
        session.distributed_model(torch.nn.Sequential(fleet.nn.Embedding(0, 8)))


def test_an_optimizer_of_another_model_is_refused(session: Session) -> None:
    session.distributed_model(linear())

    with pytest.raises(CollectiveSetupError, match="not a parameter of the model"):
        session.distributed_optimizer(torch.optim.SGD(linear().parameters(), lr=0.1))


def test_there_is_one_model_and_one_optimizer(session: Session) -> None:
    train(session)

    with pytest.raises(CallOrderError, match="one"):
        session.distributed_model(linear())
    with pytest.raises(CallOrderError, match="one"):
        session.distributed_optimizer(torch.optim.SGD(linear().parameters(), lr=0.1))


def test_batch_norm_is_synchronised_on_gpus_only(session: Session) -> None:
    strategy = DistributedStrategy()
    strategy.sync_batch_norm = True

    with pytest.raises(CollectiveSetupError, match="sync_batch_norm = True on cpu"):
        train(session, strategy)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("init_server", []),
        ("run_server", []),
        ("server_num", []),
        ("server_index", []),
        ("server_endpoints", []),
        ("depart", []),
    ],
)
def test_what_needs_servers_is_refused_by_name(
    session: Session, name: str, arguments: list[Any]
) -> None:
    with pytest.raises(WrongModeError, match="is_collective=True"):
        getattr(session, name)(*arguments)


def test_what_its_optimizer_lacks_is_refused_by_name(session: Session) -> None:
    model = session.distributed_model(linear())
    optimizer = session.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    loss = model(torch.ones(2, 4)).sum()

    with pytest.raises(WrongModeError, match="leave out examples"):
        optimizer.minimize(loss, examples=2)
    with pytest.raises(WrongModeError, match="leave out examples"):
        optimizer.step(examples=2)
    with pytest.raises(WrongModeError, match="no mode of pservers"):
        optimizer.wait_exchanged()

    assert all(parameter.grad is None for parameter in model.parameters())
    assert (optimizer.staleness, optimizer.prefetch_misses, optimizer.num_steps) == (0, 0, 0)
    assert not optimizer.tables.dense, "parameters that sharding replaces would stay"


def test_an_export_of_tables_is_refused_by_name(session: Session) -> None:
    with pytest.raises(WrongModeError, match=r"torch.save"):
        Saving(session).save_inference_model("folder")


def test_what_others_reported_isnt_known_and_batches_are_loaded_ahead(session: Session) -> None:
    with pytest.raises(WrongModeError, match="all_gather"):
        Reporting(session).job_progress()
    model = session.distributed_model(linear())

    assert list(Prefetching(session).prefetch([1, 2, 3], model)) == [1, 2, 3]


def test_a_role_of_servers_is_not_collective() -> None:
    with pytest.raises(RoleError, match="is_collective"):
        Session().init(PaddleCloudRoleMaker(environment={}), is_collective=True)


def test_a_second_process_group_is_refused(session: Session) -> None:
    with pytest.raises(CollectiveSetupError, match=r"torch\.distributed is initialized"):
        Session().init(PaddleCloudRoleMaker(True, environment={}))
