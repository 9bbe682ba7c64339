"""What anybody reaches in as many steps: loops of plain torch, no modes and no servers.

N workers that take one step each, in one loop:

* ``sync`` is synchronous data parallel training: each step has the mean of the gradients of N
  batches, so there is an N-th part of the steps.
* ``delayed`` is asynchronous training whose only fault is delay: the gradient of a batch is
  computed with parameters that lack the N - 1 updates before it, and is applied at the whole
  rate.

With N = 1 both are one process. First values are those of the models that jobs train, so that
all can be compared seed by seed.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import torch

from quality_models import Model

__all__ = ["OPTIMIZERS", "BareLoop"]

OPTIMIZERS: Mapping[str, Callable[..., torch.optim.Optimizer]] = MappingProxyType(
    {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad, "adam": torch.optim.Adam}
)


class BareLoop:
    """Trains a model's dense layers, with its rows in ``torch.nn.Embedding``.

    Args:
        model: Its table gives the first values of rows, and isn't trained.
        optimizer: ``sgd``, ``adagrad`` or ``adam``, which is ``SparseAdam`` for rows.
        rate: The learning rate.
        num_ids: Rows.
        delay: Updates that a gradient lacks; 0 for none.
    """

    def __init__(
        self, model: Model, optimizer: str, *, rate: float, num_ids: int, delay: int
    ) -> None:
        unchecked: Any = torch.sparse.check_sparse_tensor_invariants  # untyped in torch
        unchecked.disable()  # torch warns where nobody says whether to check
        self._model = model.eval()
        with torch.no_grad():
            first = model.rows(torch.arange(num_ids)).clone()
        num, dim = first.shape
        self._rows = torch.nn.Embedding(num, dim, sparse=True, _weight=first)
        dense = [each for each in model.parameters() if each is not model.rows.weight]
        self._parameters = [self._rows.weight, *dense]
        of_rows = torch.optim.SparseAdam if optimizer == "adam" else OPTIMIZERS[optimizer]
        self._optimizers = [of_rows([self._rows.weight], lr=rate)]
        if dense:
            self._optimizers.append(OPTIMIZERS[optimizer](dense, lr=rate))
        self._delay = delay
        self._waiting: deque[list[torch.Tensor | None]] = deque()

    def step(self, loss: torch.Tensor) -> None:
        """Compute the gradients of a batch's loss, and apply those that are due."""
        backward: Any = loss.backward  # untyped in torch
        backward()
        self._waiting.append([each.grad for each in self._parameters])
        for each in self._parameters:
            each.grad = None
        self._apply(len(self._waiting) - self._delay)

    def finish(self) -> None:
        """Apply all gradients that wait."""
        self._apply(len(self._waiting))

    def logits(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the logits, [n], of ids [n, columns]."""
        return self._model.logits(self._rows(ids))

    def _apply(self, count: int) -> None:
        for _ in range(count):
            gradients: Iterable[torch.Tensor | None] = self._waiting.popleft()
            for each, gradient in zip(self._parameters, gradients, strict=True):
                each.grad = gradient
            for optimizer in self._optimizers:
                optimizer.step()
            for each in self._parameters:
                each.grad = None
