"""A worker in sync: a step needs the values of exactly its version, in all groups."""

from tests.recovery.defects import Defect
from tests.recovery.protocol import (
    EMPTY,
    GROUPS,
    KEPT_STEPS,
    STEPS,
    Answer,
    Kind,
    Mode,
    Part,
    mix,
)
from tests.recovery.workers.worker import Entry, Worker
from tests.recovery.world import World
from typing_extensions import override

TOO_FAR = 5  # undurable steps of a worker that breaks the rule


class SyncWorker(Worker):
    """Its steps continue those of its former incarnations."""

    def __init__(self, world: World, rank: int, incarnation: int, steps: int) -> None:
        super().__init__(world, rank, incarnation, steps)
        self.step: int | None = None
        self._may_be_lost = world.mode is Mode.SHRINK
        self._begin_pulls()
        self._next_steps: dict[int, int] = {}
        self._durable_steps: dict[int, int] = {}
        self._joins: dict[int, tuple[int, int]] = {}  # term and position of each join
        self._settled: set[int] = set()

    @override
    def _pull(self, group: int) -> None:
        if self.step is None:
            self.world.send(self._request(group, Kind.JOIN))  # asks how far it is durable
        else:
            known = Part(step=self._known_everywhere()) if self._may_be_lost else EMPTY
            self.world.send(self._request(group, Kind.PULL, step=self.step, part=known))

    @override
    def _pull_answered(self, answer: Answer) -> None:
        self._learn_durable(answer)
        group, progress = answer.request.group, answer.progress
        if answer.request.step != self.step:
            return
        self._values[group] = answer.outcome.value
        if group not in self._pulls or self._pulls[group][0] != answer.term:
            self._pulls[group] = answer.term, progress.position
        elif progress.durable_position >= self._pulls[group][1]:
            self._ended.add(group)

    @override
    def _join_answered(self, answer: Answer) -> None:
        """Begin at the first step that some group lacks, once no group can lose those before.

        They are a former incarnation's, and nobody could send them again.
        """
        self._learn_durable(answer)
        group, progress = answer.request.group, answer.progress
        if self.step is not None:
            return
        if group not in self._joins or self._joins[group][0] != answer.term:
            self._joins[group] = answer.term, progress.position
            self._settled.discard(group)
        self._next_steps[group] = answer.outcome.next_step
        early = self.world.lacks(Defect.SYNC_BEGINS_EARLY)
        if early or progress.durable_position >= self._joins[group][1]:
            self._settled.add(group)
        if len(self._settled) == len(GROUPS):
            self._go_to(min(self._next_steps.values()))
            self.world.counts["returns"] += self.step != 0

    def _learn_durable(self, answer: Answer) -> None:
        group = answer.request.group
        known = self._durable_steps.get(group, 0)
        self._durable_steps[group] = max(known, answer.progress.durable)

    def _go_to(self, step: int) -> None:
        self.step, self.sequence = step, step
        self._begin_pulls()

    def _begin_pulls(self) -> None:
        self._values: dict[int, int] = {}
        self._pulls: dict[int, tuple[int, int]] = {}  # term and position of each answer
        self._ended: set[int] = set()

    @override
    def _term_changed(self, group: int) -> None:
        """Pull anew: the version may come out otherwise, if a lost worker's part is gone."""
        if self._may_be_lost:
            self._values.pop(group, None)
            self._ended.discard(group)

    @override
    def _train(self) -> None:
        step = self.step
        if step is None:
            return
        if step == STEPS:
            # That all groups have the last part is durable, too, where that counts.
            ended = len(self._ended) == len(GROUPS) or not self._may_be_lost
            self.done = ended and not self.outbox
            return
        allowed = TOO_FAR if self.world.lacks(Defect.SYNC_TOO_FAR_AHEAD) else KEPT_STEPS
        if len(self._values) < len(GROUPS) or step - self._durable_everywhere() >= allowed:
            return
        values = [self._values[group] for group in GROUPS]
        self.sequence = step
        parts = {group: Part(gradient=mix(self.rank, step, group, *values)) for group in GROUPS}
        self.make(Kind.STEP, parts)
        self.step = step + 1
        self._begin_pulls()

    def _known_everywhere(self) -> int:
        """Return how many of the rank's steps no group can lose."""
        if self.world.lacks(Defect.ACKNOWLEDGED_IS_KNOWN):
            missing = [n for n, each in self.outbox.items() if not _is_acknowledged(each)]
            return min(missing, default=self.sequence + 1) - 1
        return self._durable_everywhere()

    def _durable_everywhere(self) -> int:
        """Return how many of the rank's steps are durable in every group."""
        durable = dict(self._durable_steps)
        for entry in self.entries:
            for group in entry.durable:
                durable[group] = max(durable[group], entry.sequence)
        return min(durable.values())


def _is_acknowledged(entry: Entry) -> bool:
    return len(entry.ever_acknowledged) == len(GROUPS)
