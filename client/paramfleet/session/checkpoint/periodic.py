"""Checkpoints by time and by steps, as ``strategy.checkpoint_configs`` asks for them.

Worker 0 begins them between two of its steps, in gpubox between two passes, in numbered folders
(``numbered``), and trains while they are written. A failure is reported and ends nothing: the
next is tried at its time. One that is due while another is on its way comes after it.
"""

import logging
from functools import partial
from pathlib import Path

from paramfleet.config.plans.checkpoints import CheckpointPlan
from paramfleet.session.checkpoint.background import Outcome, not_begun
from paramfleet.session.checkpoint.job_save import Chain
from paramfleet.session.checkpoint.numbered import (
    begin_numbered,
    clear_left,
    complete_in,
    end_numbered,
)
from paramfleet.session.checkpoint.saving import Saving
from paramfleet.session.session import Session
from paramfleet_shared.checkpoint.increments import Base
from paramfleet_shared.checkpoint.manifest import CheckpointWriteError, new_identity
from paramfleet_shared.files.addresses import place_of
from paramfleet_shared.system.clock import Clock

__all__ = ["PeriodicCheckpoints"]

log = logging.getLogger(__name__)

_REMEDY = (
    "they stay, and don't count for keep; to continue from the newest start with --resume, or "
    "give strategy.checkpoint_configs another dirname"
)


class PeriodicCheckpoints:
    """Begins checkpoints when it is time. The training thread owns it.

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
        self._began_at = 0.0
        self._began_step = 0
        self._base: Base | None = None
        """The newest one that is written, if changes are marked since."""
        self._num_increments = 0
        """How many followed the last whole one."""
        self._spared: frozenset[str] = frozenset()
        """Checkpoints of another run in the folder, by name: they stay."""

    def look(self) -> None:
        """Begin a checkpoint if it is time; called between two steps, costs little else.

        During a pass of gpubox none can be written: the next call behind it does.

        Raises:
            FleetError: if the job failed meanwhile.
        """
        optimizer = self._session.optimizer
        plan = None if optimizer is None else optimizer.mode.checkpoints
        if plan is None or optimizer is None:
            return
        step = optimizer.num_steps
        if plan is not self._plan:
            self._plan, self._began_at = plan, self._clock.monotonic()
            self._began_step = step - 1  # between the first step and the next
            if self._session.is_first_worker():
                clear_left(place_of(plan.dirname), owner=self._saving.owner)
                self._spare_others(plan)
        self._began_step = min(self._began_step, step)  # a load may lead back
        if not self._session.is_first_worker() or not self._is_due(plan, step):
            return
        if optimizer.is_in_pass or self._saving.background.is_busy:
            return
        self._begin(plan, step=step)
        self._began_at, self._began_step = self._clock.monotonic(), step

    def _spare_others(self, plan: CheckpointPlan) -> None:
        """Let checkpoints stay that were there before a training that begins at step 0."""
        if self._began_step:
            return
        self._spared = complete_in(place_of(plan.dirname))
        if self._spared:
            count = len(self._spared)
            facts = {"folder": plan.dirname, "checkpoints": count, "remedy": _REMEDY}
            log.warning("worker.checkpoints_of_another_run", extra=facts)

    def _is_due(self, plan: CheckpointPlan, step: int) -> bool:
        if plan.every_steps is not None and step - self._began_step >= plan.every_steps:
            return True
        if plan.every_s is None:
            return False
        return self._clock.monotonic() >= self._began_at + plan.every_s

    def _begin(self, plan: CheckpointPlan, *, step: int) -> None:
        clear_left(place_of(plan.dirname))  # of a compact that was killed meanwhile
        try:
            checkpoint = begin_numbered(place_of(plan.dirname), step=step)
        except CheckpointWriteError as error:
            done = not_begun(place_of(plan.dirname), error)
            self._session.progress.note(periodic_checkpoint=done)
            return
        chain = None
        if plan.incremental:
            is_due = self._num_increments >= plan.incremental
            chain = Chain(new_identity(), None if is_due else self._base)
        begin = partial(self._saving.begin, chain=chain)
        end = partial(self._end, plan, checkpoint, chain)
        self._saving.background.start(begin, checkpoint, end)
        self._session.raise_if_failed()

    def _end(
        self, plan: CheckpointPlan, checkpoint: Path, chain: Chain | None, done: Outcome
    ) -> None:
        """Point to a checkpoint that is written; the thread that wrote it calls it."""
        if not done["error"]:
            end_numbered(checkpoint, keep=plan.keep, spared=self._spared)
            if chain is not None:
                self._base = Base(save=chain.save, folder=checkpoint.name)
                self._num_increments = self._num_increments + 1 if done["incremental"] else 0
        self._session.progress.note(periodic_checkpoint=done)
