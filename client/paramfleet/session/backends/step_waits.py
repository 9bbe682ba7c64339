"""Steps that wait long for other workers: who they are, and where, is logged once."""

from collections.abc import Callable

from paramfleet.telemetry.step_times import StepTimes
from paramfleet.training.job import Job
from paramfleet_shared.errors import FleetError
from paramfleet_shared.telemetry import waiting

__all__ = ["StepWaits"]


class StepWaits:
    """Looks at a worker of sync with each heartbeat.

    Args:
        job: In sync, with others.
        times: Of this worker.
        step: Returns the step that is taken, from 1.
        waits_in: Returns the call in which it waits for all workers, which logs that itself;
            empty for none.
    """

    def __init__(
        self,
        job: Job,
        times: StepTimes,
        *,
        step: Callable[[], int],
        waits_in: Callable[[], str],
    ) -> None:
        self._job = job
        self._times = times
        self._step = step
        self._waits_in = waits_in
        self._told_of = 0.0
        """When the wait began that was logged last."""

    def look(self) -> None:
        """Log a wait that has become long; called on the loop."""
        phase, since = self._times.current
        waited_s = self._job.communicator.clock.monotonic() - since
        is_long = phase == "barrier" and waited_s >= waiting.TOLD_AFTER_S
        if is_long and since != self._told_of and not self._waits_in():
            self._told_of = since
            self._job.communicator.spawn(self._tell(waited_s))

    async def _tell(self, waited_s: float) -> None:
        job, step = self._job, self._step()
        try:
            answer = await job.pservers.call_one(
                0, "status", {}, timeout_s=waiting.TOLD_AFTER_S
            )
        except FleetError:
            return
        missing = [rank for rank in answer.fields["waiting_for"] if rank != job.author.rank]
        if missing:
            waiting.tell_waiting(
                f"step {step}",
                missing,
                waited_s=waited_s,
                at_most_s=job.pservers.step_timeout_s,
                places=await job.communicator.session.whereabouts(),
            )
