"""Optimizers that torch doesn't have, and that the parameter servers run.

They are torch optimizers: of one process, of LocalSGD's workers and of GEO's dense parameters.
Servers, and rows of ``fleet.nn`` modules in every mode, step by the same formulas
(``paramfleet_shared.tables.rules``).

A parameter whose gradients are sparse, as those of ``torch.nn.Embedding(sparse=True)``, steps
only the rows that have one.

Shape legend: n = rows of a sparse gradient; D... = what else a parameter is as long as.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import torch
from typing_extensions import override

from paramfleet.tables.combined import Combined, loss_of
from paramfleet.tables.rules import check_numbers, check_ranges
from paramfleet_shared.tables.rules.catalog import RULES
from paramfleet_shared.tables.rules.record import Rule

__all__ = ["FTRL", "Combined", "RowwiseAdagrad"]

_States = dict[str, torch.Tensor]


class _ByRows(torch.optim.Optimizer, ABC):
    """Steps parameters by whole, or the rows of a sparse gradient."""

    _rule: ClassVar[Rule]
    """Whose ranges the options have."""

    @override
    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Train more parameters, with options of their own.

        Raises:
            OptimizerOptionError: if an option is no number, or not in its range.
            TypeError: if there is no such option.
        """
        name, options = type(self).__name__, {**self.defaults, **param_group}
        for option in set(options) - {"params", *self.defaults}:
            if options[option]:
                message = f"{name} has no option {option!r}: leave it out of its groups"
                raise TypeError(message)
        numbers = {option: options[option] for option in self.defaults}
        check_numbers(name, numbers)
        check_ranges(name, numbers, self._rule)
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step.

        Args:
            closure: Computes the loss and the gradients again, if given.

        Returns:
            What ``closure`` returned; None without one.
        """
        loss = loss_of(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step_one(group, parameter, parameter.grad)
        return loss

    def _step_one(
        self, group: dict[str, Any], parameter: torch.Tensor, grad: torch.Tensor
    ) -> None:
        state = self.state[parameter]
        if not state:
            state |= self._first(group, parameter, sparse=grad.is_sparse)
        if not grad.is_sparse:
            value, moved = self._moved(group, parameter, state, grad, sparse=False)
            parameter.copy_(value)
            for name, tensor in moved.items():
                state[name].copy_(tensor)
            return
        grad = grad.coalesce()
        rows = grad.indices()[0]
        some = {name: tensor[rows] for name, tensor in state.items()}
        value, moved = self._moved(group, parameter[rows], some, grad.values(), sparse=True)
        parameter.index_copy_(0, rows, value)
        for name, tensor in moved.items():
            state[name].index_copy_(0, rows, tensor)

    @abstractmethod
    def _first(
        self, group: dict[str, Any], parameter: torch.Tensor, *, sparse: bool
    ) -> _States:
        """Return the states of a parameter that was never stepped."""

    @abstractmethod
    def _moved(
        self,
        group: dict[str, Any],
        value: torch.Tensor,
        states: _States,
        grad: torch.Tensor,
        *,
        sparse: bool,
    ) -> tuple[torch.Tensor, _States]:
        """Return a new value [n, D...] and its states."""


class FTRL(_ByRows):
    """FTRL-Proximal (McMahan et al., 2013), an optimizer for sparse linear models.

    A value that starts at 0 stays 0 while the absolute sum of its gradients is at most ``l1``.
    If a value starts elsewhere, the first step continues from it.

    Args:
        params: Parameters, or groups of them.
        lr: The learning rate, alpha in the paper.
        beta: Beta in the paper, added to the root of the sum of squared gradients, by which
            the rate is divided. From 1e-6 to 1e6.
        l1: Lambda 1 in the paper, from 0 to 1e6.
        l2: Lambda 2 in the paper, from 0 to 1e6.

    Raises:
        OptimizerOptionError: if an option is not a number, or out of its range.
        TypeError: if a group has an unknown option.
    """

    _rule = RULES["ftrl"]

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.1,
        *,
        beta: float = 1.0,
        l1: float = 0.0,
        l2: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "beta": beta, "l1": l1, "l2": l2})

    def _first(
        self, group: dict[str, Any], parameter: torch.Tensor, *, sparse: bool
    ) -> _States:
        del group, sparse
        return {"z": torch.zeros_like(parameter), "n": torch.zeros_like(parameter)}

    def _moved(
        self,
        group: dict[str, Any],
        value: torch.Tensor,
        states: _States,
        grad: torch.Tensor,
        *,
        sparse: bool,
    ) -> tuple[torch.Tensor, _States]:
        del sparse
        rate, l1 = float(group["lr"]), float(group["l1"])
        total = states["n"] + grad * grad
        scale = total.sqrt() + (group["beta"] + rate * group["l2"])
        held = torch.where(value == 0, states["z"], -value.sign() * l1)
        pull = held.clamp(-l1, l1) + grad
        moved = pull * rate - value * scale
        beyond = moved.clamp(-rate * l1, rate * l1) - moved
        z = pull - value * scale / rate if rate else pull
        return beyond / scale, {"z": z.clamp(-l1, l1), "n": total}


class RowwiseAdagrad(_ByRows):
    """Adagrad with one sum per row, as EXACT_ROWWISE_ADAGRAD of FBGEMM and TorchRec.

    Each step adds the mean of the squared gradient of a row to the row's sum, and divides the
    rate by the root of that sum. So the state of a row is one number. Other parameters have
    one sum per value, as in Adagrad.

    Args:
        params: Parameters, or groups of them.
        lr: Learning rate.
        initial_accumulator_value: The first value of the sums.
        eps: Added to the root.

    Raises:
        OptimizerOptionError: if an option is not a number, or out of its range.
        TypeError: if a group has an unknown option.
    """

    _rule = RULES["rowwise_adagrad"]

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.01,
        *,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-8,
    ) -> None:
        first = initial_accumulator_value
        super().__init__(params, {"lr": lr, "initial_accumulator_value": first, "eps": eps})

    def _first(
        self, group: dict[str, Any], parameter: torch.Tensor, *, sparse: bool
    ) -> _States:
        first = float(group["initial_accumulator_value"])
        ones = (1,) * (parameter.dim() - 1)
        shape = (len(parameter), *ones) if sparse else parameter.shape
        return {"sum": parameter.new_full(shape, first)}

    def _moved(
        self,
        group: dict[str, Any],
        value: torch.Tensor,
        states: _States,
        grad: torch.Tensor,
        *,
        sparse: bool,
    ) -> tuple[torch.Tensor, _States]:
        squares = grad * grad
        if sparse and grad.dim() > 1:
            squares = squares.mean(dim=tuple(range(1, grad.dim())), keepdim=True)
        total = states["sum"] + squares
        return value - grad * (group["lr"] / (total.sqrt() + group["eps"])), {"sum": total}
