"""Who this process is among those of its job, and how its workers wait for each other."""

from typing import TYPE_CHECKING, Any

from paramfleet.config.errors import CallOrderError
from paramfleet.config.roles import Role, RoleMaker
from paramfleet.session.registered import Registered
from paramfleet.training.collective.errors import WrongModeError
from paramfleet_shared.telemetry.logs_and_metrics import show_warnings

if TYPE_CHECKING:
    from paramfleet.telemetry.step_times import StepTimes
    from paramfleet.training.collective.training import CollectiveTraining
    from paramfleet.training.job import Job
    from paramfleet.transport.communicator import Communicator

__all__ = ["Standing"]


_NO_SERVERS = "there are no servers in collective mode: leave the call out"


class Standing:
    """The part of a session that says who and where.

    Args:
        times: Where this worker's time goes.
    """

    def __init__(self, times: "StepTimes") -> None:
        self.times = times
        self.communicator: Communicator | None = None
        self.collective: CollectiveTraining | None = None
        """In collective mode, what stands for communicator and job."""
        self.registered = Registered()
        """What is saved and loaded beside the model."""
        self._role: RoleMaker | None = None
        self._job: Job | None = None

    def register_for_checkpointing(self, **objects: Any) -> None:
        """Save and load objects with every checkpoint, each by the name that is given here.

        An object that is registered later by the same name takes its place.

            fleet.register_for_checkpointing(scheduler=scheduler, data=dataset)

        Each has ``state_dict`` and ``load_state_dict``, of plain values and tensors. What can
        be iterated over, such as a dataset, has a position of each worker's own; of all else,
        such as a scheduler, the first worker's state is saved, and every worker goes on with
        it. Every worker calls this before ``init_worker``, and before ``load_model``.

        Raises:
            CallOrderError: after ``init_worker``.
            RegistrationError: if a name can't be one, or an object has no ``state_dict`` and
                ``load_state_dict``.
        """
        if self._job is not None:
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
        if self.collective is not None:
            return self.collective.world.rank
        if self.communicator is not None:
            return self.communicator.session.member.index
        return self.role.index or 0

    def worker_num(self) -> int:
        """Return how many workers the job has."""
        if self.collective is not None:
            return self.collective.world.size
        if self.communicator is not None:
            return self.communicator.session.worker_num
        return max(1, self.role.worker_num)

    def server_num(self) -> int:
        """Return how many pservers the job has; 0 without a job."""
        self.check_served("server_num")
        if self.communicator is not None:
            return self.communicator.session.server_num
        return len(self.role.server_endpoints)

    def server_index(self) -> int:
        """Return this server's index, from 0."""
        self.check_served("server_index")
        return self.role.index or 0

    def worker_endpoints(self, to_string: bool = False) -> list[str] | str:  # noqa: FBT001, FBT002 - Fleet's signature
        """Return the workers' addresses, or one comma-separated string."""
        endpoints = list(self.role.worker_endpoints)
        if self.collective is not None:
            endpoints = list(self.collective.world.endpoints)
        return ",".join(endpoints) if to_string else endpoints

    def server_endpoints(self, to_string: bool = False) -> list[str] | str:  # noqa: FBT001, FBT002 - Fleet's signature
        """Return the pservers' addresses, or one comma-separated string."""
        self.check_served("server_endpoints")
        endpoints = list(self.role.server_endpoints)
        if self._job is not None:
            endpoints = list(self._job.placement.endpoints)
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
        if self.collective is not None:
            self.collective.world.gather(name, b"")
        elif self.communicator is not None:
            with self.times.during("barrier"):
                self.communicator.wait(self.communicator.session.barrier(name))

    def gather(self, name: str, payload: bytes) -> list[bytes]:
        """Return every worker's payload by rank; alone, this one's."""
        if self.collective is not None:
            return self.collective.world.gather(name, payload)
        if self.communicator is None:
            return [payload]
        with self.times.during("barrier"):
            return self.communicator.wait(self.communicator.session.gather(name, payload))

    def check_served(self, function: str, *, remedy: str = _NO_SERVERS) -> None:
        """Demand that this is no collective job.

        Args:
            function: Of ``fleet``.
            remedy: What to do instead.

        Raises:
            WrongModeError: naming the function.
        """
        if self.collective is not None:
            raise WrongModeError(function=function, remedy=remedy)

    @property
    def job(self) -> "Job | None":
        """The worker's connections; None alone and in collective mode."""
        return self._job
