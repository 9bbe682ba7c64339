"""Functions that ``torch.compile`` leaves out: they look at the values of ids."""

from collections.abc import Callable
from typing import Any, TypeVar

from torch._C._dynamo.eval_frame import (
    _FrameAction,
    _FrameExecStrategy,
    set_code_exec_strategy,
)

__all__ = ["runs_eagerly"]

F = TypeVar("F", bound=Callable[..., Any])


def runs_eagerly(function: F) -> F:
    """Return a function that runs as it is where a model is compiled, and all that it calls.

    As ``torch.compiler.disable``, which imports the whole compiler: a second at every start.
    """
    reason = "rows are looked up by the values of ids, outside of what is compiled"
    function._torchdynamo_disable = True  # type: ignore[attr-defined]  # noqa: SLF001 - the mark that the compiler looks for
    function._torchdynamo_disable_msg = reason  # type: ignore[attr-defined]  # noqa: SLF001 - as above
    skip = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)
    set_code_exec_strategy(function.__code__, skip)
    return function
