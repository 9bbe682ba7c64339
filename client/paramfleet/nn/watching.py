"""Which ids each module looks up in a batch: said by the user, or seen in the first batch.

A tensor that is computed from a batch is none of its views, and isn't known here. A copy on
another device, that ``forward`` made of a whole tensor of the batch, counts as the tensor.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import torch
from torch.overrides import TorchFunctionMode
from typing_extensions import override

from paramfleet.nn.embedding import SparseModule
from paramfleet.nn.views import View, tensors_of
from paramfleet.telemetry.eager import runs_eagerly
from paramfleet_shared.errors import ContractError

__all__ = ["BatchLookups", "IdsOfBatch", "PrefetchError", "evaluating"]

B = TypeVar("B")

IdsOfBatch = Callable[[Any], Mapping[Any, torch.Tensor | Sequence[torch.Tensor]]]
"""Returns the ids of a batch by module, by its path in the model, or by its table's name."""


class PrefetchError(ContractError):
    """``fleet.prefetch`` was given something that it can't use."""

    code = "contract.prefetch"
    option: str
    value: str
    rule: str
    sentence = "{option} = {value}: {rule}"


@contextmanager
def evaluating(model: torch.nn.Module) -> Generator[None, None, None]:
    """Have a model in evaluation mode while the block runs, and then as it was."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


class BatchLookups:
    """The lookups of a model in batches of one kind.

    Args:
        model: Whose modules of ``fleet.nn`` look the rows up.
        ids: Returns the ids of a batch; None to watch the first one.
        forward: Computes the model of a batch; None if the training loop alone can.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        ids: IdsOfBatch | None,
        forward: Callable[[Any], object] | None = None,
    ) -> None:
        self.model = model
        self._ids = ids
        self._forward = forward
        self._views: list[View] | None = None

    @property
    def are_known(self) -> bool:
        """Whether no batch has to be watched."""
        return self._ids is not None or self._views is not None

    def try_forward(self, batch: Any) -> None:
        """Note the lookups of a batch, if they aren't known and ``forward`` can show them.

        The model computes it in evaluation mode, without gradients: nothing is trained.
        """
        if self.are_known or self._forward is None:
            return
        copies = _Copies(dict(tensors_of(batch)))
        watching = self._watching(batch, copies.made)
        with evaluating(self.model), torch.no_grad(), watching, copies:
            self._forward(batch)

    def learn(self, batches: Iterator[B]) -> Generator[B, None, None]:
        """Yield the first of the batches and note its lookups, if they aren't known."""
        if self.are_known:
            return
        for batch in batches:
            with self._watching(batch):
                yield batch
            return

    @contextmanager
    def _watching(
        self, batch: Any, copies: Mapping[tuple[Any, ...], torch.Tensor] | None = None
    ) -> Generator[None, None, None]:
        """Note which views of a batch reach which module while the block uses it.

        Args:
            batch: It.
            copies: Other tensors that count as those of the batch.
        """
        tensors = dict(tensors_of(batch))
        views: dict[View, None] = {}

        @runs_eagerly
        def note(module: Any, args: Any, kwargs: Any) -> None:
            ids = args[0] if args else kwargs.get("input")
            found = View.of(module, ids, tensors) or View.of(module, ids, copies or {})
            if found is not None:
                views[found] = None

        with ExitStack() as hooks:
            for module in self.model.modules():
                if isinstance(module, SparseModule):
                    handle = module.register_forward_pre_hook(note, with_kwargs=True)
                    hooks.callback(handle.remove)
            yield
        self._views = list(views)

    def of(self, batch: Any) -> Iterator[tuple[SparseModule, torch.Tensor]]:
        """Yield what a batch will look up.

        Raises:
            PrefetchError: if the user's function names a module that the model doesn't have.
        """
        if self._ids is not None:
            yield from self._named(self._ids(batch))
            return
        tensors = dict(tensors_of(batch))
        for view in self._views or ():
            ids = view.seen_in(tensors)
            if ids is not None:
                yield view.module, ids

    def _named(self, by_module: Any) -> Iterator[tuple[SparseModule, torch.Tensor]]:
        modules: dict[Any, SparseModule] = {}
        for path, module in self.model.named_modules():
            if isinstance(module, SparseModule):
                modules[module] = modules[path] = module
                modules.setdefault(module.table.name, module)
        if not isinstance(by_module, Mapping):
            rule = "must return a dict: tensors of ids by module, path or table"
            raise PrefetchError(option="ids", value=type(by_module).__name__, rule=rule)
        for key, ids in by_module.items():
            if key not in modules:
                rule = "is neither a fleet.nn module of the model, its path, nor its table"
                raise PrefetchError(option="ids", value=repr(key), rule=rule)
            for each in (ids,) if isinstance(ids, torch.Tensor) else ids:
                yield modules[key], each


class _Copies(TorchFunctionMode):
    """Notes copies on a device that are made of whole tensors of a batch.

    Args:
        tensors: Of the batch.
    """

    def __init__(self, tensors: Mapping[tuple[Any, ...], torch.Tensor]) -> None:
        super().__init__()
        self._paths = {id(tensor): path for path, tensor in tensors.items()}
        self._tensors = tensors  # no other one gets the id of one of them
        self.made: dict[tuple[Any, ...], torch.Tensor] = {}
        """By the way to the tensor in the batch."""

    @override
    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        path = self._paths.get(id(args[0])) if func in _MOVES and args else None
        if path is not None and made.stride() == self._tensors[path].stride():
            self.made[path] = made
        return made


_MOVES = (torch.Tensor.to, torch.Tensor.cuda)
