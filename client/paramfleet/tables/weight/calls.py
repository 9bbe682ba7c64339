"""Calls of torch's functions: their names, and the tensors among their arguments."""

from collections.abc import Callable, Iterator
from typing import Any, Protocol, cast

import torch

__all__ = ["exchanged", "is_write", "itself", "name_of", "plainly", "tensors_in"]

itself = torch._C.DisableTorchFunctionSubclass  # noqa: SLF001 - torch has no other name for it
"""A context in which torch's functions take a tensor for what its own memory holds."""


class _Attribute(Protocol):
    """The method of a descriptor that ``__torch_function__`` is given for an attribute."""

    __self__: Any


def plainly(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Return what a function makes of the memory of tensors, whatever their classes."""
    with itself():
        return func(*args, **kwargs)


def name_of(func: Callable[..., Any]) -> str:
    """Return the name of a function, or of the attribute that is read or set."""
    name: str = getattr(func, "__name__", repr(func))
    if name in {"__get__", "__set__", "__delete__"}:
        owner: str = cast("_Attribute", func).__self__.__name__
        return owner
    return name


def tensors_in(given: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in nested arguments."""
    if isinstance(given, torch.Tensor):
        yield given
    elif isinstance(given, dict):
        for each in given.values():
            yield from tensors_in(each)
    elif isinstance(given, (list, tuple)):
        for each in given:
            yield from tensors_in(each)


def exchanged(given: Any, tensors: dict[int, torch.Tensor]) -> Any:
    """Return nested arguments with other tensors in the place of some, by their ``id``."""
    if isinstance(given, torch.Tensor):
        return tensors.get(id(given), given)
    if isinstance(given, dict):
        return {key: exchanged(each, tensors) for key, each in given.items()}
    if isinstance(given, (list, tuple)):
        parts = [exchanged(each, tensors) for each in given]
        is_named = isinstance(given, tuple) and hasattr(given, "_fields")
        return type(given)(*parts) if is_named else type(given)(parts)
    return given


def is_write(name: str) -> bool:
    """Return whether a function changes its first argument."""
    if name in {"__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ipow__"}:
        return True
    return name.endswith("_") and not name.endswith("__")
