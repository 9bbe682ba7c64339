"""What torch's functions that clip gradients do in a job: they see one worker's alone.

Torch computes a total norm in one function, whichever name a script has of those that clip
by it. For the life of a job it asks for the norm of all workers' gradients. What is clipped
otherwise is each worker's own, and warned of once.
"""

import logging
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch.nn.utils import clip_grad

from paramfleet_shared.errors import ContractError

__all__ = ["ClipMixedError", "Clipping", "TotalNorm"]

log = logging.getLogger(__name__)

_OWN = (
    "each worker clips its own gradient, before they are merged: that isn't what one process "
    "with the whole batch does; clip by norm instead (fleet.clip_grad_norm_)"
)
_OWN_PASSES = (
    "each worker clips its own gradient, before they are merged: that isn't what one process "
    "with the whole batch does; use sync mode to clip by the norm of all"
)


class TotalNorm(Protocol):
    """Returns the norm of all workers' gradients."""

    def __call__(
        self, gradients: list[torch.Tensor], norm_type: float, *, examples: int | None
    ) -> float:
        """Return the norm.

        Args:
            gradients: This worker's.
            norm_type: The order.
            examples: Of this worker; None for those that its model was called with.
        """
        ...


class ClipMixedError(ContractError):
    """Gradients are clipped together that are of the job and of this worker alone."""

    code = "contract.clip_mixed"
    others: int
    trained: int
    sentence = (
        "clip_grad_norm_: {others} of the parameters aren't the job's optimizer's, and "
        "{trained} are: their common norm isn't the same in all workers; clip them by two "
        "calls, or give all of them to fleet.distributed_optimizer()"
    )


class Clipping:
    """Torch's functions, replaced until ``end``.

    Args:
        optimizer: Whose gradients are meant.
        total_norm: Returns the norm of all workers' gradients; None where workers don't share a
            step in which it could be known.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, total_norm: TotalNorm | None) -> None:
        self._optimizer = optimizer
        self._total_norm = total_norm
        self._examples: int | None = None
        self._has_warned = False
        self._replaced: list[tuple[Any, Callable[..., Any]]] = []
        self._replace(clip_grad._get_total_norm, self._norm)  # noqa: SLF001 - torch's own names lead there
        self._replace(clip_grad.clip_grad_value_, self._clip_value)

    def end(self) -> None:
        """Give torch its functions back."""
        while self._replaced:
            cell, plain = self._replaced.pop()
            cell.cell_contents = plain

    @contextmanager
    def counting(self, examples: int | None) -> Generator[None, None, None]:
        """Weigh this worker's gradient by so many examples, in the block."""
        self._examples = examples
        try:
            yield
        finally:
            self._examples = None

    def _replace(self, wrapper: Any, make: Callable[..., Any]) -> None:
        """Have a function of torch call ``make`` with what it was, and its arguments.

        Torch wraps it, so whoever has imported it before calls the replacement, too.
        """
        cell = wrapper.__closure__[wrapper.__code__.co_freevars.index("func")]
        plain = cell.cell_contents

        def replaced(*args: Any, **kwargs: Any) -> Any:
            return make(plain, *args, **kwargs)

        cell.cell_contents = replaced
        self._replaced.append((cell, plain))

    def _norm(
        self,
        plain: Callable[..., torch.Tensor],
        tensors: torch.Tensor | Iterable[torch.Tensor],
        norm_type: float = 2.0,
        error_if_nonfinite: bool = False,  # noqa: FBT001, FBT002 - torch's signature
        foreach: bool | None = None,  # noqa: FBT001 - torch's signature
    ) -> torch.Tensor:
        """Return the norm of gradients: of all workers', where they are the job's.

        Raises:
            ClipMixedError: if some are the job's, and some not.
            RuntimeError: as torch's function.
            FleetError: as ``MergedNorms.norm``.
        """
        gradients = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        if not self._are_trained(gradients):
            return plain(gradients, norm_type, error_if_nonfinite, foreach)
        if self._total_norm is None:
            self._warn("clip_grad_norm_", _OWN_PASSES)
            return plain(gradients, norm_type, error_if_nonfinite, foreach)
        total = self._total_norm(gradients, float(norm_type), examples=self._examples)
        like = gradients[0] if gradients else torch.empty(0)
        norm = torch.tensor(total, dtype=like.dtype, device=like.device)
        return plain([norm], float("inf"), error_if_nonfinite)

    def _clip_value(
        self,
        plain: Callable[..., None],
        parameters: torch.Tensor | Iterable[torch.Tensor],
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Clip this worker's values as torch does, and warn of that once."""
        given = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        known = {id(each) for each in self._parameters()}
        if any(id(each) in known for each in given):
            self._warn("clip_grad_value_", _OWN)
        plain(given, *args, **kwargs)

    def _are_trained(self, gradients: list[torch.Tensor]) -> bool:
        """Return whether gradients are those of the job's optimizer.

        Raises:
            ClipMixedError: if some are, and some not.
        """
        known = {id(each.grad) for each in self._parameters() if each.grad is not None}
        if not gradients and not known:  # a batch without any; other workers have some
            return self._total_norm is not None
        trained = sum(id(each) in known for each in gradients)
        if 0 < trained < len(gradients):
            raise ClipMixedError(others=len(gradients) - trained, trained=trained)
        return trained > 0

    def _parameters(self) -> Iterable[torch.Tensor]:
        for group in self._optimizer.param_groups:
            yield from group["params"]

    def _warn(self, function: str, reason: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            log.warning(
                "worker.clips_own_gradient", extra={"function": function, "reason": reason}
            )
