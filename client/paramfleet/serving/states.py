"""Whether a model can take the dense values of an export: compared before any is copied."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from paramfleet.model_state.numbers import wrong_numbers
from paramfleet.serving.errors import ExportDamagedError, ExportMismatchError
from paramfleet.serving.files import is_extra
from paramfleet.tables.weight.parameter import TableWeight

__all__ = ["check_state", "take_state"]


def check_state(
    folder: Path, file: Path, model: torch.nn.Module, state: Mapping[str, Any]
) -> None:
    """Compare names, shapes, kinds and ranges of numbers.

    An extra state that the export lacks is none that could be saved.

    Args:
        folder: Of the export.
        file: That has the values.
        model: Which is to take them.
        state: What the file holds.

    Raises:
        ExportDamagedError: if a tensor is none that an export has: a sparse or quantized one,
            or one without numbers or with NaN.
        ExportMismatchError: naming what is missing, superfluous, of another shape or another
            kind of numbers, or beyond the range of the model's.
    """
    own = _own_state(model)
    tensors = {name: value for name, value in state.items() if not is_extra(name)}
    for name, value in tensors.items():
        if not _is_plain(value):
            reason = f"{name!r} is a sparse, nested or quantized tensor, or one without numbers"
            raise ExportDamagedError(path=str(file), reason=reason)
    both = [name for name in tensors if name in own]
    for what, names in (
        ("lacks {}, which the model has", {n for n in own if not (n in state or is_extra(n))}),
        ("has {}, which the model lacks", state.keys() - own.keys()),
        (
            "has {} in another shape than the model",
            {n for n in both if own[n].shape != tensors[n].shape},
        ),
        (
            "has {} in another kind of numbers than the model",
            {n for n in both if _kind(own[n].dtype) != _kind(tensors[n].dtype)},
        ),
    ):
        if names:
            rule = what.format(", ".join(map(repr, sorted(names))))
            raise ExportMismatchError(path=str(folder), rule=rule)
    learned = {name for name, each in model.named_parameters() if each.requires_grad}
    for name in both:
        wrong = wrong_numbers(name, tensors[name], is_learned=name in learned)
        if wrong:
            raise ExportDamagedError(path=str(file), reason=f"{name!r} {wrong}")
        if not _fits(tensors[name], own[name].dtype):
            rule = f"has numbers in {name!r} that the model's {own[name].dtype} can't hold"
            raise ExportMismatchError(path=str(folder), rule=rule)


def take_state(folder: Path, model: torch.nn.Module, state: Mapping[str, Any]) -> None:
    """Give a model the values that ``check_state`` passed.

    Raises:
        ExportMismatchError: if a module of it refuses its extra state; the model is as before.
    """
    former = {
        name: value.clone() if isinstance(value, torch.Tensor) else value
        for name, value in _own_state(model).items()
    }
    try:
        model.load_state_dict(state, strict=False)  # compared, but for lacking extra states
    except Exception as error:
        _take_back(model, former)
        rule = f"has a state that the model refuses ({type(error).__name__}: {error})"
        raise ExportMismatchError(path=str(folder), rule=rule) from error


def _own_state(model: torch.nn.Module) -> dict[str, Any]:
    """Return a model's ``state_dict`` without rows, which an export has elsewhere."""
    state = model.state_dict(keep_vars=True).items()
    return {
        name: value.detach() if isinstance(value, torch.Tensor) else value
        for name, value in state
        if not isinstance(value, TableWeight)
    }


def _take_back(model: torch.nn.Module, former: Mapping[str, Any]) -> None:
    """Give a model the values that it had; a module that refuses states keeps its own."""
    for name, value in _own_state(model).items():
        if isinstance(value, torch.Tensor):
            value.copy_(former[name])
    for path, module in model.named_modules():
        name = f"{path}._extra_state" if path else "_extra_state"
        if name in former:
            with suppress(Exception):
                module.set_extra_state(former[name])


def _is_plain(tensor: torch.Tensor) -> bool:
    """Return whether a tensor's numbers are in the host's memory, each by itself."""
    odd = tensor.is_meta or tensor.is_nested or tensor.is_quantized
    return not odd and tensor.layout is torch.strided and tensor.device.type == "cpu"


def _kind(dtype: torch.dtype) -> str:
    if dtype.is_complex:
        return "complex"
    if dtype.is_floating_point:
        return "floating"
    return "bool" if dtype == torch.bool else "integer"


def _fits(tensor: torch.Tensor, dtype: torch.dtype) -> bool:
    """Return whether no number leaves its range in a dtype of the same kind."""
    if tensor.dtype == dtype:
        return True
    taken = tensor.to(dtype)
    if _kind(dtype) == "integer":
        return torch.equal(taken.to(tensor.dtype), tensor)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    return torch.equal(tensor.to(wide).isfinite(), taken.to(wide).isfinite())
