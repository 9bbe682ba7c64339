"""Gradients that travel in 16 bits: a communication hook of DistributedDataParallel."""

from collections.abc import Callable

import torch
from torch import distributed
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # documented, not marked

__all__ = ["half_hook"]

_Hook = Callable[[object, GradBucket], torch.futures.Future[torch.Tensor]]


def half_hook(dtype: torch.dtype) -> _Hook:
    """Return a hook that all-reduces gradients as ``dtype``; they are divided before.

    torch's own for bfloat16 is refused on the CPU, where gloo sums it as well.
    """

    def hook(_: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        buffer = bucket.buffer()
        narrow = buffer.div(distributed.get_world_size()).to(dtype)
        work = distributed.all_reduce(narrow, async_op=True)
        assert work is not None, "this worker is of the group"

        def widen(summed: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
            return buffer.copy_(summed.value()[0])

        sent: torch.futures.Future[torch.Tensor] = work.get_future().then(widen)
        return sent

    return hook
