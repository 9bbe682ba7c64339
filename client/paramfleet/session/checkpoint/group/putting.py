"""A worker takes its state from a checkpoint: first all is read and compared, then it is put.

Where the number of workers is another one, what all have in common is the same; of what was
each worker's own, this is the rule:

* LocalSGD: every worker begins at the values of the last synchronization, with the outer
  momenta and the schedule, which were the same in all. Worker ``r`` of the new ones has the
  inner optimizer's state of worker ``r modulo W``, for W that saved. What was learned since
  the synchronization, and what narrow formats had not sent yet, is left out. Buffers are those
  of worker 0.
* By all-reduce, buffers are those of worker 0.
* DGC: the velocities of worker ``r modulo W``. What was not sent yet is left out.
* Random generators, and positions in data that can't be shared out, begin anew.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch.distributed.tensor import DTensor

from paramfleet.model_state.plain import dtype_name
from paramfleet.session.all_or_none import NOT_FITTING
from paramfleet.session.checkpoint.group.files import WorkerFiles
from paramfleet.session.checkpoint.group.manifest import GroupManifest, SavedTensor
from paramfleet.session.checkpoint.group.tensors import fill
from paramfleet.session.checkpoint.group.worker_state import made_of, shapes_of, unnumbered
from paramfleet.training.collective.model import CollectiveModel
from paramfleet.training.collective.optimizer import CollectiveOptimizer
from paramfleet_shared.errors import ContractError
from paramfleet_shared.values.texts import shown

__all__ = ["OtherTrainingError", "StateToPut", "state_to_put"]


class OtherTrainingError(ContractError):
    """A checkpoint is of another model, optimizer or strategy; nothing was changed."""

    code = "contract.other_training"
    path: str
    what: str
    saved: str
    have: str
    sentence = (
        "{path}: {what} is {saved} in the checkpoint and {have} here: make the same model, "
        "optimizer and strategy, or load another checkpoint"
    )


class StateToPut(NamedTuple):
    """What a worker takes, read and compared but not put yet."""

    model: dict[str, Any]
    """By the names of the model's ``state_dict``."""

    optimizer: dict[str, Any]
    steps: int
    anew: bool
    """Whether LocalSGD begins at the last synchronization."""

    def put(self, model: CollectiveModel, optimizer: CollectiveOptimizer) -> None:
        """Change model and optimizer.

        Raises:
            Exception: what a ``load_state_dict`` raises on a state that isn't its own.
        """
        model.load_state_dict(self.model)
        if self.anew:
            optimizer.load_common_state(self.optimizer)
        else:
            optimizer.load_state_dict(self.optimizer)
        optimizer.num_steps = self.steps


def state_to_put(
    path: str,
    manifest: GroupManifest,
    files: WorkerFiles,
    model: CollectiveModel,
    optimizer: CollectiveOptimizer,
    *,
    place: tuple[int, int],
) -> StateToPut:
    """Read what a worker takes, and compare it with what it has.

    Args:
        path: The checkpoint's, for errors.
        manifest: The checkpoint's.
        files: The workers' files.
        model: This worker's.
        optimizer: This worker's.
        place: This worker's rank, and how many there are.

    Raises:
        OtherTrainingError: if it is of another training.
        ValueError: if the checkpoint contradicts itself.
        CheckpointDamagedError: if a file isn't what was saved.
    """
    rank, workers = place
    same_workers = len(manifest.workers) == workers
    _compare(path, "the optimizer, with its features,", manifest.made_of, made_of(optimizer))
    try:
        common = files.value(0, manifest.common)
        saver = manifest.workers[rank % len(manifest.workers)]
        own = files.value(rank % len(manifest.workers), saver.extra["own"])
        _compare(path, "the list of parameters", common["shapes"], shapes_of(optimizer))
        if optimizer.apart is not None:
            values = own["model"]
            if not same_workers:  # parameters are put at the last synchronization's
                values = files.value(0, manifest.workers[0].extra["own"])["model"]
            _compare_model(path, values, model)
            state = unnumbered(own["optimizer"])
            return StateToPut(values, state, manifest.steps, anew=not same_workers)
        names = {n.removeprefix("model/"): n for n in manifest.tensors if n[:6] == "model/"}
        extra = {name.removeprefix("model/"): value for name, value in common["extra"].items()}
        saved = {name: manifest.tensors[full] for name, full in names.items()}
        _compare_model(path, {**saved, **extra}, model)
        targets = _targets(manifest.tensors, model, optimizer)
        fill(targets, manifest.tensors, files.chunk)
        values = extra | {name: targets[full] for name, full in names.items()}
        if same_workers:
            values |= own["buffers"]
            _compare_model(path, values, model)
        said = _optimizer_state(common["optimizer"], targets, own, same_workers=same_workers)
    except NOT_FITTING as error:
        problem = f"the state of a worker is described wrongly: {error!r}"
        raise ValueError(problem) from error
    return StateToPut(values, said, manifest.steps, anew=False)


def _optimizer_state(
    said: Mapping[str, Any],
    targets: Mapping[str, torch.Tensor],
    own: Any,
    *,
    same_workers: bool,
) -> dict[str, Any]:
    """Return an optimizer's state, of its parts."""
    state = {place: dict(each) for place, each in said["state"].items()}
    for name, tensor in targets.items():
        kind, _, rest = name.partition("/")
        if kind == "optimizer":
            place, _, key = rest.partition("/")
            state[place][key] = tensor
    for place, each in (own["unsent"] or {}).items():
        kept = each if same_workers else {k: v for k, v in each.items() if k != "unsent"}
        state[place] = dict(kept)
    return unnumbered({**said, "state": state})


def _targets(
    saved: Mapping[str, SavedTensor], model: CollectiveModel, optimizer: CollectiveOptimizer
) -> dict[str, torch.Tensor]:
    """Return what the common tensors are read into, of the kinds that this worker has."""
    have = {f"model/{name}": each for name, each in model.state_dict().items()}
    parameters = [p for group in optimizer.stepper.param_groups for p in group["params"]]
    targets = {}
    for name, tensor in saved.items():
        like = have.get(name)
        kind, _, rest = name.partition("/")
        if kind == "optimizer":
            like = parameters[int(rest.partition("/")[0])]
            if not isinstance(like, DTensor) or tuple(like.shape) != tensor.shape:
                like = None
        dtype = getattr(torch, tensor.dtype)
        if like is None:
            targets[name] = torch.empty(tensor.shape, dtype=dtype)
        else:
            targets[name] = torch.empty_like(like.detach(), dtype=dtype)
    return targets


def _compare_model(path: str, saved: Mapping[str, Any], model: CollectiveModel) -> None:
    """Compare names, shapes and dtypes of what a model consists of.

    Raises:
        OtherTrainingError: naming the first that differs.
    """
    have = model.state_dict()
    for name in sorted({*saved, *have}):
        kinds = [_kind(each.get(name)) for each in (saved, have)]
        _compare(path, f"{shown(name)} of the model", *kinds)


def _kind(value: Any) -> str:
    """Return dtype and shape in words."""
    match value:
        case None:
            return "nothing"
        case torch.Tensor():
            return f"{dtype_name(value.dtype)} {list(value.shape)}"
        case SavedTensor():
            return f"{value.dtype} {list(value.shape)}"
        case _:
            return "an extra state"


def _compare(path: str, what: str, saved: Any, have: Any) -> None:
    """Pass if two are equal.

    Raises:
        OtherTrainingError: saying what isn't.
    """
    if saved != have:
        raise OtherTrainingError(path=path, what=what, saved=_said(saved), have=_said(have))


def _said(value: Any) -> str:
    return value if isinstance(value, str) else shown(value)
