"""Parameter groups and state dicts of a distributed optimizer, in one process."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import paramfleet as fleet
from paramfleet.config.roles import RoleMaker
from paramfleet.session.session import Session
from paramfleet.tables.combined import GroupAddedError
from paramfleet.training.optimizer import DistributedOptimizer
from paramfleet.training.stepping.groups import (
    ClosureOptimizerError,
    OptimizerStateError,
    check_added,
    check_states,
)


def made(
    inner: Callable[..., torch.optim.Optimizer] = torch.optim.SGD, **keys: Any
) -> tuple[Any, DistributedOptimizer]:
    session = Session()
    session.init(RoleMaker(distributed=False))
    model = session.distributed_model(
        torch.nn.Sequential(fleet.nn.Embedding(9, 2, name="words"), torch.nn.Linear(2, 1))
    )
    return model, session.distributed_optimizer(inner(model.parameters(), lr=0.5, **keys))


def step(model: torch.nn.Module, optimizer: DistributedOptimizer) -> None:
    optimizer.minimize(model(torch.arange(9)).square().sum())


def test_a_group_that_is_added_to_either_optimizer_is_trained() -> None:
    model, optimizer = made()
    values = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    optimizer.add_param_group({"params": values[:1]})
    optimizer.inner.add_param_group({"params": values[1:], "lr": 0.25})

    optimizer.minimize(values[0].sum() + values[1].sum() + model(torch.arange(9)).sum())

    assert values[0].tolist() == [0.5, 0.5]
    assert values[1].tolist() == [0.75, 0.75]
    assert len(optimizer.tables.dense) == 3


def test_a_group_of_rows_is_refused_and_taken_out() -> None:
    _, optimizer = made()
    rows = fleet.nn.Embedding(9, 2, name="more")

    with pytest.raises(GroupAddedError, match="give the rows of 'more' to the optimizer"):
        optimizer.add_param_group({"params": list(rows.parameters())})

    assert len(optimizer.param_groups) == len(optimizer.inner.param_groups) == 1


def test_a_group_is_refused_once_tables_are_declared() -> None:
    with pytest.raises(GroupAddedError, match=r"before fleet\.init_worker\(\)"):
        check_added([{"params": [torch.ones(1)]}], is_late=True)


def test_rates_that_are_set_after_a_load_count() -> None:
    model, optimizer = made()
    optimizer.load_state_dict(optimizer.state_dict())
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    before = [each.clone() for each in (model[0](torch.arange(9)), model[1].weight)]

    step(model, optimizer)

    after = (model[0](torch.arange(9)), model[1].weight)
    assert all(torch.equal(*each) for each in zip(before, after, strict=True))


def test_combined_optimizers_step_by_the_rates_of_a_load() -> None:
    parts = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    session = Session()
    session.init(RoleMaker(distributed=False))
    optimizer = session.distributed_optimizer(
        [
            torch.optim.SGD(parts[:1], lr=0.5),
            torch.optim.Adagrad(parts[1:], lr=0.5),
        ]
    )
    state = optimizer.state_dict()
    state["param_groups"][0]["lr"] = 0.25
    optimizer.load_state_dict(state)

    optimizer.minimize(parts[0].sum() + parts[1].sum())

    assert parts[0].tolist() == [0.75, 0.75]


def test_an_optimizer_that_needs_a_closure_is_refused() -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    session = Session()
    session.init(RoleMaker(distributed=False))

    with pytest.raises(ClosureOptimizerError, match="LBFGS computes the loss several times"):
        session.distributed_optimizer(torch.optim.LBFGS([parameter]))


def test_a_state_dict_that_lacks_states_of_rows_is_named_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model, optimizer = made(torch.optim.Adam)
    step(model, optimizer)

    optimizer.state_dict()
    optimizer.state_dict()

    (found,) = [each for each in caplog.records if "state_partial" in each.getMessage()]
    assert found.__dict__["tables"] == ["words"]


def test_a_state_dict_without_states_is_silent(caplog: pytest.LogCaptureFixture) -> None:
    model, optimizer = made(torch.optim.SGD)
    step(model, optimizer)

    optimizer.state_dict()

    assert "state_partial" not in caplog.text


def test_states_of_dense_parameters_are_loaded_and_those_of_rows_refused() -> None:
    model, optimizer = made(torch.optim.Adam)
    step(model, optimizer)
    state = optimizer.state_dict()
    optimizer.load_state_dict(state)
    state["state"][0] = {"step": torch.tensor(1.0), "exp_avg": torch.zeros(9, 2)}

    with pytest.raises(OptimizerStateError, match="the tables of rows keep"):
        optimizer.load_state_dict(state)


def test_states_that_pservers_keep_are_refused() -> None:
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.ones(2))])
    state = optimizer.state_dict()
    check_states(optimizer, state, all_elsewhere=True)
    state["state"][0] = {"step": torch.tensor(1.0)}

    with pytest.raises(OptimizerStateError, match=r"that pservers keep .* fleet\.load_model"):
        check_states(optimizer, state, all_elsewhere=True)
