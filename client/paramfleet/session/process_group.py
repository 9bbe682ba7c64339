"""Who this process is among those of its job, and how its workers wait for each other."""

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from paramfleet.config.errors import CallOrderError
from paramfleet.config.roles import Role, RoleMaker
from paramfleet.session.backends.alone import AloneBackend
from paramfleet.session.backends.base import Backend, Own
from paramfleet.session.registered import Registered
from paramfleet.session.worker_metrics import Progress
from paramfleet.telemetry.examples_count import ExampleCounter
from paramfleet.telemetry.step_times import StepTimes
from paramfleet.transport.leaving import Departure
from paramfleet_shared.system.clock import Clock
from paramfleet_shared.telemetry.logs_and_metrics import show_warnings

if TYPE_CHECKING:
    from collections.abc import Callable

    from paramfleet.training.job import Job
    from paramfleet.transport.communicator import Communicator
    from paramfleet_shared.discovery.records import Member

__all__ = ["Standing"]


class Standing:
    """The part of a session that says who and where.

    Args:
        clock: By whose time this worker's time is measured.
    """

    def __init__(self, clock: Clock) -> None:
        self.times = StepTimes(clock.monotonic)
        """Where this worker's time goes."""
        self.registered = Registered()
        """What is saved and loaded beside the model."""
        self.progress = Progress(clock, self._member)
        self._role: RoleMaker | None = None
        self._own = Own(
            role=lambda: self.role,
            times=self.times,
            examples=ExampleCounter(self.times.forward),
            departure=Departure(),
            registered=self.registered,
            progress=self.progress,
        )
        self.backend: Backend = AloneBackend(self._own)
        """What this process trains with."""
        self.meeting: Callable[[str], AbstractContextManager[None]]
        self.meeting = lambda _name: nullcontext()
        """Entered where this worker waits for the others, by the name of that; set by the
        object that applies an operator's commands."""

    @property
    def communicator(self) -> "Communicator | None":
        """What reaches Redis and the pservers; None alone and in collective mode."""
        return self.backend.communicator

    @property
    def job(self) -> "Job | None":
        """The worker's connections; None alone and in collective mode."""
        return self.backend.job

    def _member(self) -> "Member | None":
        communicator = self.communicator
        return None if communicator is None else communicator.session.member

    def register_for_checkpointing(self, **objects: Any) -> None:
        """Save and load objects with every checkpoint, under the given names.

        An object that is registered later under the same name replaces the first one.

            fleet.register_for_checkpointing(scheduler=scheduler, data=dataset)

        Each object has ``state_dict`` and ``load_state_dict``, with plain values and tensors.
        An iterable object, such as a dataset, has its own position in each worker. For other
        objects, such as a scheduler, the state of the first worker is saved, and every worker
        continues with it. Every worker calls this before ``init_worker``, and before
        ``load_model``.

        A position that was saved by another number of workers is restored where the object has
        ``reshard(states, rank, size)``: it gets the states of all former workers by rank, this
        worker's rank and the number of workers now, and returns the state to load, or None for
        none. Without it the earliest ``epoch`` that the states name (a whole number) is
        restored in the state as it was registered, so that this epoch starts from its
        beginning.

        Raises:
            CallOrderError: after ``init_worker``.
            RegistrationError: if a name can't be one, or an object has no ``state_dict`` and
                ``load_state_dict``.
        """
        if self.job is not None:
            remedy = "call it before fleet.init_worker()"
            raise CallOrderError(function="register_for_checkpointing", remedy=remedy)
        self.registered.add(objects)

    @property
    def role(self) -> RoleMaker:
        """This process's role.

        Raises:
            CallOrderError: before ``init``.
        """
        if self._role is None:
            raise CallOrderError(function="init", remedy="call it first")
        return self._role

    def _joins_as_worker(self) -> bool:
        """Return whether this process is to join a job now; one alone sets up its log."""
        if not self.role.distributed:
            show_warnings("worker", None)
        return self.role.distributed and self.role.role is Role.WORKER

    def is_worker(self) -> bool:
        """Return whether this process trains."""
        return self.role.role is Role.WORKER

    def is_server(self) -> bool:
        """Return whether this process holds tables."""
        return self.role.role is Role.SERVER

    def is_first_worker(self) -> bool:
        """Return whether this process is worker 0."""
        return self.is_worker() and self.worker_index() == 0

    def worker_index(self) -> int:
        """Return this worker's rank, from 0."""
        return self.backend.worker_index()

    def worker_num(self) -> int:
        """Return how many workers the job has."""
        return self.backend.worker_num()

    def restart_count(self) -> int:
        """Return how often the workers of this job were started again; 0 in the first start.

        ``paramfleet launch --max_restarts N`` and torchrun start them again when one has died.
        """
        place = self.role.rendezvous
        return int(place.attempt) if place is not None and place.attempt.isdigit() else 0

    def server_num(self) -> int:
        """Return how many pservers the job has; 0 without a job."""
        return self.backend.server_num()

    def server_index(self) -> int:
        """Return this server's index, from 0."""
        return self.backend.server_index()

    def worker_endpoints(self, to_string: bool = False) -> list[str] | str:  # noqa: FBT001, FBT002 - Fleet's signature
        """Return the workers' addresses, or one comma-separated string."""
        endpoints = self.backend.worker_endpoints()
        return ",".join(endpoints) if to_string else endpoints

    def server_endpoints(self, to_string: bool = False) -> list[str] | str:  # noqa: FBT001, FBT002 - Fleet's signature
        """Return the pservers' addresses, or one comma-separated string."""
        endpoints = self.backend.server_endpoints()
        return ",".join(endpoints) if to_string else endpoints

    def barrier_worker(self) -> None:
        """Wait until every worker is here.

        Raises:
            BarrierTimeoutError: naming who is missing.
            PeersLostError: in collective mode, naming who is missing.
            JobFailedError: as soon as a member of the job died.
        """
        self.worker_barrier("fleet.barrier_worker")

    def worker_barrier(self, name: str) -> None:
        """Wait until every worker is at the barrier of this name."""
        with self.meeting(name):
            self.backend.barrier(name)

    def gather(self, name: str, payload: bytes) -> list[bytes]:
        """Return every worker's payload by rank; alone, this one's."""
        with self.meeting(name):
            return self.backend.gather(name, payload)
