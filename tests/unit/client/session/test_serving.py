"""A pserver's process takes no step, whichever optimizer a script makes in it."""

import gc

import pytest
import torch

from paramfleet.config.roles import PaddleCloudRoleMaker
from paramfleet.session.backends.serving import ServerScriptError
from paramfleet.session.session import Session

SERVER = {"TRAINING_ROLE": "PSERVER", "POD_IP": "127.0.0.1", "PADDLE_PORT": "7000"}


def stepped(optimizer: torch.optim.Optimizer, weight: torch.nn.Parameter) -> float:
    weight.grad = torch.ones(1)
    optimizer.step()
    return float(weight.detach())


def test_no_optimizer_steps_in_a_pserver_and_nothing_is_left_of_that_behind_it() -> None:
    session = Session()
    session.init(PaddleCloudRoleMaker(environment=SERVER))
    weight = torch.nn.Parameter(torch.ones(1))
    plain = torch.optim.SGD([weight], lr=0.5)

    for optimizer in (plain, session.distributed_optimizer(plain)):
        with pytest.raises(ServerScriptError, match=r"fleet\.is_server"):
            stepped(optimizer, weight)
    with pytest.raises(ServerScriptError):
        session.init_worker()
    assert float(weight.detach()) == 1.0

    del session, optimizer
    gc.collect()
    assert stepped(plain, weight) == 0.5
