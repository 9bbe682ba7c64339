"""Count the examples whose gradients a step has: sync weighs workers by them."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from paramfleet.telemetry.eager import runs_eagerly

__all__ = ["ExampleCounter", "first_dimension"]


_MOST_FORWARDS = 1 << 14
"""Of a step."""


@dataclass(slots=True)
class _Forward:
    """One forward of a watched model."""

    examples: int
    has_gradient: bool = False
    """Whether ``backward`` has reached its output."""
    error: Exception | None = None
    """Why it must not: the values that it was computed from have changed since."""

    def note_gradient(self, _: torch.Tensor) -> None:
        """Note that it has.

        Raises:
            Exception: why it must not.
        """
        if self.error is not None:
            raise self.error
        self.has_gradient = True


class ExampleCounter:
    """Counts the first dimension of the first tensor of each forward that gets a gradient.

    Args:
        on_forward: Called as a forward under autograd begins.
    """

    def __init__(self, on_forward: Callable[[], None] = lambda: None) -> None:
        self._on_forward = on_forward
        self._forwards: deque[_Forward] = deque(maxlen=_MOST_FORWARDS)
        """Since the last ``take``; a process that only evaluates takes none."""
        self._watched: set[int] = set()

    def watch(self, model: torch.nn.Module) -> None:
        """Count what this model is given from now on."""
        if id(model) not in self._watched:
            self._watched.add(id(model))
            model.register_forward_pre_hook(self._begin, with_kwargs=True)
            model.register_forward_hook(self._end)

    @property
    def seen(self) -> int:
        """Examples of forwards since the last ``take``; 1 if no watched model saw any."""
        return sum(each.examples for each in self._forwards) or 1

    @property
    def has_seen(self) -> bool:
        """Whether a forward since the last ``take`` has its gradient."""
        return any(each.has_gradient for each in self._forwards)

    @property
    def learned(self) -> int:
        """Examples with gradients since the last ``take``; 1 without any."""
        return sum(each.examples for each in self._forwards if each.has_gradient) or 1

    def outdate(self, error: Exception) -> None:
        """Have ``backward`` raise an error where it reaches a forward since the last ``take``.

        Args:
            error: The one, unless there is one already.
        """
        for each in self._forwards:
            each.error = each.error or error

    def take(self) -> int:
        """Return the examples with gradients since the last call; 1 without any.

        With 1 for everybody, sync gives every worker the same weight.
        """
        learned = self.learned
        self._forwards.clear()
        return learned

    def __reduce__(self) -> tuple[Any, ...]:
        """Be copied, with a model, as one that counts for nobody."""
        return ExampleCounter, ()

    @runs_eagerly
    def _begin(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        del module
        if torch.is_grad_enabled():
            self._on_forward()
            self._forwards.append(_Forward(first_dimension([args, kwargs]) or 0))

    @runs_eagerly
    def _end(self, module: torch.nn.Module, args: Any, result: Any) -> None:
        del module, args
        if not (torch.is_grad_enabled() and self._forwards):
            return
        forward = self._forwards[-1]
        output = next((each for each in _tensors_in(result) if each.requires_grad), None)
        if output is None:  # it can't be told: not one of torch's containers
            forward.has_gradient = not isinstance(result, (torch.Tensor, list, tuple, Mapping))
        else:
            output.register_hook(forward.note_gradient)  # type: ignore[no-untyped-call]  # torch leaves it untyped


def _tensors_in(batch: Any) -> Iterable[torch.Tensor]:
    """Yield the tensors in nested containers."""
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, (Mapping, list, tuple)):
        for part in batch.values() if isinstance(batch, Mapping) else batch:
            yield from _tensors_in(part)


def first_dimension(batch: Any) -> int | None:
    """Return the first dimension of the first tensor that has one; None without any."""
    return next((each.shape[0] for each in _tensors_in(batch) if each.dim()), None)
