"""Who is missing, once an exchange has failed.

gloo and NCCL name at best an address. So each worker that saw the failure says so in the
group's store, and after a short while reads who did not: a process that died, hangs, or
never came as far as this exchange.
"""

from datetime import timedelta

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store, _get_default_store
from typing_extensions import override

from paramfleet_shared.errors import IntegrityError
from paramfleet_shared.system.clock import Clock

__all__ = ["SynchronizationLostError", "missing_ranks"]

GRACE_S = 2.0
"""How long the others have to say that they failed too."""


class SynchronizationLostError(IntegrityError):
    """Workers that train together lost each other: the group is of no use any more."""

    code = "integrity.localsgd_synchronization_lost"
    operation: str
    rank: int
    missing: list[int]
    waited_s: float
    reason: str

    @override
    def describe(self) -> str:
        who = (
            ", ".join(f"rank {number}" for number in self.missing)
            or "a rank that can't be determined"
        )
        return (
            f"rank {self.rank}: {self.operation}: {who} didn't take part within "
            f"{self.waited_s:.1f} s: {self.reason}"
        )


def missing_ranks(operation: str, clock: Clock, *, grace_s: float = GRACE_S) -> list[int]:
    """Return who hasn't failed in an operation too; nobody if the store is gone.

    Args:
        operation: Its name, another one for each exchange.
        clock: Measures it.
        grace_s: Seconds until all who are silent are missing.
    """
    rank, until = dist.get_rank(), clock.monotonic() + grace_s
    try:
        store = PrefixStore(f"localsgd/{operation}", _get_default_store())
        store.set(str(rank), "failed")
        others = [number for number in range(dist.get_world_size()) if number != rank]
        return [
            number
            for number in others
            if not _came(store, number, max(0.001, until - clock.monotonic()))
        ]
    except RuntimeError:
        return []


def _came(store: Store, rank: int, limit_s: float) -> bool:
    try:
        store.wait([str(rank)], timedelta(seconds=limit_s))
    except dist.DistNetworkError:
        raise
    except RuntimeError:  # what stores of other kinds raise when the time is over
        return False
    return True
