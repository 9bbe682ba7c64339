"""What a model knows beside its parameters: its buffers and its modules' extra states.

BatchNorm's running mean and variance are buffers; a module's extra state is what its own
``get_extra_state`` returns. Buffers with ``persistent=False`` are no part of it, and neither
is one that has no values yet.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.parameter import is_lazy

from paramfleet.model_state.plain import carrier_of, dtype_name, tensor_of
from paramfleet_shared.errors import ContractError

__all__ = [
    "Buffer",
    "BufferMismatchError",
    "ModuleState",
    "check_fits",
    "extra_modules",
    "has_state",
    "install",
    "missing_in",
    "persistent_buffers",
    "state_of",
]


class BufferMismatchError(ContractError):
    """A buffer has another shape or dtype somewhere else; nothing was changed."""

    code = "contract.buffer_mismatch"
    buffer: str
    have: str
    got: str
    where: str
    sentence = (
        "buffer {buffer!r} is {have} in this worker's model and {got} in {where}: "
        "make the same model, or register the buffer with persistent=False"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Buffer:
    """The values of one buffer, apart from the model."""

    dtype: str
    shape: tuple[int, ...]
    carrier: NDArray[Any]
    """The numbers; see ``plain.carrier_of``."""

    @property
    def kind(self) -> str:
        """Return dtype and shape in words."""
        return f"{self.dtype} {list(self.shape)}"

    def tensor(self) -> torch.Tensor:
        """Return the values.

        Raises:
            ValueError: if the numbers aren't those of such a tensor.
        """
        return tensor_of(self.carrier, dtype=self.dtype, shape=self.shape)


@dataclass(kw_only=True, slots=True)
class ModuleState:
    """A model's state beside its parameters, apart from the model."""

    buffers: dict[str, Buffer] = field(default_factory=dict)
    """By their names in the model's ``state_dict``."""

    extra: dict[str, Any] = field(default_factory=dict)
    """What ``get_extra_state`` returned, by the module's path."""

    not_saved: dict[str, str] = field(default_factory=dict)
    """Buffers that can't be saved, and why."""

    @property
    def names(self) -> list[str]:
        """Return what it is of, for people."""
        return [*self.buffers, *map(_extra_name, self.extra)]


def persistent_buffers(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the buffers that belong to the model, by their names in its ``state_dict``."""
    for prefix, module in model.named_modules():
        left_out = module._non_persistent_buffers_set  # noqa: SLF001 - torch has no other way
        for name, buffer in module.named_buffers(recurse=False):
            if name not in left_out and not is_lazy(buffer):
                yield f"{prefix}.{name}" if prefix else name, buffer


def extra_modules(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """Return the modules that have an extra state, by their paths."""
    none = torch.nn.Module.get_extra_state
    return {
        path: module
        for path, module in model.named_modules()
        if type(module).get_extra_state is not none
    }


def has_state(model: torch.nn.Module) -> bool:
    """Return whether there is such state; a buffer that has no values yet counts."""
    return bool(extra_modules(model)) or any(
        name not in module._non_persistent_buffers_set  # noqa: SLF001 - as below
        for module in model.modules()
        for name, _ in module.named_buffers(recurse=False)
    )


def state_of(model: torch.nn.Module) -> ModuleState:
    """Return a copy of a model's buffers, and its extra states as they are."""
    state = ModuleState()
    for name, buffer in persistent_buffers(model):
        try:
            carrier = carrier_of(buffer)
        except ValueError as error:
            state.not_saved[name] = str(error)
            continue
        state.buffers[name] = Buffer(
            dtype=dtype_name(buffer.dtype), shape=tuple(buffer.shape), carrier=carrier
        )
    for path, module in extra_modules(model).items():
        state.extra[path] = module.get_extra_state()
    return state


def check_fits(model: torch.nn.Module, buffers: Mapping[str, Buffer], *, where: str) -> None:
    """Compare shapes and dtypes of buffers that the model has, too.

    Args:
        model: Whose buffers are to be set.
        buffers: What they are to be set to.
        where: What these are of, for the error.

    Raises:
        BufferMismatchError: naming the first that differs.
    """
    for name, buffer in persistent_buffers(model):
        have = f"{dtype_name(buffer.dtype)} {list(buffer.shape)}"
        if name in buffers and buffers[name].kind != have:
            raise BufferMismatchError(
                buffer=name, have=have, got=buffers[name].kind, where=where
            )


def install(
    model: torch.nn.Module, tensors: Mapping[str, torch.Tensor], extra: Mapping[str, Any]
) -> None:
    """Set buffers and extra states that the model has; the others stay as they are.

    Args:
        model: Whose; ``check_fits`` has passed.
        tensors: The buffers' values, by name.
        extra: The extra states, by path.
    """
    for path, module in extra_modules(model).items():
        if path in extra:
            module.set_extra_state(extra[path])
    with torch.no_grad():
        for name, buffer in persistent_buffers(model):
            if name in tensors and not _is_same(buffer, tensors[name]):
                buffer.copy_(tensors[name])


def missing_in(model: torch.nn.Module, state: ModuleState) -> list[str]:
    """Return the buffers and extra states of a model that a state lacks."""
    names = [name for name, _ in persistent_buffers(model) if name not in state.buffers]
    return names + [_extra_name(p) for p in extra_modules(model) if p not in state.extra]


def _extra_name(path: str) -> str:
    return f"{path}._extra_state" if path else "_extra_state"


def _is_same(buffer: torch.Tensor, value: torch.Tensor) -> bool:
    """Return whether nothing has to be written: one that is a view can't always be."""
    return np.array_equal(carrier_of(buffer), carrier_of(value))
