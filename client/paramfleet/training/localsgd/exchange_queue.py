"""Where exchanges run beside the training, one after the other, in the order of their calls.

On the CPU it is a thread, which waits for gloo; on a GPU a stream, since NCCL's calls only
enqueue. The order is what keeps the collectives of different workers in step.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import torch

__all__ = ["ExchangeQueue", "queue_for"]

Work = Callable[[], torch.Tensor]


class ExchangeQueue(Protocol):
    """Runs exchanges."""

    def run(self, work: Work, *inputs: torch.Tensor) -> Work:
        """Begin ``work``; return what waits for its result and returns or raises it.

        Args:
            work: What is to be done.
            inputs: The caller's tensors that it uses.
        """
        ...


class ThreadQueue:
    """One thread. It ends with the process, when what was begun has ended."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="localsgd")

    def run(self, work: Work, *inputs: torch.Tensor) -> Work:  # noqa: ARG002 - a GPU's need
        """Begin ``work`` in the thread."""
        return self._pool.submit(work).result


class StreamQueue:
    """One CUDA stream."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def run(self, work: Work, *inputs: torch.Tensor) -> Work:
        """Enqueue ``work`` behind what the caller's stream has enqueued."""
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        for tensor in inputs:
            tensor.record_stream(self._stream)
        with torch.cuda.stream(self._stream):
            result = work()

        def wait() -> torch.Tensor:
            stream = torch.cuda.current_stream(self._stream.device)
            stream.wait_stream(self._stream)
            result.record_stream(stream)
            return result

        return wait


def queue_for(device: torch.device) -> ExchangeQueue:
    """Return a queue for tensors on a device."""
    return StreamQueue(device) if device.type == "cuda" else ThreadQueue()
