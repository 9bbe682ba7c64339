"""One process's life in a job: the functions that training code calls as ``fleet.*``.

Start: ``init`` reads the role and, in a worker, joins the job; ``init_worker``
waits until every pserver serves, declares the tables and starts from common
values. Stop: ``finish_training`` brings what waits to the servers and waits for the
other workers; ``stop_worker`` does that too, says that this worker is done, and
leaves. A script that ends without it ends the job, or an elastic one goes on without it.
"""

import logging
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

import torch

from paramfleet.config.errors import CallOrderError
from paramfleet.config.roles import PaddleCloudRoleMaker, RoleError, RoleMaker
from paramfleet.config.settings import WorkerSettings, read_settings
from paramfleet.config.strategy import DistributedStrategy, TrainingMode
from paramfleet.model_state.agreement import Agreement
from paramfleet.nn.table_binding import TableConflictError, check_covered, share_tables
from paramfleet.session.curves import Curves
from paramfleet.session.early_end import watch_for_early_end
from paramfleet.session.hosting import serve
from paramfleet.session.process_group import Standing
from paramfleet.session.resuming import begin_registered
from paramfleet.session.worker_metrics import Progress
from paramfleet.telemetry.examples_count import ExampleCounter
from paramfleet.telemetry.step_times import StepTimes
from paramfleet.training.forwards import Forwards
from paramfleet.training.job import open_job
from paramfleet.training.localsgd.over_pservers import LocalSgdMode
from paramfleet.training.modes.asynchronous import AsyncMode
from paramfleet.training.modes.geo.mode import GeoMode
from paramfleet.training.modes.sync import SyncMode
from paramfleet.training.optimizer import DistributedOptimizer
from paramfleet.transport.communicator import Communicator
from paramfleet.transport.leaving import Departure
from paramfleet_shared.errors import FleetError
from paramfleet_shared.errors.served import ElasticModeError
from paramfleet_shared.system.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paramfleet.training.collective.optimizer import CollectiveOptimizer
    from paramfleet.training.modes.base import Mode
    from paramfleet_shared.discovery.records import Member
    from paramfleet_shared.discovery.session import JobSession

__all__ = ["Session", "TableConflictError"]

log = logging.getLogger(__name__)

M = TypeVar("M", bound=torch.nn.Module)


class Session(Standing):
    """The state behind ``import paramfleet as fleet``; a process has one."""

    def __init__(self) -> None:
        clock = SystemClock()
        super().__init__(StepTimes(clock.monotonic))
        self._clock = clock
        self._strategy: DistributedStrategy | None = None
        self.settings = WorkerSettings()
        self._examples = ExampleCounter(self.times.forward)
        self._forwards = Forwards(lambda: getattr(self.optimizer, "serving", None))
        self._load: str | None = None
        self._stopped = False
        self._finished = False
        self._departure = Departure()
        self._curves = Curves()
        self.progress = Progress(clock, self._member)
        self.between_steps: Callable[[], None] = lambda: None
        """Called after every step; whoever obeys an operator sets it."""
        self.model: torch.nn.Module | None = None
        self.optimizer: DistributedOptimizer | None = None
        self.agreement = Agreement(None)
        """On the buffers that all workers hold."""

    def init(
        self,
        role_maker: RoleMaker | None = None,
        is_collective: bool = False,  # noqa: FBT001, FBT002 - Fleet's signature
        strategy: DistributedStrategy | None = None,
    ) -> None:
        """Take a role; a worker joins its job.

        Args:
            role_maker: The role; read from the environment if not given.
            is_collective: Collective mode: no servers, and torch.distributed among the
                workers that torchrun or ``paramfleet launch --nproc_per_node`` started.
            strategy: Used where ``distributed_optimizer`` gets none.

        Raises:
            RoleError: if the role environment is incomplete.
            CallOrderError: if this process has joined a job already.
            FleetError: if what the job needs can't be reached in time; it says what.
        """
        if self.communicator is not None or self.collective is not None:
            raise CallOrderError(
                function="init", remedy="this process has joined a job already"
            )
        self._role = role_maker or PaddleCloudRoleMaker(is_collective)
        if is_collective and not self._role.collective:
            rule = "the role maker is of a job with servers: make it with is_collective=True"
            raise RoleError(name="is_collective", value="True", rule=rule)
        self._strategy = strategy
        self._stopped = self._finished = False
        if self._role.collective:
            from paramfleet.training.collective.training import CollectiveTraining  # noqa: PLC0415 - slow
            from paramfleet.training.collective.world import World  # noqa: PLC0415 - slow

            self.settings = read_settings(host=self._role.host)
            world = World(self._role, self.settings, self._clock)
            self.collective = CollectiveTraining(world)
            watch_for_early_end(self._abandon)
            return
        if not self._joins_as_worker():
            return
        self.settings = read_settings(host=self._role.host)
        communicator = Communicator()
        communicator.start()
        try:
            communicator.join(
                self.settings,
                index=self._role.index,
                facts=self.progress.facts,
                admin=self.progress.admin(self.settings),
            )
        except BaseException:
            communicator.close()
            raise
        self.communicator = communicator
        if communicator.session.elastic:
            self._departure.listen()
        watch_for_early_end(self._abandon)

    def init_server(self, dirname: str | Path | None = None) -> None:
        """Prepare to serve; with ``dirname``, start from the tables saved there.

        Raises:
            CallOrderError: in a worker.
        """
        self.check_served("init_server")
        if not self.is_server():
            raise CallOrderError(function="init_server", remedy="only a server calls it")
        self._load = None if dirname is None else str(dirname)

    def run_server(self, *, checkpoint_dirs: "Sequence[str | Path]" = ()) -> None:
        """Serve until the job is finished.

        Args:
            checkpoint_dirs: Folders below which workers may have checkpoints saved and loaded,
                beside those of ``PARAMFLEET_CHECKPOINT_DIRS`` or the working folder.

        Raises:
            CallOrderError: in a worker.
            JobFailedError: if a member of the job died.
        """
        self.check_served("run_server")
        if not self.is_server():
            raise CallOrderError(function="run_server", remedy="only a server calls it")
        dirs = [Path(folder).absolute() for folder in checkpoint_dirs]
        serve(self.role, load=self._load, checkpoint_dirs=dirs)

    def distributed_model(self, model: M) -> M:
        """Name the model's tables by their modules' paths, and count its examples.

        Returns:
            The same model; in collective mode a module around it, which brings the
            workers' gradients together.

        Raises:
            TableConflictError: if two modules give one table different widths.
            CollectiveSetupError: if a collective job can't train it.
        """
        if self.collective is not None:
            self.model = model
            taken = cast("M", self.collective.take_model(model))
            self._draw(self.collective.optimizer)
            return taken
        share_tables(model)
        self._examples.watch(model)
        self._forwards.watch(model)
        self.model = model
        return model

    def distributed_optimizer(
        self, optimizer: torch.optim.Optimizer, strategy: DistributedStrategy | None = None
    ) -> DistributedOptimizer:
        """Make the optimizer step in the strategy's mode; alone, in this process.

        In collective mode it is a ``CollectiveOptimizer``: step, minimize, zero_grad and
        ``num_steps`` are the same, and what servers have to do with isn't there.

        Raises:
            StrategyError: if the strategy contradicts itself.
            OptimizerNotServedError: if the mode's servers can't run this optimizer.
        """
        chosen = strategy or self._strategy or DistributedStrategy()
        if self.collective is not None:
            collective = self.collective.take_optimizer(optimizer, chosen.resolve_collective())
            self._draw(collective)
            return cast("DistributedOptimizer", collective)
        mode = chosen.resolve()
        if not self.role.distributed:
            mode = TrainingMode(name="local", apart=mode.apart, checkpoints=mode.checkpoints)
        self.optimizer = DistributedOptimizer(
            optimizer, mode, self._examples.take, self.times, self._end_step
        )
        self.progress.watch(self.optimizer)
        return self.optimizer

    def init_worker(self) -> None:
        """Wait for the pservers, declare the tables, start from common values.

        Raises:
            CallOrderError: before ``distributed_optimizer``, or a second time.
            TableNotTrainedError: if the optimizer lacks one of the model's tables.
            ElasticModeError: if the strategy is sync in an elastic job.
            FleetError: if a table contradicts another worker's, or the job failed.
        """
        if self.communicator is None:
            return
        if self.optimizer is None:
            remedy = "call fleet.distributed_optimizer() first"
            raise CallOrderError(function="init_worker", remedy=remedy)
        if self._job is not None:
            remedy = "this worker has its tables already: call it once"
            raise CallOrderError(function="init_worker", remedy=remedy)
        if self.model is not None:
            check_covered(self.model, [table for table, _ in self.optimizer.tables.sparse])
        optimizer = self.optimizer
        if optimizer.mode.name == "sync" and self.communicator.session.elastic:
            raise ElasticModeError(mode=optimizer.mode.name)
        self.agreement = Agreement(self.model)
        job = open_job(
            self.communicator,
            self.settings,
            times=self.times,
            departure=self._departure,
            agreement=self.agreement,
            examples=self._examples,
        )
        self.progress.watch_traffic(job.pservers.traffic)
        kinds: dict[str, Callable[..., Mode]]
        apart = partial(LocalSgdMode, loss=lambda: optimizer.step_loss)
        kinds = {"sync": SyncMode, "async": AsyncMode, "geo": GeoMode, "localsgd": apart}
        make = kinds[optimizer.mode.name]
        mode = make(job, optimizer.mode, optimizer.inner, optimizer.tables)
        mode.start()
        self._job = job
        self._departure.begin()
        optimizer.bind(mode, job.staleness)
        begin_registered(self, job, optimizer)
        self._draw(optimizer)

    def average_buffers(self) -> None:
        """Give all workers the same buffers, such as BatchNorm's statistics; all call it.

        To be called between two steps, before an evaluation or a checkpoint in the middle of
        the training, and waits as ``barrier_worker`` does. Floating-point buffers become the
        workers' mean, integers the largest; of extra states all take the lowest rank's. What
        didn't change since all held the same doesn't count.

        Raises:
            BarrierTimeoutError: naming who is missing.
            BufferMismatchError: if a buffer's shape or dtype isn't the same everywhere; nothing
                was changed.
            BufferTooLargeError: if one that isn't the same is too large to be sent; the same.
            JobFailedError: as soon as a member of the job died.
        """
        if self.agreement.model is not self.model:
            self.agreement = Agreement(self.model)
        payload = self.agreement.payload()
        self.agreement.take(self.gather("fleet.average_buffers", payload))

    def finish_training(self) -> None:
        """Take no more steps: send what waits, and wait until every worker is so far.

        Afterwards all workers and pservers hold the same values, and in a job with pservers all
        workers the same buffers, as ``average_buffers`` gives them; evaluate then. Workers
        with more batches go on meanwhile, without waiting for this one. ``stop_worker``
        implies it; a second call does nothing.

        Raises:
            NotStartedError: before ``init_worker``.
            FleetError: if the rest couldn't be sent, or the job failed.
        """
        if self.collective is not None and not self._finished:
            self.collective.finish()
            self._finished = True
        if self.optimizer is not None and not self._finished:
            self.registered.end()
            self.optimizer.finish()
            self._finished = True
        self._curves.end()

    def stop_worker(self) -> None:
        """Finish training, say that this worker is done, and leave the job.

        A second call does nothing. A worker that has states which a checkpoint is to hold, as
        GEO's have, stays until the first worker has left, which may save until then.

        Raises:
            FleetError: if the rest couldn't be sent, or the job failed.
        """
        if self.collective is not None and not self._stopped:
            self.finish_training()
            self._stopped = True
            self.collective.world.close()
        if self.communicator is None or self._stopped:
            return
        if self._job is not None:
            self.finish_training()
            self._job.answering.end()
        self._leave(self.communicator)

    def depart(self) -> None:
        """Leave the job while others go on: what waits is sent, and nobody waited for.

        To be called between two steps. In an elastic job SIGTERM does it at the next step's
        end, and ends the script with status 0.

        Raises:
            FleetError: if the rest couldn't be sent, or the job failed.
        """
        self.check_served("leave")
        communicator = self.communicator
        if communicator is None or self._stopped:
            return
        if self._job is not None and self.optimizer is not None and not self._finished:
            self.optimizer.depart()
            communicator.wait(self._job.answering.depart())
            self._finished = True
        self._curves.end()
        self._leave(communicator)

    def _leave(self, communicator: Communicator) -> None:
        session = communicator.session
        communicator.wait(session.mark_done())
        if self._job is not None:
            communicator.wait(self._job.pservers.close())
        communicator.wait(session.leave())
        self._stopped = True
        communicator.close()

    def raise_if_failed(self) -> None:
        """Raise the failure of the job, if it has failed."""
        if self.communicator is not None:
            self.communicator.raise_failure()

    @property
    def stopped(self) -> bool:
        """Whether this worker has left the job."""
        return self._stopped

    def _draw(self, optimizer: "DistributedOptimizer | CollectiveOptimizer | None") -> None:
        """Draw what LocalSGD's exchanges cost, once there are some to come."""
        ledger = None if optimizer is None else optimizer.ledger
        self._curves.begin(ledger, self.settings.visual_path, rank=self.worker_index())

    def _member(self) -> "Member | None":
        communicator = self.communicator
        return None if communicator is None else communicator.session.member

    def _end_step(self) -> None:
        """Leave behind a step if that was asked for; else apply the operator's orders."""
        if self._departure.asked:
            self.depart()
        self._departure.exit_if_asked()
        with self.registered.ending_step(self.optimizer):
            self.between_steps()

    def _abandon(self, error: str | None) -> None:
        """Tell the job why this script ended before ``stop_worker``."""
        if self.collective is not None and not self._stopped:
            self.collective.world.abandon(error or "its script ended without stop_worker")
        communicator = self.communicator
        if communicator is None or self._stopped or not communicator.is_own:
            return
        self._stopped = True
        session = communicator.session
        why = error or "its script ended without fleet.stop_worker()"
        asked = self._departure.asked and error is None
        try:
            communicator.say_last(self._say_goodbye(session) if asked else session.give_up(why))
        except FleetError as failure:  # the job has failed already, or Redis is gone
            log.info("worker.ended_after", extra={"reason": str(failure)})
        communicator.close()

    async def _say_goodbye(self, session: "JobSession") -> None:
        """Leave where nothing of this worker is on its way."""
        if self._job is not None:
            await self._job.say_goodbye()
        await session.mark_done()
        await session.leave()
