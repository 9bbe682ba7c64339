"""Which parts of a model's input are ids that a module looks up, seen again in the next one.

Sans-io: what is compared is where in memory tensors begin, and their strides.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from paramfleet.nn.embedding import SparseModule
from paramfleet_shared.values.sorting import each_once

__all__ = ["View", "tensors_of"]


class View(NamedTuple):
    """Part of a tensor of every batch that a module looks up."""

    module: SparseModule
    path: tuple[Any, ...]
    """Where in the batch the tensor is."""
    whole: tuple[tuple[int, ...], tuple[int, ...]]
    """Shape and strides of the tensor."""
    part: tuple[tuple[int, ...], tuple[int, ...]]
    """Shape and strides of the view."""
    start: int
    """Where in the tensor it starts, in elements."""

    @classmethod
    def of(
        cls, module: SparseModule, ids: Any, tensors: Mapping[tuple[Any, ...], torch.Tensor]
    ) -> "View | None":
        """Return how ``ids`` is seen in the batch; None if it isn't a view of it.

        Parts of one tensor share its memory. So a view is of a tensor that has all of its
        elements, and of the smallest that does: the very same if that is in the batch.
        """
        if not isinstance(ids, torch.Tensor) or ids.layout != torch.strided or not ids.numel():
            return None
        if torch._C._functorch.is_functorch_wrapped_tensor(ids):  # noqa: SLF001 - it has no memory
            return None
        holding = [
            (path, tensor)
            for path, tensor in tensors.items()
            if tensor.dtype == ids.dtype
            and tensor.untyped_storage().data_ptr() == ids.untyped_storage().data_ptr()
            and np.isin(_elements(ids), _elements(tensor)).all()
        ]
        if not holding:
            return None
        path, tensor = min(holding, key=lambda item: item[1].numel())
        start = int(ids.storage_offset() - tensor.storage_offset())
        whole, part = (tensor.shape, tensor.stride()), (ids.shape, ids.stride())
        return cls(module, path, whole, part, start)

    def seen_in(self, tensors: Mapping[tuple[Any, ...], torch.Tensor]) -> torch.Tensor | None:
        """Return the view of another batch; None if that is built otherwise.

        A batch may have another number of examples: their dimension is the first. With the
        same strides the view is inside the tensor for any number, as it is for the first's.
        """
        tensor = tensors.get(self.path)
        if tensor is None:
            return None
        (shape, strides), (part, part_strides) = self.whole, self.part
        if (tensor.shape, tensor.stride()) != self.whole:
            examples = shape[:1] == part[:1] and strides[:1] == part_strides[:1]
            if (tensor.shape[1:], tensor.stride()) != (shape[1:], strides) or not examples:
                return None
            part = (tensor.shape[0], *part[1:])
        return tensor.as_strided(part, part_strides, tensor.storage_offset() + self.start)


def _elements(tensor: torch.Tensor) -> NDArray[np.int64]:
    """Return where in its memory a tensor's elements are, each once."""
    places = np.array([tensor.storage_offset()], np.int64)
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        places = (places[:, None] + np.arange(size) * stride).reshape(-1)
    return each_once(places)


def tensors_of(
    batch: Any, path: tuple[Any, ...] = ()
) -> Iterator[tuple[tuple[Any, ...], torch.Tensor]]:
    """Yield the tensors in nested containers, each with the way to it."""
    if isinstance(batch, torch.Tensor):
        if batch.layout == torch.strided:
            yield path, batch
    elif isinstance(batch, Mapping):
        for key, part in batch.items():
            yield from tensors_of(part, (*path, key))
    elif isinstance(batch, (list, tuple)):
        for key, part in enumerate(batch):
            yield from tensors_of(part, (*path, key))
