"""What the workers of a collective job exchange on the host: one store that all can read.

Barriers and small values go through it, not through the backend of the gradients, because
a store can say who is missing.
"""

import json
import threading
from collections.abc import Collection, Sequence

from torch.distributed import DistError
from torch.distributed.distributed_c10d import Store

from paramfleet.telemetry.call_sites import waits_in
from paramfleet.training.collective.errors import PeersLostError
from paramfleet_shared.discovery.errors import ConcurrentCollectiveError, OtherCallError
from paramfleet_shared.system.clock import Clock
from paramfleet_shared.telemetry import waiting

__all__ = ["StoreGroup"]

_LONGEST_PAUSE_S = 0.02
"""Between two looks into the store; the first are nearer to each other."""


_PUBLISHED_AFTER_S = 1.0
"""Who waits for so long writes down where."""

_ENDING_S = 2.0
"""How long a process may take to end after its script has: whoever watches them should see its
end before the ends of those that miss it."""


class StoreGroup:
    """One worker's side. Belongs to the training thread.

    Args:
        store: The job's; keys are written once, but for where a worker waits.
        rank: This worker.
        size: Workers of the job.
        timeout_s: How long the others are waited for.
        clock: Measures it.
    """

    def __init__(
        self, store: Store, *, rank: int, size: int, timeout_s: float, clock: Clock
    ) -> None:
        self._store = store
        self._rank = rank
        self._size = size
        self._timeout_s = timeout_s
        self._clock = clock
        self._count: dict[str, int] = {}
        self._in_use: set[str] = set()
        self._lock = threading.Lock()
        self._pause = threading.Event()

    def gather(
        self, name: str, payload: bytes, *, timeout_s: float | None = None
    ) -> list[bytes]:
        """Return what every worker brought, by rank.

        Args:
            name: Of the gather; every worker takes part in each as often.
            payload: What this worker brings.
            timeout_s: Another limit than this object's. With this object's it is said after
                some seconds who is waited for.

        Raises:
            PeersLostError: naming who is missing, as soon as one of them has ended, else
                when the time is over.
            OtherCallError: if another worker waits in another gather, for this one.
            ConcurrentCollectiveError: if another thread of this worker is in it.
        """
        with self._lock:
            if name in self._in_use:
                raise ConcurrentCollectiveError(operation=name)
            self._in_use.add(name)
            number = self._count.get(name, 0)
            self._count[name] = number + 1
        try:
            return self._exchange(name, number, payload, timeout_s)
        finally:
            self._in_use.discard(name)

    def _exchange(
        self, name: str, number: int, payload: bytes, timeout_s: float | None
    ) -> list[bytes]:
        keys = [f"{name}/{number}/{rank}" for rank in range(self._size)]
        began = self._clock.monotonic()
        try:
            self._store.set(keys[self._rank], payload)  # type: ignore[arg-type]  # it takes bytes
            limit_s = self._timeout_s if timeout_s is None else timeout_s
            use = (name, number)
            self._wait(use, keys, began, limit_s, tells=timeout_s is None)
            found = [self._store.get(key) for key in keys]
            if number > 1:  # all came to the one before, so nobody reads this any more
                self._store.delete_key(f"{name}/{number - 2}/{self._rank}")
        except DistError as error:
            raise PeersLostError(
                peer="the store of worker 0",
                operation=name,
                waited_s=self._clock.monotonic() - began,
                reason=str(error).partition("\n")[0],
            ) from error
        return found

    def leave(self, name: str) -> None:
        """Take part in a gather's first call, and don't wait for the others."""
        self._store.set(f"{name}/0/{self._rank}", "")

    def end(self, why: str) -> None:
        """Leave a note for whoever waits for this worker: it has ended."""
        self._store.set(f"ended/{self._rank}", why)

    def ended(self) -> dict[int, str]:
        """Return why workers ended, by rank, of those that have."""
        others = [rank for rank in range(self._size) if rank != self._rank]
        return {
            rank: self._store.get(f"ended/{rank}").decode()
            for rank in others
            if self._store.check([f"ended/{rank}"])
        }

    def _wait(
        self,
        use: tuple[str, int],
        keys: Sequence[str],
        began: float,
        limit_s: float,
        *,
        tells: bool,
    ) -> None:
        """Wait until every key is there.

        Raises:
            PeersLostError: naming whose isn't.
            OtherCallError: if one of those waits elsewhere.
        """
        (name, _), watches, at = use, tells, ""
        pause_s = 0.0005
        while not self._store.check(list(keys)):
            waited_s = self._clock.monotonic() - began
            ended = self.ended()  # first: who ended before it came won't come any more
            missing = {rank for rank, key in enumerate(keys) if not self._store.check([key])}
            gone = {rank: why for rank, why in ended.items() if rank in missing}
            if gone:
                self._pause.wait(_ENDING_S)
            if gone or (missing and waited_s > limit_s):
                raise PeersLostError(
                    peer=_workers(sorted(gone or missing), self._size),
                    operation=name,
                    waited_s=waited_s,
                    reason=next(iter(gone.values()), "not there yet"),
                )
            if missing and waited_s >= _PUBLISHED_AFTER_S:
                at = at or self._publish(use)
                if watches:
                    self._require_nobody_elsewhere(name, at, missing)
            if tells and missing and waited_s >= waiting.TOLD_AFTER_S:
                tells = False
                waiting.tell_waiting(at or name, missing, waited_s=waited_s, at_most_s=limit_s)
            self._pause.wait(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    def _publish(self, use: tuple[str, int]) -> str:
        """Write down where this worker waits; return it as words."""
        at = waits_in(use[0]) or use[0]
        self._store.set(f"at/{self._rank}", json.dumps([*use, at]))
        return at

    def _require_nobody_elsewhere(self, name: str, at: str, missing: Collection[int]) -> None:
        """Pass if none of the missing waits where this worker hasn't come to.

        Raises:
            OtherCallError: if one does.
        """
        for rank in sorted(missing):
            if not self._store.check([f"at/{rank}"]):
                continue
            other, number, elsewhere = json.loads(self._store.get(f"at/{rank}"))
            if other != name and self._count.get(other, 0) <= number:
                raise OtherCallError(
                    rank=self._rank, at=at, elsewhere=f"worker {rank} waits in {elsewhere}"
                )


def _workers(ranks: Sequence[int], size: int) -> str:
    numbers = ", ".join(str(rank) for rank in ranks)
    return f"worker{'s' if len(ranks) > 1 else ''} {numbers} of {size}"
