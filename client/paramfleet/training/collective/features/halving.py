"""Gradients that travel in 16 bits, or are added up: a hook of DistributedDataParallel."""

from collections.abc import Callable

import torch
from torch import distributed
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # documented, not marked

__all__ = ["reducing_hook"]

_Hook = Callable[[object, GradBucket], torch.futures.Future[torch.Tensor]]


def reducing_hook(dtype: torch.dtype | None, *, sums: bool) -> _Hook:
    """Return a hook that all-reduces gradients as ``dtype``; they are divided before.

    torch's own for bfloat16 is refused on the CPU, where gloo sums it as well.

    Args:
        dtype: In which they travel; None in their own.
        sums: Whether the workers' gradients are added up, and not divided.
    """

    def hook(_: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        buffer = bucket.buffer()
        parts = 1 if sums else distributed.get_world_size()
        narrow = buffer.div(parts).to(buffer.dtype if dtype is None else dtype)
        work = distributed.all_reduce(narrow, async_op=True)
        assert work is not None, "this worker is of the group"

        def widen(summed: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
            return buffer.copy_(summed.value()[0])

        sent: torch.futures.Future[torch.Tensor] = work.get_future().then(widen)
        return sent

    return hook
