"""A slow link between workers that synchronize, as time that an exchange takes.

Workers of a ``torch.distributed`` group connect to each other by themselves, so no proxy can
stand between them. Instead the result of an exchange is handed out no sooner than the link
would have had it: a ring's 2 (N - 1) messages follow each other, each half a round trip away,
and a worker's bytes go out one after the other. It is real time: what is computed meanwhile
is not waited for.
"""

import threading
from dataclasses import dataclass

import torch

from paramfleet.training.localsgd.core.ledger import Ledger
from paramfleet.training.localsgd.group_synchronizer import GroupSynchronizer
from paramfleet.training.localsgd.synchronizer import Pending
from paramfleet_shared.system.clock import SystemClock

__all__ = ["Link", "LinkedSynchronizer"]

_CLOCK = SystemClock()


@dataclass(frozen=True)
class Link:
    """What lies between any two workers."""

    round_trip_s: float = 0.020
    bytes_per_s: float = 100e6 / 8


class LinkedSynchronizer:
    """A group's synchronization behind a link.

    Args:
        synchronizer: What exchanges.
        ledger: In which it counts the bytes that a worker sends.
        link: Between the workers.
    """

    def __init__(self, synchronizer: GroupSynchronizer, ledger: Ledger, link: Link) -> None:
        self.fragments = synchronizer.fragments
        self._synchronizer = synchronizer
        self._ledger = ledger
        self._link = link
        self._latency_s = (synchronizer.num_workers - 1) * link.round_trip_s
        self._busy_until = 0.0

    def exchange(
        self, fragment: int, snapshot_F: torch.Tensor, delta_F: torch.Tensor
    ) -> Pending:
        """Begin an exchange."""
        before = self._ledger.bytes_sent
        return self._sent(before, self._synchronizer.exchange(fragment, snapshot_F, delta_F))

    def average(self, values_F: torch.Tensor) -> Pending:
        """Begin an exchange of what no outer optimizer steps."""
        before = self._ledger.bytes_sent
        return self._sent(before, self._synchronizer.average(values_F))

    def mean(self, value: float) -> float:
        """Return the workers' mean."""
        began = _CLOCK.monotonic()
        found = self._synchronizer.mean(value)
        _wait_until(began + self._latency_s)
        return found

    def _sent(self, before: int, pending: Pending) -> Pending:
        seconds = (self._ledger.bytes_sent - before) / self._link.bytes_per_s
        self._busy_until = max(_CLOCK.monotonic(), self._busy_until) + seconds
        return _Linked(pending, self._busy_until + self._latency_s)


class _Linked:
    """An exchange that isn't over before a time."""

    def __init__(self, pending: Pending, until: float) -> None:
        self._pending = pending
        self._until = until

    def wait(self) -> torch.Tensor:
        found = self._pending.wait()
        _wait_until(self._until)
        return found


def _wait_until(until: float) -> None:
    threading.Event().wait(max(0.0, until - _CLOCK.monotonic()))
