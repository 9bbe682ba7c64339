"""The optimizer's states of dense parameters, as pieces of one flat vector.

Legend: P = all values of a block, n = values of a piece.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from paramfleet.tables.dense import DenseBlock
from paramfleet_shared.tables.spec import OptimizerSpec
from paramfleet_shared.values.spans import MissedUpdates

__all__ = ["missed_of", "piece_of_state", "set_piece_of_state", "set_steps", "steps_of"]


def piece_of_state(
    optimizer: torch.optim.Optimizer,
    block: DenseBlock,
    name: str,
    *,
    rule: OptimizerSpec,
    where: slice,
) -> NDArray[np.float32]:
    """Return some of one state, float32 [n]; what the optimizer hasn't made yet is as new.

    Args:
        optimizer: The user's.
        block: Whose states.
        name: Torch's name of the state.
        rule: What says how a state is when it is new.
        where: Which values of the block, with both bounds.
    """
    found = np.full(where.stop - where.start, rule.initial_state, np.float32)
    for parameter, inside, outside in block.overlaps(where):
        state = optimizer.state.get(parameter, {}).get(name)
        if state is not None:
            flat = state.detach().reshape(-1)[inside]
            found[outside] = flat.to("cpu", torch.float32).numpy()
    return found


def set_piece_of_state(
    optimizer: torch.optim.Optimizer,
    block: DenseBlock,
    name: str,
    *,
    rule: OptimizerSpec,
    start: int,
    values: NDArray[np.float32],
) -> None:
    """Set some of one state, float32 [n] from ``start`` on; it is made where it isn't there."""
    for parameter, inside, outside in block.overlaps(slice(start, start + len(values))):
        states = optimizer.state[parameter]
        if states.get(name) is None:
            states[name] = torch.full_like(parameter.detach(), rule.initial_state)
        piece = torch.from_numpy(values[outside].copy())
        states[name].view(-1)[inside] = piece.to(states[name])


def set_steps(optimizer: torch.optim.Optimizer, block: DenseBlock, steps: int) -> None:
    """Set how many steps the optimizer counts of each parameter."""
    for parameter in block.parameters:
        optimizer.state[parameter]["step"] = torch.tensor(float(steps))


def steps_of(optimizer: torch.optim.Optimizer, block: DenseBlock, *, otherwise: int) -> int:
    """Return the most steps that the optimizer counts of a parameter, if it counts any."""
    states = [optimizer.state.get(parameter, {}) for parameter in block.parameters]
    return max((int(state["step"]) for state in states if "step" in state), default=otherwise)


def missed_of(
    optimizer: torch.optim.Optimizer, block: DenseBlock, *, steps: int
) -> MissedUpdates:
    """Return how many of so many steps the optimizer hasn't taken of each parameter.

    None where it doesn't count them.
    """
    states = [optimizer.state.get(parameter, {}) for parameter in block.parameters]
    if not any("step" in state for state in states):
        return MissedUpdates()
    parts = []
    for start, parameter, state in zip(block.starts(), block.parameters, states, strict=True):
        count = steps - int(state.get("step", 0))
        if count and parameter.numel():
            parts.append((start, MissedUpdates([(0, parameter.numel(), count)])))
    return MissedUpdates.joined(parts)
