"""How Python functions become kernels, and how arrays reach them."""

from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np
from numpy.typing import DTypeLike, NDArray

from paramfleet_shared.tables.kernels.basics.folders import made_folders

__all__ = ["as_input", "called", "inlined", "kernel", "merged", "uncounted"]

_F = TypeVar("_F", bound=Callable[..., Any])

_SETTINGS: Any = numba.config

_OPTIONS: dict[str, Any] = {
    "nogil": True,  # a shard's owner thread must not stop the event loop
    "error_model": "numpy",  # x / 0 is inf, not an exception
    "fastmath": False,  # no contraction, no reordering: the same bits on every machine
    "no_cfunc_wrapper": True,  # nobody has the address of one; to compile it would take a while
}

_OF_KERNELS = {**_OPTIONS, "no_cpython_wrapper": True}
"""Of what kernels alone call: it needs nothing that takes arguments from Python."""


_FOLDERS = made_folders(_SETTINGS.CACHE_DIR)


def kernel(function: _F) -> _F:
    """Compile on first call, release the GIL, and keep the result on disk.

    Where no folder can be written, each process compiles anew. One whose name begins with ``_``
    is called by kernels alone.
    """
    result: _F = _cached(numba.njit(function, **_options_of(function)))
    return result


def uncounted(function: _F) -> _F:
    """Make a kernel that counts no references to arrays, and so can't make any.

    A count is an atomic instruction, and numba counts wherever a loop cuts a piece off an
    array or takes one out of a tuple: that would be half of the time of a short loop. Otherwise
    as ``kernel``.
    """
    options = {**_options_of(function), "_nrt": False}
    result: _F = _cached(numba.njit(function, **options))
    return result


def _options_of(function: Callable[..., Any]) -> dict[str, Any]:
    return _OF_KERNELS if function.__name__.startswith("_") else _OPTIONS


def _cached(compiled: Any) -> Any:
    users_choice = _SETTINGS.CACHE_DIR
    for folder in _FOLDERS:
        _SETTINGS.CACHE_DIR = str(folder)
        try:
            compiled.enable_caching()
            break
        except RuntimeError:  # numba: "no locator available", it can't be written
            continue
        finally:
            _SETTINGS.CACHE_DIR = users_choice
    return compiled


def called(function: _F) -> _F:
    """Make a function that kernels call, as ``uncounted`` does, and keep it with each of them.

    For one that is made by another function: the cache on disk can't tell such apart.
    """
    options = {**_OF_KERNELS, "_nrt": False}
    compiled: _F = numba.njit(function, **options)
    return compiled


def inlined(function: _F) -> _F:
    """Make a function part of each kernel that calls it."""
    compiled: _F = numba.njit(function, inline="always", **_OPTIONS)
    return compiled


def merged(function: _F) -> _F:
    """Make a function part of each kernel that calls it, by LLVM.

    Kernels are compiled sooner so than with ``inlined``, where a function has many branches
    and is called from many places. Its arguments are numbers and tuples of them.
    """
    compiled: _F = numba.njit(function, forceinline=True, **_OF_KERNELS)
    return compiled


def as_input(array: NDArray[Any], dtype: DTypeLike) -> NDArray[Any]:
    """Return ``array`` as kernels take it: contiguous, aligned, of ``dtype``.

    A kernel is compiled anew for a read-only or misaligned array type. So what comes
    off the wire read-only is seen here through a writable view of the same memory
    (no kernel writes to an input), and what is misaligned is copied.
    """
    if array.dtype != dtype or not array.flags.c_contiguous or not array.flags.aligned:
        return np.array(array, dtype=dtype, order="C")
    return array if array.flags.writeable else np.asarray(_Writable(array))


class _Writable:
    """The memory of a read-only array, without its mark."""

    def __init__(self, array: NDArray[Any]) -> None:
        self._owner = array
        interface = dict(array.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface
