"""Tensors that all workers have in common: torch.distributed.checkpoint says who writes what.

Its planners cut sharded tensors (DTensors) into chunks, and find the chunks that a worker
reads, whatever number of workers wrote them. Its storage and its metadata are left out: those
are pickles. Here chunks are arrays in safetensors files.
"""

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint.default_planner import (
    DefaultLoadPlanner,
    DefaultSavePlanner,
)
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)

from paramfleet.model_state.plain import carrier_of, dtype_name, tensor_of
from paramfleet.session.checkpoint.group.manifest import Chunk, SavedTensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["fill", "own_chunks"]


def own_chunks(
    tensors: Mapping[str, torch.Tensor], arrays: "dict[str, NDArray[Any]]", *, worker: int
) -> dict[str, SavedTensor]:
    """Return which chunks this worker writes.

    Args:
        tensors: Plain ones, which this worker writes whole, and sharded ones, of which it
            writes its own part.
        arrays: Gets the numbers of each chunk.
        worker: Its rank.

    Raises:
        ValueError: naming a tensor whose numbers can't be saved.
    """
    planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner(dict(tensors), is_coordinator=True)
    found: dict[str, SavedTensor] = {}
    for item in planner.create_local_plan().items:
        assert item.tensor_data is not None, "only tensors are given"
        box, fqn = item.tensor_data.chunk, item.index.fqn
        part = planner.resolve_data(item)
        assert isinstance(part, torch.Tensor), "it is one of these"
        chunks: tuple[Chunk, ...] = ()
        if math.prod(box.sizes):
            name = f"chunk/{len(arrays)}"
            try:
                arrays[name] = carrier_of(part)
            except ValueError as error:
                problem = f"{fqn!r}: {error}"
                raise ValueError(problem) from error
            chunks = (
                Chunk(
                    offsets=tuple(box.offsets),
                    sizes=tuple(box.sizes),
                    worker=worker,
                    name=name,
                ),
            )
        found[fqn] = SavedTensor(
            dtype=dtype_name(part.dtype), shape=tuple(item.tensor_data.size), chunks=chunks
        )
    return found


def fill(
    targets: Mapping[str, torch.Tensor],
    saved: Mapping[str, SavedTensor],
    numbers_of: "Callable[[Chunk], NDArray[Any]]",
) -> None:
    """Read tensors from a checkpoint, or of sharded ones this worker's part.

    Args:
        targets: Get the numbers; of the shapes that were saved.
        saved: What the checkpoint has, each whole.
        numbers_of: Returns the array of a chunk.

    Raises:
        ValueError: if a chunk's array isn't as the manifest says.
        CheckpointDamagedError: as ``numbers_of`` does.
    """
    metadata = Metadata({name: _described(saved[name], targets[name]) for name in targets})
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner(dict(targets), metadata, is_coordinator=True)
    items = planner.create_local_plan().items
    chunks = [
        saved[item.storage_index.fqn].chunks[item.storage_index.index or 0] for item in items
    ]
    # file by file: of most, one at a time is in memory
    for item, chunk in sorted(zip(items, chunks, strict=True), key=lambda pair: pair[1].worker):
        tensor = saved[item.storage_index.fqn]
        part = tensor_of(numbers_of(chunk), dtype=tensor.dtype, shape=chunk.sizes)
        for dim, (first, size) in enumerate(
            zip(item.storage_offsets, item.lengths, strict=True)
        ):
            part = part.narrow(dim, first, size)
        planner.resolve_tensor(item).detach().copy_(part)


def _described(saved: SavedTensor, target: torch.Tensor) -> TensorStorageMetadata:
    """Return what the planner has to know of a saved tensor."""
    boxes = [
        ChunkStorageMetadata(offsets=torch.Size(chunk.offsets), sizes=torch.Size(chunk.sizes))
        for chunk in saved.chunks
    ]
    return TensorStorageMetadata(
        properties=TensorProperties(dtype=target.dtype),
        size=torch.Size(saved.shape),
        chunks=boxes,
    )
