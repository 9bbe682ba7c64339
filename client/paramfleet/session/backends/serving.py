"""A process that is a pserver by its role: its script must serve, and not train."""

import weakref
from typing import Any, NoReturn

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from typing_extensions import override

from paramfleet.session.backends.alone import AloneBackend
from paramfleet.session.backends.base import Own
from paramfleet.training.optimizer import DistributedOptimizer
from paramfleet_shared.errors import ContractError

__all__ = ["ServerBackend", "ServerScriptError"]


class ServerScriptError(ContractError):
    """A script trains in a process that is a pserver."""

    code = "contract.server_script"
    sentence = (
        "this process is a pserver, which holds tables and doesn't train; add two lines after "
        "fleet.init(): `if fleet.is_server():` and `    raise SystemExit(fleet.run_server())`"
    )


class ServerBackend(AloneBackend):
    """Refuses what only workers do, each step of any optimizer before it changes anything."""

    def __init__(self, own: Own) -> None:
        super().__init__(own)
        weakref.finalize(self, register_optimizer_step_pre_hook(_refuse).remove)

    @override
    def start(
        self, optimizer: DistributedOptimizer | None, model: torch.nn.Module | None
    ) -> NoReturn:
        raise ServerScriptError


def _refuse(*_: Any) -> NoReturn:
    """Refuse a step.

    Raises:
        ServerScriptError: always.
    """
    raise ServerScriptError
