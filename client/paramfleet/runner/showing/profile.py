"""Where the time of each batch goes: reading, pulling rows, computing, pushing."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import torch

from paramfleet.nn.embedding import SparseModule
from paramfleet_shared.system.clock import Clock

__all__ = ["PHASES", "Profile"]

T = TypeVar("T")

PHASES = ("data", "pull", "forward", "backward", "push")


class Profile:
    """Adds up the time of each phase; a phase inside another counts for itself alone.

    ``data`` is waiting for the next batch, ``pull`` what the lookups of ``fleet.nn`` take,
    ``push`` the optimizer's step: in sync with the wait for the others.

    Args:
        clock: Measures.
        settle: Called before each look at the clock; waits for what a device still does.
    """

    def __init__(self, clock: Clock, settle: Callable[[], None] = lambda: None) -> None:
        self._clock = clock
        self._settle = settle
        self._open: list[str] = []
        self._since = 0.0
        self._batch = dict.fromkeys(PHASES, 0.0)
        self._sum = dict.fromkeys(PHASES, 0.0)
        self._most = dict.fromkeys(PHASES, 0.0)
        self.num_batches = 0
        """Batches that were closed."""

    def enter(self, phase: str) -> None:
        """Begin a phase, inside the one that runs."""
        self._charge()
        self._open.append(phase)

    def leave(self) -> None:
        """End the phase that began last."""
        self._charge()
        self._open.pop()

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure a block."""
        self.enter(name)
        try:
            yield
        finally:
            self.leave()

    def reading(self, batches: Iterable[T]) -> Iterator[T]:
        """Yield the batches, and measure the wait for each as ``data``."""
        iterator = iter(batches)
        while True:
            with self.phase("data"):
                try:
                    batch = next(iterator)
                except StopIteration:
                    return
            yield batch

    def close_batch(self) -> None:
        """Count what was measured since the last call as one batch's."""
        for phase in PHASES:
            self._sum[phase] += self._batch[phase]
            self._most[phase] = max(self._most[phase], self._batch[phase])
            self._batch[phase] = 0.0
        self.num_batches += 1

    def watch(self, net: torch.nn.Module) -> None:
        """Measure the lookups of a network as ``pull`` from now on."""
        for module in net.modules():
            if isinstance(module, SparseModule):
                module.register_forward_pre_hook(self._pull_begins)
                module.register_forward_hook(self._pull_ends)

    def result(self) -> dict[str, dict[str, float]]:
        """Return mean, most and share of each phase; times in ms of a batch."""
        count, total = max(1, self.num_batches), sum(self._sum.values()) or 1.0
        return {
            phase: {
                "mean_ms": round(1e3 * self._sum[phase] / count, 3),
                "most_ms": round(1e3 * self._most[phase], 3),
                "share": round(self._sum[phase] / total, 3),
            }
            for phase in PHASES
        }

    def _charge(self) -> None:
        self._settle()
        now = self._clock.monotonic()
        if self._open:
            self._batch[self._open[-1]] += now - self._since
        self._since = now

    def _pull_begins(self, _module: torch.nn.Module, _inputs: Any) -> None:
        self.enter("pull")

    def _pull_ends(self, _module: torch.nn.Module, _inputs: Any, _outputs: Any) -> None:
        self.leave()
