"""DGC sends the largest values and keeps the rest, as the paper says."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from torch import distributed
from torch.distributed import HashStore  # type: ignore[attr-defined]  # documented, not marked
from torch.nn.parallel import DistributedDataParallel

from paramfleet.training.collective.features.dgc import DgcSgd, sparsity_at

CONFIGS: dict[str, Any] = {"rampup_begin_step": 3, "rampup_step": 4, "sparsity": (0.5, 0.75)}


@pytest.fixture
def _alone() -> Iterator[None]:
    distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def test_the_ramp_is_followed_step_by_step() -> None:
    found = [sparsity_at(step, CONFIGS) for step in range(9)]

    assert found == [None, None, None, 0.5, 0.5, 0.75, 0.75, 0.75, 0.75]


@pytest.mark.usefixtures("_alone")
def test_each_step_is_the_papers() -> None:
    torch.manual_seed(2)
    model = torch.nn.Linear(8, 1, bias=False).double()
    weight = model.weight.detach().numpy().copy().reshape(-1)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    optimizer = DgcSgd(sgd.param_groups, CONFIGS)
    wrapper = DistributedDataParallel(model)
    wrapper.register_comm_hook(None, optimizer.hook)
    inputs = torch.randn(9, 4, 8, dtype=torch.float64)

    velocity, unsent = np.zeros(8), np.zeros(8)
    for step, batch in enumerate(inputs):
        wrapper(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        rows = batch.numpy()
        gradient = 2 * rows.T @ (rows @ weight) / 4 + 0.01 * weight
        velocity = 0.9 * velocity + gradient
        sparsity = sparsity_at(step, CONFIGS)
        if sparsity is None:
            weight = weight - 0.1 * velocity
            continue
        unsent = unsent + velocity
        largest = np.argsort(-np.abs(unsent))[: round(8 * (1 - sparsity))]
        weight[largest] -= 0.1 * unsent[largest]
        velocity[largest] = unsent[largest] = 0

        np.testing.assert_allclose(model.weight.detach().numpy()[0], weight, rtol=1e-9)


@pytest.mark.usefixtures("_alone")
def test_what_was_saved_goes_on() -> None:
    torch.manual_seed(2)
    first, second = torch.nn.Linear(8, 1), torch.nn.Linear(8, 1)
    made = []
    for model in (first, second):
        sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        optimizer = DgcSgd(sgd.param_groups, {**CONFIGS, "rampup_begin_step": 0})
        wrapper = DistributedDataParallel(model)
        wrapper.register_comm_hook(None, optimizer.hook)
        made.append((wrapper, optimizer))

    def step(number: int) -> None:
        wrapper, optimizer = made[number]
        wrapper(torch.ones(4, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    step(0)
    second.load_state_dict(first.state_dict())
    made[1][1].load_state_dict(deepcopy(made[0][1].state_dict()))
    step(0)
    step(1)

    assert torch.equal(first.weight, second.weight)
