"""Count the examples that a model is given: sync weighs workers by them."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

__all__ = ["ExampleCounter"]


class ExampleCounter:
    """Counts the first dimension of the first tensor of each training forward.

    Args:
        on_forward: Called as a training forward begins.
    """

    def __init__(self, on_forward: Callable[[], None] = lambda: None) -> None:
        self._on_forward = on_forward
        self._seen = 0
        self._watched: set[int] = set()

    def watch(self, model: torch.nn.Module) -> None:
        """Count what this model is given from now on."""
        if id(model) not in self._watched:
            self._watched.add(id(model))
            model.register_forward_pre_hook(self._count, with_kwargs=True)

    @property
    def seen(self) -> int:
        """Examples since the last ``take``; 1 if no watched model saw any."""
        return self._seen or 1

    @property
    def has_seen(self) -> bool:
        """Whether a watched model was called since the last ``take``."""
        return self._seen > 0

    def take(self) -> int:
        """Return the examples since the last call; 1 if no watched model saw any.

        With 1 for everybody, sync gives every worker the same weight.
        """
        seen, self._seen = self.seen, 0
        return seen

    def _count(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if not module.training or not torch.is_grad_enabled():
            return
        self._on_forward()
        self._seen += _first_dimension([args, kwargs]) or 0


def _first_dimension(batch: Any) -> int | None:
    """Return the first dimension of the first tensor in nested containers; None without one."""
    if isinstance(batch, torch.Tensor):
        return batch.shape[0] if batch.dim() else None
    parts: Iterable[Any] = ()
    if isinstance(batch, Mapping):
        parts = batch.values()
    elif isinstance(batch, (list, tuple)):
        parts = batch
    return next(
        (found for part in parts if (found := _first_dimension(part)) is not None), None
    )
