"""The workers of a job as one group of devices: rows and gradients go from each to each.

torch.distributed carries them: gloo between processors, NCCL between GPUs. NCCL gives no two
processes the same GPU, so where workers share one, what travels goes through the host. Workers
find each other by the job's registry, so nothing listens for strangers but what the backends
open between two of them.

Every call is made by all workers, in the same order. It belongs to the training thread.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch import distributed
from torch.distributed.distributed_c10d import Store
from typing_extensions import override

from paramfleet.transport.communicator import Communicator
from paramfleet_shared.errors import IntegrityError
from paramfleet_shared.system.clock import Clock

__all__ = ["GROUP_LOST", "DeviceGroup", "GroupLostError"]

_POLL_S = 0.01

_LOOK_EVERY = timedelta(seconds=1)
"""Between two looks whether the job goes on, while others are waited for."""


GROUP_LOST = (
    "a pass is trained by all workers together, and pservers hold what they held before it"
)


class GroupLostError(IntegrityError):
    """A worker that trains a pass together with this one didn't take part."""

    code = "integrity.group_lost"
    rank: int
    workers: int
    operation: str
    reason: str
    outcome: str
    sentence = (
        "worker {rank} of {workers}: {operation} with the other workers failed: {reason}; "
        "{outcome}"
    )


class DeviceGroup:
    """This worker among the others.

    Args:
        communicator: What reaches the registry.
        name: Of the group; no other one has it.
        rank: This worker.
        size: Workers of the job; at least 2.
        host: Where the others reach this one.
        device: Where the rows are that travel.
        timeout_s: How long the others are waited for.
        clock: Measures it.
    """

    def __init__(  # noqa: PLR0913 (all by keyword)
        self,
        *,
        communicator: Communicator,
        name: str,
        rank: int,
        size: int,
        host: str,
        device: torch.device,
        timeout_s: float,
        clock: Clock,
    ) -> None:
        self.rank = rank
        self.size = size
        self._device = device
        self._communicator = communicator
        self._clock = clock
        self._timeout_s = timeout_s
        # NCCL asks it at the first exchange, and doesn't keep Python's part of it.
        self._store = _RegistryStore(communicator, name, clock=clock, timeout_s=timeout_s)
        with self._together("finding each other"):
            self._on_host = _gloo(self._store, rank, size, host, timeout_s)
            self._group = self._on_host
            if device.type == "cuda" and not self._is_shared():
                self._group = _nccl(self._store, rank, size, timeout_s)

    def exchange(
        self, rows: torch.Tensor, outgoing: Sequence[int], incoming: Sequence[int]
    ) -> torch.Tensor:
        """Send rows to each worker, and return what each sent, by rank.

        Args:
            rows: [n, ...], those for worker 0 first; where rows of passes are, or on the host.
            outgoing: How many are for each.
            incoming: How many come from each.
        """
        group, device = self._group_of(rows), rows.device
        if group is self._on_host:
            rows = rows.cpu()
        with self._together("an exchange of rows"):
            return self._exchange(group, rows, list(outgoing), list(incoming)).to(device)

    def sum(self, numbers: torch.Tensor) -> torch.Tensor:
        """Return the sum of all workers' numbers [n], the same to the bit in each."""
        group, device = self._group_of(numbers), numbers.device
        with self._together("a sum of gradients"):
            if group is self._on_host:
                return self._sum_on_host(numbers.cpu()).to(device)
            self._wait(group.allreduce([numbers]), group)
            return numbers

    def gather(self, numbers: Sequence[float]) -> list[list[float]]:
        """Return what each worker brings, by rank; all bring as many."""
        own = torch.tensor(numbers, dtype=torch.float64)
        with self._together("a comparison"):
            found: list[list[float]] = self._gather_on_host(own).tolist()
        return found

    def close(self) -> None:
        """Leave it, and let nothing of it listen any more."""
        self._on_host.shutdown()
        if self._group is not self._on_host:
            self._group.shutdown()

    def _group_of(self, tensor: torch.Tensor) -> Any:
        """Return what carries a tensor from where it is, or from the host."""
        return self._group if tensor.device.type == self._device.type else self._on_host

    def _is_shared(self) -> bool:
        """Return whether two workers of the job have one GPU."""
        device = str(torch.cuda.get_device_properties(self._device).uuid)
        digest = hashlib.sha256(device.encode()).digest()
        numbers = [float(int.from_bytes(digest[:6], "big"))]  # whole ones up to 2^53 are exact
        return len({number for (number,) in self.gather(numbers)}) < self.size

    def _sum_on_host(self, numbers: torch.Tensor) -> torch.Tensor:
        """Return a sum, each worker making a part of it, in the order of ranks.

        gloo's own takes 0.5 ms of two processes of one machine, and in one call of ten 4 ms;
        two exchanges take 0.4 ms.
        """
        size = -(-len(numbers) // self.size)
        padded = numbers.new_zeros(self.size * size)
        padded[: len(numbers)] = numbers
        each = [size] * self.size
        parts = self._exchange(self._on_host, padded, each, each)
        own = parts.view(self.size, size).sum(0)
        return self._gather_on_host(own).view(-1)[: len(numbers)]

    def _gather_on_host(self, own: torch.Tensor) -> torch.Tensor:
        """Return what each worker brings [W, n], by rank."""
        each = [len(own)] * self.size
        found = self._exchange(self._on_host, own.repeat(self.size), each, each)
        return found.view(self.size, -1)

    def _exchange(
        self, group: Any, rows: torch.Tensor, outgoing: list[int], incoming: list[int]
    ) -> torch.Tensor:
        found = rows.new_empty((sum(incoming), *rows.shape[1:]))
        work = group.alltoall_base(found, rows.contiguous(), incoming, outgoing)
        self._wait(work, group)
        return found

    def _wait(self, work: Any, group: Any) -> None:
        """Wait for the others, as long as the job goes on.

        Raises:
            JobFailedError: as soon as the job has failed.
            RuntimeError: what the backend raises, or when the time is over.
        """
        if group is not self._on_host:  # the stream waits, and not this thread
            work.wait()
            return
        deadline = self._clock.monotonic() + self._timeout_s
        while True:
            try:
                work.wait(_LOOK_EVERY)
            except RuntimeError as error:
                late = "timed out" in str(error).lower() and not work.is_completed()
                if not late or self._clock.monotonic() > deadline:
                    raise
                self._communicator.raise_failure()
            else:
                return

    @contextmanager
    def _together(self, operation: str) -> Iterator[None]:
        """Translate what torch.distributed raises inside.

        Raises:
            GroupLostError: naming what was done.
        """
        try:
            yield
        except RuntimeError as error:
            raise GroupLostError(
                rank=self.rank,
                workers=self.size,
                operation=operation,
                reason=_said(error),
                outcome=GROUP_LOST,
            ) from error


def _said(error: RuntimeError) -> str:
    """Return what a backend says, without the place in its source and its advice."""
    line = str(error).partition("\n")[0].partition(". This is typically")[0]
    return re.sub(r"^\[[^]]*\.(cc|cpp|h):\d+\]\s*", "", line)


class _RegistryStore(Store):
    """What a process group keeps its addresses in: the job's registry.

    Args:
        communicator: What reaches it.
        name: Of the group.
        clock: Measures how long is waited.
        timeout_s: How long.
    """

    def __init__(
        self, communicator: Communicator, name: str, *, clock: Clock, timeout_s: float
    ) -> None:
        super().__init__()
        self._communicator = communicator
        self._name = name
        self._clock = clock
        self._timeout_s = timeout_s

    @override
    def set(self, key: str, value: bytes | str) -> None:
        payload = value if isinstance(value, bytes) else value.encode()
        board = self._communicator.session.board
        self._communicator.wait(board.put(f"{self._name}/{key}", payload))

    @override
    def get(self, key: str) -> bytes:
        deadline = self._clock.monotonic() + self._timeout_s
        while True:
            found = self._read(key)
            if found is not None:
                return found
            if self._clock.monotonic() > deadline:
                message = f"nothing came under {key!r} in {self._timeout_s:.0f} s"
                raise RuntimeError(message)
            self._communicator.wait(self._clock.sleep(_POLL_S))

    @override
    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        for key in keys:
            self.get(key)

    @override
    def check(self, keys: Sequence[str]) -> bool:
        return all(self._read(key) is not None for key in keys)

    def _read(self, key: str) -> bytes | None:
        board = self._communicator.session.board
        found = self._communicator.wait(board.read_all(f"{self._name}/{key}"))
        return next(iter(found.values()), None)


def _gloo(store: Store, rank: int, size: int, host: str, timeout_s: float) -> Any:
    gloo: Any = distributed.ProcessGroupGloo
    options = gloo._Options()  # noqa: SLF001 - no other way to say the address
    options._timeout = timedelta(seconds=timeout_s)  # noqa: SLF001
    options._devices = [gloo.create_device(hostname=host)]  # noqa: SLF001
    return gloo(store, rank, size, options)


def _nccl(store: Store, rank: int, size: int, timeout_s: float) -> Any:
    nccl: Any = distributed.ProcessGroupNCCL
    options = nccl.Options()
    options._timeout = timedelta(seconds=timeout_s)  # noqa: SLF001 - no other way to say it
    return nccl(store, rank, size, options)
