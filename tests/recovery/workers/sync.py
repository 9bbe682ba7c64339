"""A worker in sync: a step needs the values of exactly its version, in all groups."""

from tests.recovery.defects import Defect
from tests.recovery.protocol import (
    GROUPS,
    KEPT_STEPS,
    STEPS,
    Answer,
    Kind,
    Part,
    mix,
)
from tests.recovery.workers.worker import Worker
from tests.recovery.world import World
from typing_extensions import override

TOO_FAR = 5  # undurable steps of a worker that breaks the rule


class SyncWorker(Worker):
    """Its steps continue those of its former incarnations."""

    def __init__(self, world: World, rank: int, incarnation: int, steps: int) -> None:
        super().__init__(world, rank, incarnation, steps)
        self.step: int | None = None
        self._values: dict[int, int] = {}
        self._next_steps: dict[int, int] = {}
        self._durable_steps: dict[int, int] = {}

    @override
    def _pull(self, group: int) -> None:
        if self.step is not None:
            self.world.send(self._request(group, Kind.PULL, step=self.step))

    @override
    def _pull_answered(self, answer: Answer) -> None:
        self._learn_durable(answer)
        if answer.request.step == self.step:
            self._values[answer.request.group] = answer.outcome.value

    @override
    def _join_answered(self, answer: Answer) -> None:
        """Begin at the first step that some group lacks, or go back to it."""
        self._learn_durable(answer)
        needed = answer.outcome.next_step
        self._next_steps[answer.request.group] = needed
        if len(self._durable_steps) < len(GROUPS):
            return
        if self.step is None:
            self._go_to(min(self._next_steps.values()))
        elif needed < self.step and needed + 1 not in self.outbox:
            # A former incarnation pushed these; it is dead, and the group has lost them.
            assert needed + 1 < min(self.outbox, default=needed + 2)
            self._go_to(needed)
            self.world.counts["returns"] += 1

    def _learn_durable(self, answer: Answer) -> None:
        group = answer.request.group
        known = self._durable_steps.get(group, 0)
        self._durable_steps[group] = max(known, answer.progress.durable)

    def _go_to(self, step: int) -> None:
        self.step, self.sequence, self._values = step, step, {}

    @override
    def _train(self) -> None:
        step = self.step
        if step is None:
            return
        if step == STEPS:
            self.done = not self.outbox
            return
        allowed = TOO_FAR if self.world.lacks(Defect.SYNC_TOO_FAR_AHEAD) else KEPT_STEPS
        if len(self._values) < len(GROUPS) or step - self._durable_everywhere() >= allowed:
            return
        values = [self._values[group] for group in GROUPS]
        self.sequence = step
        parts = {group: Part(gradient=mix(self.rank, step, group, *values)) for group in GROUPS}
        self.make(Kind.STEP, parts)
        self.step, self._values = step + 1, {}

    def _durable_everywhere(self) -> int:
        """Return how many of the rank's steps are durable in every group."""
        durable = dict(self._durable_steps)
        for entry in self.entries:
            for group in entry.durable:
                durable[group] = max(durable[group], entry.sequence)
        return min(durable.values())
