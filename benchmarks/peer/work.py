"""The work that every system does: the same rows, the same steps, the same sums.

All numbers are small multiples of 2**-12, so that float32 adds them without rounding.
Whatever order a system applies its steps in, its table must then end up the same, bit
for bit, and equal to what ``expected_digest`` computes without any system.
"""

import hashlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "CALL_TIMEOUT_S",
    "LR",
    "Burst",
    "Client",
    "NarrowedTooMuchError",
    "Pulled",
    "Stepper",
    "Work",
    "digest_of",
    "fill",
]

CALL_TIMEOUT_S = 60.0
"""Longest wait for one answer, in every system."""

LR = 2.0**-6
GRAIN = 2.0**-12
NARROWING = 2.0**-8
"""What bfloat16 may change a number by, relative to it: half of its last place."""

NUM_BATCHES = 16
"""Different batches; steps go round them."""

SEED = 20240229


class NarrowedTooMuchError(Exception):
    """Rows that travelled narrowed are further from what they were than bfloat16 explains."""


class Pulled(NamedTuple):
    """Rows as a client has them between a pull and the push that follows."""

    ids: NDArray[np.int64]
    """int64 [U]: the ids in an order of the system's choice, always the same for the same
    ids. A model finds a batch's rows by index whatever their order is."""
    rows: NDArray[np.float32]
    """float32 [U, D], in that order."""
    route: Any = None
    """What the system knows of these ids from the pull on, and needs for the push."""


class Client(Protocol):
    """One system's client, connected to its server. Called from several threads."""

    def pull(self, ids: NDArray[np.int64]) -> Pulled:
        """Return the rows of unique ids."""
        ...

    def push(self, pulled: Pulled, grads: NDArray[np.float32]) -> None:
        """Step the pulled rows by SGD with ``LR``; return when it is done.

        Args:
            pulled: What ``pull`` returned.
            grads: float32 [U, D], in the order of ``pulled.ids``.
        """
        ...

    def exact(self) -> "Client":
        """Return a client whose numbers travel whole; itself, unless it narrows them."""
        ...

    def close(self) -> None:
        """Leave the server, which then ends."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """How large a step and the table are. Pure: two processes make the same numbers."""

    rows: int
    dim: int
    table_rows: int

    def ids(self, batch: int) -> NDArray[np.int64]:
        """Return the unique ids [rows] of a batch, uniform over the table."""
        rng = np.random.default_rng((SEED, batch))
        return rng.choice(self.table_rows, self.rows, replace=False).astype(np.int64)

    def grads(self, batch: int) -> NDArray[np.float32]:
        """Return the gradients [rows, dim] of a batch."""
        rng = np.random.default_rng((SEED, 1, batch))
        whole = rng.integers(-64, 65, (self.rows, self.dim), np.int32)
        return whole.astype(np.float32) * np.float32(GRAIN / LR)

    def content(self) -> NDArray[np.float32]:
        """Return the table [table_rows, dim] before the first step."""
        rng = np.random.default_rng((SEED, 2))
        whole = rng.integers(-2048, 2049, (self.table_rows, self.dim), np.int32)
        return whole.astype(np.float32) * np.float32(GRAIN)

    def chunks(self) -> Iterator[NDArray[np.int64]]:
        """Return all ids of the table, some at a time."""
        size = max(self.rows, 1 << 14)
        for start in range(0, self.table_rows, size):
            yield np.arange(start, min(start + size, self.table_rows), dtype=np.int64)

    def expected_digest(self, num_steps: int) -> str:
        """Return the digest of the table after steps 0 to ``num_steps`` - 1."""
        table = self.content()
        for batch in range(NUM_BATCHES):
            times = len(range(batch, num_steps, NUM_BATCHES))
            table[self.ids(batch)] -= np.float32(LR * times) * self.grads(batch)
        return hashlib.sha256(table.tobytes()).hexdigest()


class Burst(NamedTuple):
    """Some steps in a row."""

    wall_s: float
    step_ms: list[float]
    """Duration of each step: pull, then push."""
    pull_ms: list[float]


def fill(client: Client, work: Work) -> None:
    """Give the server's zeros the first content, through pushes."""
    content, exact = work.content(), client.exact()
    for ids in work.chunks():
        pulled = exact.pull(ids)
        exact.push(pulled, content[pulled.ids] * np.float32(-1.0 / LR))


def digest_of(client: Client, work: Work) -> str:
    """Return the digest of the server's whole table, as its client reads it.

    Raises:
        NarrowedTooMuchError: if the client narrows numbers, and not to the nearest.
    """
    table = np.empty((work.table_rows, work.dim), np.float32)
    exact = client.exact()
    for ids in work.chunks():
        pulled = exact.pull(ids)
        table[pulled.ids] = pulled.rows
        if exact is not client:
            narrowed = client.pull(ids)
            whole = table[narrowed.ids]
            if (np.abs(narrowed.rows - whole) > np.abs(whole) * NARROWING).any():
                raise NarrowedTooMuchError
    return hashlib.sha256(table.tobytes()).hexdigest()


class Stepper:
    """Runs bursts of steps through one client; step after step goes on from the last burst.

    Args:
        client: Connected.
        work: What a step is.
    """

    def __init__(self, client: Client, work: Work) -> None:
        self._client = client
        self._batches = [self._batch(work, batch) for batch in range(NUM_BATCHES)]
        self._num_done = 0

    def burst(self, num_steps: int, in_flight: int) -> Burst:
        """Run steps, ``in_flight`` at a time, each in a thread that waits for its calls."""
        steps = iter(range(self._num_done, self._num_done + num_steps))
        self._num_done += num_steps
        times: list[tuple[float, float]] = []
        with ThreadPoolExecutor(in_flight) as threads:
            start = time.perf_counter()
            ends = [threads.submit(self._run, steps, times) for _ in range(in_flight)]
            for end in ends:
                end.result()
            wall_s = time.perf_counter() - start
        return Burst(wall_s, [step for step, _ in times], [pull for _, pull in times])

    def _batch(self, work: Work, batch: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return a batch's ids, and its gradients in the order in which they travel."""
        ids = work.ids(batch)
        grads = np.empty((work.rows, work.dim), np.float32)
        position = {value: place for place, value in enumerate(ids.tolist())}
        order = [position[value] for value in self._client.pull(ids).ids.tolist()]
        np.take(work.grads(batch), order, axis=0, out=grads)
        return ids, grads

    def _run(self, steps: Iterator[int], times: list[tuple[float, float]]) -> None:
        """Take steps until none is left; ``next`` of a range and ``append`` are atomic."""
        for step in steps:
            ids, grads = self._batches[step % NUM_BATCHES]
            start = time.perf_counter()
            pulled = self._client.pull(ids)
            between = time.perf_counter()
            self._client.push(pulled, grads)
            times.append(((time.perf_counter() - start) * 1e3, (between - start) * 1e3))
