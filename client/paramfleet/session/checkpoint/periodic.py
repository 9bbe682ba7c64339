"""Checkpoints by time, as ``strategy.checkpoint_configs`` asks for them.

Worker 0 has them written, between two of its steps, in gpubox between two passes, into numbered
folders (``numbered``). A failure is reported and ends nothing: the next is tried at its time.
"""

from pathlib import Path

from paramfleet.config.checkpoint_plan import CheckpointPlan
from paramfleet.session.checkpoint.background import saved
from paramfleet.session.checkpoint.numbered import begin_numbered, clear_left, end_numbered
from paramfleet.session.checkpoint.saving import Saving
from paramfleet.session.session import Session
from paramfleet_shared.system.clock import Clock

__all__ = ["PeriodicCheckpoints"]


class PeriodicCheckpoints:
    """Writes checkpoints when it is time. The training thread owns it.

    Args:
        session: Whose worker trains.
        saving: Writes them.
        clock: For when.
    """

    def __init__(self, session: Session, saving: Saving, clock: Clock) -> None:
        self._session = session
        self._saving = saving
        self._clock = clock
        self._plan: CheckpointPlan | None = None
        self._due = 0.0

    def look(self) -> None:
        """Write a checkpoint if it is time; called between two steps, costs little else.

        During a pass of gpubox none can be written: the next call behind it does.

        Raises:
            FleetError: if the job failed meanwhile.
        """
        optimizer = self._session.optimizer
        plan = None if optimizer is None else optimizer.mode.checkpoints
        if plan is None or optimizer is None:
            return
        now = self._clock.monotonic()
        if plan is not self._plan:
            self._plan, self._due = plan, now + plan.every_s
            if self._session.is_first_worker():
                clear_left(Path(plan.dirname))
        if now < self._due or not self._session.is_first_worker() or optimizer.is_in_pass:
            return
        self._write(plan, step=optimizer.num_steps)
        self._due = self._clock.monotonic() + plan.every_s

    def _write(self, plan: CheckpointPlan, *, step: int) -> None:
        checkpoint = begin_numbered(Path(plan.dirname), step=step)
        done = saved(self._saving, checkpoint, clock=self._clock)
        self._session.raise_if_failed()
        if not done["error"]:
            end_numbered(checkpoint, keep=plan.keep)
        self._session.progress.note(periodic_checkpoint=done)
