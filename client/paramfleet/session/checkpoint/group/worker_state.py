"""The state of a worker that trains without servers: what is common to all, and its own.

By all-reduce, model and optimizer are common: worker 0 writes them, or each its shards.
Buffers, and what DGC has not sent yet, are each worker's own, and so is everything in LocalSGD,
where models differ between two synchronizations.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from paramfleet.config.errors import CallOrderError
from paramfleet.model_state.module_state import persistent_buffers
from paramfleet.training.collective.model import CollectiveModel
from paramfleet.training.collective.optimizer import CollectiveOptimizer
from paramfleet.training.collective.training import CollectiveTraining

__all__ = ["WorkerState", "made_of", "ready", "shapes_of", "taken_state", "unnumbered"]

_WITH_STATE = ("amp", "lars", "lamb", "dgc")
"""Features whose optimizers have states of their own, beside those that train apart."""


@dataclass(kw_only=True, slots=True)
class WorkerState:
    """What one worker brings to a checkpoint, or takes from it."""

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    """Common ones, ``model/NAME`` and ``optimizer/PARAMETER/KEY``. Of those that aren't
    sharded, worker 0 alone has any when it saves."""

    common: Any = None
    """Plain values that are common, beside those; of worker 0."""

    own: Any = None
    """Plain values and tensors that are this worker's."""


def ready(
    training: CollectiveTraining, function: str
) -> tuple[CollectiveModel, CollectiveOptimizer]:
    """Return what trains.

    Raises:
        CallOrderError: if there is no model or no optimizer yet, or batches wait to be merged.
    """
    model, optimizer = training.model, training.optimizer
    if model is None or optimizer is None:
        remedy = "call fleet.distributed_model() and fleet.distributed_optimizer() first"
        raise CallOrderError(function=function, remedy=remedy)
    if optimizer.merge.is_open:
        k_steps = optimizer.merge.k_steps
        remedy = (
            f"batches wait to be merged: call it after a whole step, which is every {k_steps} "
            "batches (gradient_merge)"
        )
        raise CallOrderError(function=function, remedy=remedy)
    return model, optimizer


def made_of(optimizer: CollectiveOptimizer) -> tuple[str, ...]:
    """Return what makes the state: the optimizer's class, and features with a state."""
    features = optimizer.plan.features
    found = [type(optimizer.inner).__name__]
    found += [name for name in _WITH_STATE if name in features]
    if "amp" in features:
        found.append(f"amp in {features['amp']['dtype']}")
    if optimizer.plan.apart is not None:
        fragments = features[optimizer.plan.apart].get("fragments", 1)
        found += [optimizer.plan.apart, f"fragments {fragments}"]
    return tuple(found)


def taken_state(model: CollectiveModel, optimizer: CollectiveOptimizer) -> WorkerState:
    """Return what this worker has; in LocalSGD it ends the exchanges that are under way.

    Every worker calls it after the same step.
    """
    if optimizer.apart is not None:
        own = {"model": model.state_dict(), "optimizer": numbered(optimizer.state_dict())}
        return WorkerState(common={"shapes": shapes_of(optimizer)}, own=own)
    said = numbered(optimizer.state_dict())
    buffers = dict(persistent_buffers(model.module))  # which sharding leaves as they are
    state = WorkerState(own={"unsent": _take_unsent(said, optimizer), "buffers": buffers})
    values = {f"model/{name}": value for name, value in model.state_dict().items()}
    for place, each in said["state"].items():
        for key, value in list(each.items()):
            if isinstance(value, torch.Tensor):
                values[f"optimizer/{place}/{key}"] = each.pop(key)
    state.tensors = {n: each for n, each in values.items() if isinstance(each, torch.Tensor)}
    extra = {name: each for name, each in values.items() if name not in state.tensors}
    state.common = {"shapes": shapes_of(optimizer), "optimizer": said, "extra": extra}
    return state


def shapes_of(optimizer: CollectiveOptimizer) -> list[list[list[int]]]:
    """Return the shapes of the parameters of each group."""
    return [
        [list(parameter.shape) for parameter in group["params"]]
        for group in optimizer.stepper.param_groups
    ]


def numbered(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return an optimizer's state with texts in place of numbers as keys."""
    found = dict(state)
    if "inner" in found:
        found["inner"] = numbered(found["inner"])
    if "state" in found:
        found["state"] = {str(place): dict(each) for place, each in found["state"].items()}
    return found


def unnumbered(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return what ``numbered`` was given.

    Raises:
        ValueError: if a key is no number.
    """
    found = dict(state)
    if "inner" in found:
        found["inner"] = unnumbered(found["inner"])
    if "state" in found:
        found["state"] = {int(place): dict(each) for place, each in found["state"].items()}
    return found


def _take_unsent(state: dict[str, Any], optimizer: CollectiveOptimizer) -> Any:
    """Take from an optimizer's state what is each worker's own; None if nothing is."""
    if "dgc" not in optimizer.plan.features:
        return None
    own, state["state"] = state["state"], {}
    return own
