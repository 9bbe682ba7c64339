"""What becomes of the inner optimizer's state at a synchronization.

A momentum that a worker gathered alone belongs to where it went alone. To keep it costs
nothing and is what Fleet and DiLoCo do; the mean of all is what one process would have had
(exactly so for SGD at ``k_steps = 1``) and costs as many bytes as the parameters, for Adam
twice as many; to begin anew costs nothing and forgets.
"""

from collections.abc import Sequence

import torch

from paramfleet_shared.errors import ContractError

__all__ = ["StateMissingError", "forget_state", "state_tensors"]


class StateMissingError(ContractError):
    """A parameter has no optimizer state to average: no batch has reached it yet."""

    code = "contract.localsgd_state_missing"
    shape: list[int]
    sentence = (
        "optimizer_state = 'average': a parameter of shape {shape} has no state yet, and "
        "the workers' means would not be of the same numbers; freeze it (requires_grad = "
        "False), or use optimizer_state = 'keep'"
    )


def state_tensors(
    optimizer: torch.optim.Optimizer, parameters: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Return what an optimizer keeps of each value of these parameters, in a fixed order.

    Step counts and other single numbers are left out: they are alike on all workers.

    Raises:
        StateMissingError: if it keeps something of one parameter and nothing of another.
    """
    found: list[torch.Tensor] = []
    bare: torch.Tensor | None = None
    for parameter in parameters:
        state = optimizer.state.get(parameter, {})
        kept = [
            value
            for _, value in sorted(state.items())
            if isinstance(value, torch.Tensor)
            and value.shape == parameter.shape
            and value.is_floating_point()
            and value.device == parameter.device
        ]
        found += kept
        if not kept:
            bare = parameter
    if found and bare is not None:
        raise StateMissingError(shape=list(bare.shape))
    return found


def forget_state(optimizer: torch.optim.Optimizer, parameters: Sequence[torch.Tensor]) -> None:
    """Let an optimizer begin anew with these parameters."""
    for parameter in parameters:
        optimizer.state.pop(parameter, None)
