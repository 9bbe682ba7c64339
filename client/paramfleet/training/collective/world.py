"""One worker's place among the others of a collective job, and the group they form.

Order of the start: the store of the rendezvous, the place of every worker, the process group
of torch.distributed. Order of the end: the last gather, the group, the store, which
the worker that keeps it leaves last. Belongs to the training thread.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
from torch import distributed
from torch.distributed import (  # type: ignore[attr-defined]  # documented, not marked
    DistError,
    HashStore,
    TCPStore,
)
from torch.distributed.distributed_c10d import PrefixStore, Store

from paramfleet.config.roles import Rendezvous, RoleMaker
from paramfleet.config.settings import WorkerSettings
from paramfleet.training.collective.errors import (
    CollectiveSetupError,
    PeersLostError,
    RendezvousError,
)
from paramfleet.training.collective.store_group import StoreGroup
from paramfleet_shared.system.clock import Clock

__all__ = ["World"]

_BACKEND_SAYS = re.compile(
    r"gloo|nccl|c10d|connection (closed|reset|refused)|timed out", re.IGNORECASE
)
"""gloo and nccl raise a plain RuntimeError, as a model's own mistakes do."""


class World:
    """The workers of a collective job, from one worker's side; made by ``fleet.init``.

    Args:
        role: This worker's, with its rendezvous; without one it is alone.
        settings: The time limits: ``join_timeout_s`` of the rendezvous, and
            ``barrier_timeout_s`` of everything that workers do together.
        clock: Measures how long was waited.

    Raises:
        RendezvousError: if the others don't come in time.
        CollectiveSetupError: if this machine has no GPU for this worker, or this process
            has a process group already.
    """

    def __init__(self, role: RoleMaker, settings: WorkerSettings, clock: Clock) -> None:
        if distributed.is_initialized():
            rule = "let fleet.init() make the process group"
            raise CollectiveSetupError(found="torch.distributed is initialized", rule=rule)
        assert role.index is not None, "a collective role has a rank"
        self.rank = role.index
        self.size = role.worker_num
        self._place = role.rendezvous
        self._clock = clock
        self._settings = settings
        self.device = _device_of(role.rendezvous)
        began = clock.monotonic()
        store = self._open_store(role.rendezvous, began)
        self.store_group = StoreGroup(
            PrefixStore("fleet", store),
            rank=self.rank,
            size=self.size,
            timeout_s=settings.barrier_timeout_s,
            clock=clock,
        )
        self.endpoints = self._meet_all(role, began)
        self._form_group(store)

    @property
    def timeout_s(self) -> float:
        """How long the others are waited for in what all do together, in seconds."""
        return self._settings.barrier_timeout_s

    @property
    def alone(self) -> bool:
        """Whether there is no other worker."""
        return self.size == 1

    def gather(self, name: str, payload: bytes) -> list[bytes]:
        """Return every worker's payload by rank.

        Raises:
            PeersLostError: naming who didn't come.
        """
        return [payload] if self.alone else self.store_group.gather(name, payload)

    @contextmanager
    def together(self, operation: str) -> Iterator[None]:
        """Translate what torch.distributed raises inside.

        Args:
            operation: What the workers do together, for the error.

        Raises:
            PeersLostError: naming who has ended, where that is known.
            RuntimeError: what has nothing to do with it, as it was.
        """
        began = self._clock.monotonic()
        try:
            yield
        except RuntimeError as error:
            if not isinstance(error, DistError) and not _BACKEND_SAYS.search(str(error)):
                raise
            raise PeersLostError(
                peer=self._who_ended(),
                operation=operation,
                waited_s=self._clock.monotonic() - began,
                reason=str(error).partition("\n")[0],
            ) from error

    def close(self) -> None:
        """Wait until every worker is done, and leave the group.

        Raises:
            PeersLostError: naming who didn't come.
        """
        self.gather("fleet.stop_worker", b"")
        distributed.destroy_process_group()
        if self.alone or self._place is None:
            return
        if self._place.keeps_store:  # it is gone when this process is
            self.store_group.gather("fleet.left", b"", timeout_s=self._settings.call_timeout_s)
        else:
            self.store_group.leave("fleet.left")

    def abandon(self, why: str) -> None:
        """Tell the others, who may wait for this worker, that its script has ended."""
        try:
            self.store_group.end(why)
        except DistError:  # the store is gone, and with it whoever could read it
            return

    def _open_store(self, place: Rendezvous | None, began: float) -> Store:
        """Return the store that all workers can read.

        Raises:
            RendezvousError: if it doesn't answer in time.
        """
        if place is None:
            return HashStore()
        limit_s = self._settings.join_timeout_s
        try:
            store = TCPStore(
                place.host,
                place.port,
                self.size,
                is_master=place.keeps_store,
                timeout=timedelta(seconds=limit_s),
                wait_for_workers=False,
            )
        except DistError as error:
            raise RendezvousError(
                peer=f"worker 0 of {self.size} at {place.host}:{place.port}",
                operation="rendezvous",
                waited_s=self._clock.monotonic() - began,
                reason=str(error).partition("\n")[0],
            ) from error
        return PrefixStore(f"attempt{place.attempt}", store)

    def _meet_all(self, role: RoleMaker, began: float) -> tuple[str, ...]:
        """Return every worker's address, as each says it.

        Raises:
            RendezvousError: naming who didn't come.
        """
        if self.alone:
            return role.worker_endpoints
        own = (role.host or self._settings.host).encode()
        left_s = self._settings.join_timeout_s - (self._clock.monotonic() - began)
        try:
            said = self.store_group.gather("rendezvous", own, timeout_s=max(0.0, left_s))
        except PeersLostError as error:
            raise RendezvousError(
                peer=error.peer,
                operation="rendezvous",
                waited_s=self._clock.monotonic() - began,
                reason=str(error.facts["reason"]),
            ) from error
        return role.worker_endpoints or tuple(host.decode() for host in said)

    def _form_group(self, store: Store) -> None:
        cuda = self.device.type == "cuda"
        with self.together("making the process group"):
            distributed.init_process_group(
                "cpu:gloo,cuda:nccl" if cuda else "gloo",
                store=PrefixStore("group", store),
                rank=self.rank,
                world_size=self.size,
                timeout=timedelta(seconds=self._settings.barrier_timeout_s),
            )

    def _who_ended(self) -> str:
        try:
            ended = self.store_group.ended()
        except DistError:
            return "worker 0, which kept the store"
        if not ended:
            others = self.size - 1
            return "the other worker" if others == 1 else f"the other {others} workers"
        return "; ".join(f"worker {rank} ({why})" for rank, why in ended.items())


def _device_of(place: Rendezvous | None) -> torch.device:
    """Return this worker's device, and make a GPU the current one.

    Raises:
        CollectiveSetupError: if there are fewer GPUs than workers on this machine.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        return torch.device("cpu")
    index = 0 if place is None else place.local_index
    if index >= count:
        rule = f"has no GPU of its own: {count} visible; start at most this number here, or "
        rule += "hide them with CUDA_VISIBLE_DEVICES= to train on the CPU"
        raise CollectiveSetupError(found=f"worker {index} of this machine", rule=rule)
    torch.cuda.set_device(index)
    return torch.device("cuda", index)
