"""One process in a job: the functions that training code calls as ``fleet.*``.

Start: ``init`` reads the role and, in a worker, joins the job; ``init_worker``
waits until every pserver serves, declares the tables and starts from common
values. Stop: ``finish_training`` sends pending changes to the servers and waits for the
other workers; ``stop_worker`` does that too, reports that this worker is done, and leaves. A
script that ends without it ends the job; an elastic job continues without this worker.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from paramfleet.config.errors import CallOrderError
from paramfleet.config.roles import PaddleCloudRoleMaker, RoleError, RoleMaker
from paramfleet.config.settings import WorkerSettings, read_settings
from paramfleet.config.strategy import DistributedStrategy, TrainingMode
from paramfleet.model_state.agreement import Agreement
from paramfleet.nn.table_binding import TableConflictError
from paramfleet.session.curves import Curves
from paramfleet.session.early_end import (
    say_briefly,
    say_jobs_failure_briefly,
    watch_for_early_end,
)
from paramfleet.session.hosting import serve
from paramfleet.session.process_group import Standing
from paramfleet.tables.combined import Combined
from paramfleet.training.forwards import Forwards
from paramfleet.training.load_notes import note_idle_rows, note_unsaved_states
from paramfleet.training.optimizer import DistributedOptimizer, NotAnOptimizerError
from paramfleet_shared.errors import FleetError
from paramfleet_shared.files.addresses import place_of
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.system.process_names import name_process

if TYPE_CHECKING:
    from collections.abc import Callable


__all__ = ["Session", "TableConflictError"]

log = logging.getLogger(__name__)

M = TypeVar("M", bound=torch.nn.Module)


class Session(Standing):
    """The state behind ``import paramfleet as fleet``; a process has one."""

    def __init__(self) -> None:
        self._clock = SystemClock()
        super().__init__(self._clock)
        self._strategy: DistributedStrategy | None = None
        self.settings = WorkerSettings()
        self._forwards = Forwards(
            lambda: None if self.optimizer is None else self.optimizer.serving
        )
        self._load: str | None = None
        self._curves = Curves()
        self.between_steps: Callable[[], None] = lambda: None
        """Called after every step; set by the object that applies an operator's commands."""
        self.before_leaving: Callable[[], None] = lambda: None
        """Called before this worker leaves the job; set by the same."""
        self.before_finishing: Callable[[], None] = lambda: None
        """Called before this worker takes no step any more; set by the same."""
        self.model: torch.nn.Module | None = None
        self.optimizer: DistributedOptimizer | None = None
        """What trains tables."""
        self._stepper: DistributedOptimizer | None = None
        """What the training script steps."""

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
            strategy: Used where ``distributed_optimizer`` gets none. Without any it is
                ``DistributedStrategy()``, which is async.

        Raises:
            RoleError: if the role environment is incomplete.
            CallOrderError: if this process has joined a job already.
            FleetError: if what the job needs can't be reached in time; it says what.
        """
        if self.backend.joined:
            raise CallOrderError(
                function="init", remedy="this process has joined a job already"
            )
        self._role = role_maker or PaddleCloudRoleMaker(is_collective)
        if is_collective and not self._role.collective:
            rule = "the role maker is of a job with servers: make it with is_collective=True"
            raise RoleError(name="is_collective", value="True", rule=rule)
        self._strategy = strategy
        if self._role.collective:
            from paramfleet.session.backends.collective import CollectiveBackend  # noqa: PLC0415 - slow
            from paramfleet.training.collective.world import World  # noqa: PLC0415 - slow

            self.settings = read_settings(host=self._role.host)
            world = World(self._role, self.settings, self._clock)
            self.backend = CollectiveBackend(self._own, world)
        elif self._joins_as_worker():
            from paramfleet.session.backends.pservers import PserverBackend  # noqa: PLC0415 - slow

            self.settings = read_settings(host=self._role.host)
            try:
                self.backend = PserverBackend(self._own, self.settings)
            except FleetError as error:
                say_briefly(error)
                raise
        elif self.is_server():
            from paramfleet.session.backends.serving import ServerBackend  # noqa: PLC0415 - not in workers

            self.settings = read_settings(host=self._role.host, warn=False)  # it warns itself
            self.backend = ServerBackend(self._own)
        if self.backend.joined:
            name_process("worker", self.worker_index())
            watch_for_early_end(self.backend.abandon, rank=self.worker_index)

    def init_server(self, dirname: str | Path | None = None) -> None:
        """Prepare to serve; with ``dirname``, start from the tables saved there.

        A job that continues from a checkpoint (``resumed_from``) takes that one instead.

        Raises:
            CallOrderError: in a worker.
        """
        self.backend.check_served("init_server")
        if not self.is_server():
            raise CallOrderError(function="init_server", remedy="only a server calls it")
        self._load = None if dirname is None else str(dirname)

    def resumed_from(self) -> Path | None:
        """Return the checkpoint from which this job continues; None if there is none.

        It is what ``paramfleet launch --resume`` has chosen, and the same in every process of
        the job. The pservers load its tables before ``init_worker`` returns, which gives each
        worker its dense parameters, buffers, schedules and position. So a script that begins
        with another checkpoint calls ``load_model`` only if this is None.
        """
        return place_of(self.settings.resume_from) if self.settings.resume_from else None

    def run_server(self, *, checkpoint_dirs: "Sequence[str | Path]" = ()) -> None:
        """Serve until the job is finished.

        Args:
            checkpoint_dirs: Folders below which workers may have checkpoints saved and loaded,
                beside those of ``PARAMFLEET_CHECKPOINT_DIRS`` or the working folder.

        Raises:
            CallOrderError: in a worker.
            JobFailedError: if a member of the job died.
        """
        self.backend.check_served("run_server")
        if not self.is_server():
            raise CallOrderError(function="run_server", remedy="only a server calls it")
        dirs = [place_of(folder).absolute() for folder in checkpoint_dirs]
        load = self.settings.resume_from or self._load
        say_jobs_failure_briefly()
        serve(self.role, load=load, checkpoint_dirs=dirs)

    def distributed_model(self, model: M) -> M:
        """Name the model's tables by their modules' paths, and count its examples.

        Returns:
            The same model; in collective mode a module around it, which combines the
            workers' gradients.

        Raises:
            TableConflictError: if two modules give one table different widths.
            CollectiveSetupError: if a collective job can't train it.
        """
        taken = self.backend.take_model(model, self._watch)
        self.model = model
        self._draw()
        return taken

    def _watch(self, model: torch.nn.Module) -> None:
        self._own.examples.watch(model)
        self._forwards.watch(model)

    def distributed_optimizer(
        self,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        strategy: DistributedStrategy | None = None,
    ) -> DistributedOptimizer:
        """Return an optimizer that steps in the strategy's mode, or in this process alone.

        A list of optimizers, without common parameters, becomes one optimizer: see
        ``fleet.optim.Combined``.

        In collective mode the result is a ``CollectiveOptimizer``: step, minimize, zero_grad
        and ``num_steps`` are the same; functions that need servers raise ``WrongModeError``.

        Raises:
            NotAnOptimizerError: if it is not an optimizer.
            CombinedError: if two optimizers have the same parameter.
            StrategyError: if the strategy contradicts itself.
            OptimizerOptionError: if an option is a number that no training can use.
            OptimizerNotServedError: in one process, if rows can't have an option of it. In a
                job ``init_worker`` raises it.
        """
        inner = _one_of(optimizer)
        chosen = strategy or self._strategy or DistributedStrategy()

        def make(mode: TrainingMode) -> DistributedOptimizer:
            take = self._own.examples.take
            made = DistributedOptimizer(inner, mode, take, self.times, self._end_step)
            if made.guard is not None:
                made.guard.buffers = lambda: () if self.model is None else self.model.buffers()
            self.optimizer = made
            self.progress.watch(made)
            if self.is_first_worker():
                note_unsaved_states(made)
                note_idle_rows(made)
            return made

        self._stepper = self.backend.take_optimizer(inner, chosen, make)
        self._draw()
        return self._stepper

    def init_worker(self) -> None:
        """Wait for the pservers, declare the tables, start from common values.

        A warning, ``worker.parameters_not_trained``, names parameters of the model that need
        gradients and that the optimizer lacks.

        Raises:
            CallOrderError: before ``distributed_optimizer``, or a second time.
            ServerScriptError: in a pserver, whose script calls ``run_server`` instead.
            TableNotTrainedError: if the optimizer lacks one of the model's tables.
            OptimizerNotServedError: if the servers, or in GEO the rows, can't be stepped by
                this optimizer or with an option of it.
            ElasticModeError: if the strategy is sync in an elastic job, or gpubox with several
                workers.
            NotResumedError: if the job is to continue from a checkpoint that the pservers have
                not loaded.
            FleetError: if a table contradicts another worker's, or the job failed.
        """
        self.backend.start(self.optimizer, self.model)
        self._draw()

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
        if self.backend.agreement.model is not self.model:
            self.backend.agreement = Agreement(self.model)
        agreement = self.backend.agreement
        agreement.take(self.gather("fleet.average_buffers", agreement.payload()))

    def finish_training(self) -> None:
        """Take no more steps: send pending changes, and wait until every worker has finished.

        Afterwards all workers and pservers hold the same values, and in a job with pservers all
        workers the same buffers, as ``average_buffers`` gives them; evaluate then. Workers
        with more batches continue meanwhile, without waiting for this one. ``stop_worker``
        implies it; a second call does nothing.

        Raises:
            NotStartedError: in a job, before ``init_worker``.
            FleetError: if the rest couldn't be sent, or the job failed.
        """
        if self._stepper is not None and not self._stepper.is_finished:
            self.before_finishing()
            self.registered.end()
            self.progress.waits_in = "fleet.finish_training"
            try:
                self._stepper.finish()
            finally:
                self.progress.waits_in = ""
        self._curves.end()

    def stop_worker(self) -> None:
        """Finish training, report that this worker is done, and leave the job.

        A second call does nothing. A worker that has states which a checkpoint is to hold, as
        GEO's have, stays until the first worker has left, which may save until then.

        Raises:
            FleetError: if the rest couldn't be sent, or the job failed.
        """
        if not self.stopped:
            self.before_leaving()
        self.backend.stop(self.finish_training)

    def depart(self) -> None:
        """Leave the job while others continue: send pending changes, and wait for no worker.

        To be called between two steps. In an elastic job SIGTERM does it at the next step's
        end, and ends the script with status 0.

        Raises:
            FleetError: if the rest couldn't be sent, or the job failed.
        """
        if not self.stopped:
            self.before_leaving()
        self.backend.depart(self.optimizer)
        self._curves.end()

    def look_around(self) -> None:
        """Do between two steps that are far apart what is done at a step's end."""
        if self._own.departure.asked:
            self.depart()
        self._own.departure.exit_if_asked()
        self.between_steps()

    def end_pass(self) -> None:
        """Note where this worker is: no pass is open."""
        if self.optimizer is not None:
            self.registered.note(self.optimizer.num_steps)

    def raise_if_failed(self) -> None:
        """Raise the failure of the job, if it has failed."""
        self.backend.raise_failure()

    @property
    def stopped(self) -> bool:
        """Whether this worker has left the job."""
        return self.backend.stopped

    def _draw(self) -> None:
        """Draw what LocalSGD's exchanges cost, once there are some to come."""
        if self._stepper is not None:
            folder, rank = self.settings.visual_path, self.worker_index()
            self._curves.begin(self._stepper.ledger, folder, rank=rank)

    def _end_step(self) -> None:
        """Leave behind a step if that was asked for; else apply the operator's orders."""
        if self._own.departure.asked:
            self.depart()
        self._own.departure.exit_if_asked()
        if self.optimizer is not None and self.optimizer.is_in_pass:
            self.between_steps()  # where this worker is counts at the pass's end
            return
        with self.registered.ending_step(self.optimizer):
            self.between_steps()


def _one_of(given: Any) -> torch.optim.Optimizer:
    """Return one optimizer for what may be several.

    Raises:
        NotAnOptimizerError: if it is something else.
        CombinedError: if two have the same parameter.
    """
    are_several = isinstance(given, list | tuple)
    if are_several and not given:
        raise NotAnOptimizerError(got=f"an empty {type(given).__name__}")
    for each in given if are_several else [given]:
        if not isinstance(each, torch.optim.Optimizer):
            raise NotAnOptimizerError(got=type(each).__name__)
    return Combined(given) if are_several else given
