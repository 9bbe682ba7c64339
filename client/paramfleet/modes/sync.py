"""sync: a step waits for every worker's push, and is one step of the whole job."""

import logging

from paramfleet.batchnorm import share_statistics
from paramfleet.call_order import CallOrderError
from paramfleet.job import dense_plan, fetch_dense
from paramfleet.modes.sender import StepGradients
from paramfleet.modes.served import ServedMode
from paramfleet.pservers import both
from paramfleet.requests import Write
from paramfleet.steptotals import StepTotals

__all__ = ["SyncMode"]

log = logging.getLogger(__name__)


class SyncMode(ServedMode):
    """Every step is one step of the whole job: equal to one process with the whole batch."""

    _totals: StepTotals | None = None

    def start(self) -> None:
        """Start as every served mode; let workers share batch statistics if that is asked for.

        Raises:
            CallOrderError: if it is, and there is no model.
            StrategyError: if one of the model's layers can't.
        """
        if self._mode.sync_batch_norm and self._job.worker_num > 1:
            self._share_statistics()
        super().start()

    def depart(self) -> None:
        """Push what waits, and leave; what the model computes from now on is its own."""
        super().depart()
        if self._totals is not None:
            self._totals.is_over = True

    def step(self, *, examples: int) -> None:
        """Push, wait until every worker's push is applied, and take the new dense values.

        What is pulled for the next step goes out right behind the push: it names the step
        that it needs, and the pservers answer when they are so far.
        """
        if self._totals is not None:
            self._totals.end_step(examples=examples)
        gradients = self._gradients(examples=examples)
        writes = self._writes(gradients)
        step, job = self._step + 1, self._job
        push = self._push_alone(gradients, writes)
        with job.times.during("push"):
            if job.pservers.divides:
                job.communicator.wait(push)
                del gradients, writes, push  # gigabytes, and as many are about to come
                self.ahead.send_next(step=step)
                fetch = fetch_dense(
                    job, self._blocks, min_step=step, wire=self._wire, ask=self._pull
                )
                values = job.communicator.wait(fetch)
            else:
                plan = dense_plan(job, self._blocks, wire=self._wire)
                stepping = job.communicator.submit(both(push, self._pull(plan, step)))
                self.ahead.send_next(step=step)
                values = plan.join(stepping.result())
        self._step = step
        self._install(values)

    async def _push_alone(self, gradients: StepGradients, writes: list[Write]) -> None:
        """Push; what the training thread waits for after that is the others' pushes."""
        await self._push(gradients, writes)
        self._job.times.switch("barrier")

    def _min_step(self) -> int:
        return self._step

    def _share_statistics(self) -> None:
        model = self._job.agreement.model
        if model is None:
            remedy = "give the model to fleet.distributed_model(): sync_batch_norm needs it"
            raise CallOrderError(function="init_worker", remedy=remedy)
        examples = self._job.examples
        self._totals = StepTotals(
            self._job, step=lambda: self._step, weight=lambda: examples.seen
        )
        if not share_statistics(model, self._totals):
            log.warning("worker.no_batch_norm", extra={"reason": "the model has no BatchNorm"})
