"""A worker of a job with parameter servers."""

import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from typing_extensions import override

from paramfleet.config.errors import CallOrderError
from paramfleet.config.settings import WorkerSettings
from paramfleet.config.strategy import TrainingMode
from paramfleet.model_state.agreement import Agreement
from paramfleet.model_state.batch_norm import check_sync_batch_norm, note_local_statistics
from paramfleet.model_state.latecomers import BuffersForLate
from paramfleet.nn.table_binding import check_covered
from paramfleet.session.backends.base import Backend, Own
from paramfleet.session.backends.lone_steps import LoneSteps
from paramfleet.session.backends.resuming import begin_registered
from paramfleet.session.backends.returning import begin_again, check_returns, keep_state
from paramfleet.session.backends.step_waits import StepWaits
from paramfleet.telemetry.call_sites import waits_in
from paramfleet.training.job import Job, open_job
from paramfleet.training.localsgd.over_pservers import LocalSgdMode
from paramfleet.training.modes.asynchronous.mode import AsyncMode
from paramfleet.training.modes.geo.mode import GeoMode
from paramfleet.training.modes.gpubox.mode import GpuBoxMode
from paramfleet.training.modes.sync import SyncMode
from paramfleet.training.optimizer import DistributedOptimizer
from paramfleet.training.stepping.clipping import Clipping
from paramfleet.training.stepping.others import StepInterruptedError
from paramfleet.transport.communicator import Communicator
from paramfleet_shared.discovery.errors import OtherCallError
from paramfleet_shared.errors import ENDED_EARLY, FleetError
from paramfleet_shared.errors.served import ElasticModeError
from paramfleet_shared.telemetry.logs_and_metrics import note

if TYPE_CHECKING:
    from paramfleet.training.modes.base import Mode
    from paramfleet_shared.discovery.orders import Orders

__all__ = ["PserverBackend"]

T = TypeVar("T")

log = logging.getLogger(__name__)


_NUMBERS = frozenset({"fleet.all_gather", "fleet.all_reduce"})
"""What scripts get numbers of all workers by."""


class PserverBackend(Backend):
    """Joined by a communicator; there are tables once it has started.

    Args:
        own: Of this process.
        settings: Of this worker.
    """

    def __init__(self, own: Own, settings: WorkerSettings) -> None:
        super().__init__(own)
        self.communicator = self._communicator = communicator = Communicator()
        self._settings = settings
        communicator.start()
        try:
            communicator.join(
                settings,
                index=own.role().index,
                facts=own.progress.facts,
                admin=own.progress.admin(settings),
            )
        except BaseException:
            communicator.close()
            raise
        self._session = communicator.session
        self._for_late = BuffersForLate(communicator.clock)
        self._lone_steps = LoneSteps()
        self.clipping: Clipping | None = None
        self._optimizer: DistributedOptimizer | None = None
        """What trains, once it has begun."""
        if self._session.elastic:
            own.departure.listen()

    @override
    def worker_index(self) -> int:
        return self._session.member.index

    @override
    def worker_num(self) -> int:
        return self._session.worker_num

    @override
    def server_num(self) -> int:
        return self._session.server_num

    @override
    def server_endpoints(self) -> list[str]:
        if self.job is None:
            return super().server_endpoints()
        return list(self.job.placement.endpoints)

    @override
    def barrier(self, name: str) -> None:
        at = waits_in(name)
        self._meet(self._session.barrier(name, at=at), at, barrier=name)

    @override
    def gather(self, name: str, payload: bytes) -> list[bytes]:
        at = waits_in(name)
        payloads = self._meet(
            self._session.gather(name, payload, at=at), at, barrier=f"gather/{name}"
        )
        self._require_all(name, len(payloads))
        return payloads

    def _meet(self, work: Coroutine[Any, Any, T], at: str, *, barrier: str) -> T:
        """Wait for the other workers; take part in steps that they are in, without a batch.

        Args:
            work: Waits for them.
            at: What this worker's script called; empty in another thread than the main one,
                which takes no steps.
            barrier: Name of the barrier at which it waits.
        """
        if not at:
            return self._wait(work)
        self.own.progress.waits_in = at
        try:
            return self._wait(work, at, barrier)
        finally:
            self.own.progress.waits_in = ""

    def _wait(self, work: Coroutine[Any, Any, T], at: str = "", barrier: str = "") -> T:
        with self.own.times.during("barrier"):
            self._settle()
        optimizer = self._optimizer
        trains = at and optimizer is not None and not optimizer.is_finished
        others = optimizer.running.others if trains and optimizer is not None else None
        if others is None:
            with self.own.times.during("barrier"):
                return self._communicator.wait(work)
        return others.wait(
            work,
            partial(self._take_others_step, at),
            is_incomplete=partial(self._session.is_incomplete, barrier),
        )

    def _watch(self, optimizer: DistributedOptimizer, job: Job) -> None:
        """Have what belongs to a step that several workers take done and logged."""
        self._optimizer = optimizer
        self.clipping = self._clip(optimizer)
        if optimizer.running.others is None:
            return
        progress = self.own.progress
        waits = StepWaits(
            job,
            self.own.times,
            step=lambda: optimizer.num_steps + 1,
            waits_in=lambda: progress.waits_in,
        )
        self._communicator.follow(lambda _placement: waits.look())

    def _clip(self, optimizer: DistributedOptimizer) -> Clipping | None:
        """Have torch's functions clip by all workers' gradients, where they share a step."""
        norms, mode = optimizer.running.norms, optimizer.mode
        if norms is None and (mode.name != "gpubox" or self.worker_num() == 1):
            return None
        found = norms  # of the closure below

        def total_norm(
            gradients: list[torch.Tensor], norm_type: float, *, examples: int | None
        ) -> float:
            assert found is not None, "it is given else"
            count = self.own.examples.learned if examples is None else examples
            return found.norm(gradients, norm_type, examples=count)

        return Clipping(optimizer, None if norms is None else total_norm)

    def _end_watching(self) -> None:
        """Look at torch's functions no more: this worker leaves."""
        self._lone_steps.end()
        if self.clipping is not None:
            self.clipping.end()

    def _take_others_step(self, at: str) -> None:
        """Take part in a step of other workers, which this one has no batch for.

        Raises:
            StepInterruptedError: if this worker is in the middle of a step of its own.
        """
        optimizer = self._optimizer
        assert optimizer is not None, "it has others"
        error = StepInterruptedError(
            rank=self.worker_index(), at=at, step=optimizer.num_steps + 1
        )
        if self.own.examples.has_seen or optimizer.has_gradients:
            raise error
        self.own.examples.outdate(error)
        with self.own.registered.without_batch():
            optimizer.take_others_step()

    def _require_all(self, name: str, num_came: int) -> None:
        """Pass unless a worker left after all had finished, and lacks in a number of all.

        Raises:
            OtherCallError: if one did.
        """
        session = self._session
        if session.elastic or name not in _NUMBERS:
            return
        num_left = session.finished_with - num_came - len(session.lost)
        if num_left > 0:
            raise OtherCallError(
                rank=session.member.index,
                at=waits_in(name) or name,
                elsewhere=f"{num_left} of the {session.finished_with} workers that finished "
                "the training with it left the job before, by fleet.stop_worker",
            )

    def _settle(self) -> None:
        if self.job is not None:
            self.job.settle()

    @override
    def start(
        self, optimizer: DistributedOptimizer | None, model: torch.nn.Module | None
    ) -> None:
        if optimizer is None:
            remedy = "call fleet.distributed_optimizer() first"
            raise CallOrderError(function="init_worker", remedy=remedy)
        if self.job is not None:
            remedy = "this worker has its tables already: call it once"
            raise CallOrderError(function="init_worker", remedy=remedy)
        if model is not None:
            check_covered(model, [table for table, _ in optimizer.tables.sparse])
            self._note_untrained(optimizer, model)
            if self.worker_num() > 1:
                _check_norms(model, optimizer.mode, is_first=self._session.member.index == 0)
        kinds: dict[str, Callable[..., Mode]]
        apart = partial(LocalSgdMode, loss=lambda: optimizer.step_loss)
        kinds = {
            "sync": SyncMode,
            "async": AsyncMode,
            "geo": GeoMode,
            "gpubox": GpuBoxMode,
            "localsgd": apart,
        }
        make = kinds[optimizer.mode.name]
        alone = make is GpuBoxMode and self.worker_num() == 1  # it may be started again
        returned = self._session.returning and self._session.late
        check_returns(returned, optimizer.mode, workers=self.worker_num())
        if make in {SyncMode, GpuBoxMode} and self._session.elastic and not alone:
            raise ElasticModeError(mode=optimizer.mode.name)
        self._lone_steps.end()
        self.agreement = Agreement(model)
        own = self.own
        job = open_job(
            self._communicator,
            self._settings,
            times=own.times,
            departure=own.departure,
            agreement=self.agreement,
            examples=own.examples,
        )
        own.progress.watch_traffic(job.pservers.traffic)
        own.progress.watch_outbox(job.pservers.outbox)
        mode = make(job, optimizer.mode, optimizer.inner, optimizer.tables)
        mode.start()
        self.agreement.loaded_from.check_resumed(self._settings.resume_from)
        self.job = job
        own.departure.begin()
        optimizer.bind(mode, job.staleness)
        self._watch(optimizer, job)
        with optimizer.loading(self.agreement.loaded_from.folder):
            begin_registered(self, job, optimizer)
            if returned:
                exactly = optimizer.mode.name == "sync"
                begin_again(self, job, optimizer, step=mode.begins_with, exactly=exactly)
        keep_state(self, job, optimizer)
        note(
            log,
            "worker.trains",
            mode=optimizer.mode.name,
            chosen_by=optimizer.mode.chosen_by,
            servers=self.server_num(),
            workers=self.worker_num(),
        )

    @override
    def stop(self, finish: Callable[[], None]) -> None:
        if self.stopped:
            return
        if self.job is not None:
            finish()
            self.job.answering.end()
        self._leave()

    @override
    def depart(self, optimizer: DistributedOptimizer | None) -> None:
        if self.stopped:
            return
        if self.job is not None and optimizer is not None and not optimizer.is_finished:
            optimizer.depart()
            self._communicator.wait(self.job.answering.depart())
        self._leave()

    def _leave(self) -> None:
        communicator = self._communicator
        communicator.wait(communicator.mark_done())
        if self.job is not None:
            communicator.wait(self.job.pservers.close())
        communicator.wait(self._session.leave())
        self._end_watching()
        self.stopped = True
        communicator.close()

    @override
    def abandon(self, error: str | None, *, may_return: bool = False) -> None:
        communicator, session = self._communicator, self._session
        if self.stopped or not communicator.is_own:
            return
        self._end_watching()
        self.stopped = True
        why = error or ENDED_EARLY
        asked = self.own.departure.asked and error is None
        try:
            if asked:
                communicator.say_last(self._say_goodbye())
            else:
                communicator.say_last(session.give_up(why, may_return=may_return))
        except FleetError as failure:  # the job has failed already, or Redis is gone
            log.info("worker.ended_after", extra={"reason": str(failure)})
        communicator.close()

    async def _say_goodbye(self) -> None:
        """Leave where nothing of this worker is on its way."""
        if self.job is not None:
            await self.job.say_goodbye()
        await self._communicator.mark_done()
        await self._session.leave()

    @override
    def between_steps(self) -> None:
        self._session.level_with_former()
        if not self.stopped:
            self._for_late.look(self._communicator, self.agreement)

    @override
    def raise_failure(self) -> None:
        self._communicator.raise_failure()

    @override
    def orders(self) -> "Orders | None":
        return None if self.stopped else self._session.life.orders

    @override
    def job_facts(self) -> dict[int, dict[str, Any]]:
        said = self._communicator.wait(self._session.read_facts("worker"))
        said[self.worker_index()] = self.own.progress.facts()  # newer than its heartbeat
        return said


def _check_norms(model: torch.nn.Module, mode: TrainingMode, *, is_first: bool) -> None:
    """Check what batch statistics of several workers are.

    Raises:
        SyncBatchNormError: if a layer is torch's for process groups.
    """
    remedy = "keep torch.nn.BatchNorm, and set strategy.sync_batch_norm = True, in sync mode"
    check_sync_batch_norm(model, remedy=remedy)
    if is_first and mode.name in {"sync", "gpubox"} and not mode.sync_batch_norm:
        remedy = "strategy.sync_batch_norm = True, in sync mode"
        note_local_statistics(model, remedy=remedy)
