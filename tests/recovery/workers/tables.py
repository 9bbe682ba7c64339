"""A worker in async: pushes that may come in any order."""

from dataclasses import replace

from tests.recovery.defects import Defect
from tests.recovery.protocol import (
    EMPTY,
    GROUPS,
    IN_FLIGHT,
    OUTBOX_ENTRIES,
    Answer,
    Kind,
    Part,
    rows_of,
)
from tests.recovery.workers.worker import Entry, Worker
from tests.recovery.world import World, violated
from typing_extensions import override


class AsyncWorker(Worker):
    """A step begins when all groups have answered its pull."""

    def __init__(self, world: World, rank: int, incarnation: int, steps: int) -> None:
        super().__init__(world, rank, incarnation, steps)
        self.first_step: int | None = None
        self.has_left = False
        self._step = 0
        self._pulled: set[int] = set()
        self._levels: dict[int, int] = {}
        self._joins: dict[int, tuple[int, int]] = {}  # term and position of each join
        self._durable_joins: set[int] = set()

    @override
    def _next_to_send(self, unanswered: list[Entry]) -> Entry:
        return self.world.random.choice(unanswered[:IN_FLIGHT])

    @override
    def _join_answered(self, answer: Answer) -> None:
        group = answer.request.group
        self._levels[group] = answer.outcome.next_step
        self._joins[group] = (answer.term, answer.progress.position)

    @override
    def _progress_answered(self, answer: Answer) -> None:
        group, progress = answer.request.group, answer.progress
        term, position = self._joins[group]
        if term == answer.term and position <= progress.durable_position:
            self._durable_joins.add(group)

    @override
    def _pull(self, group: int) -> None:
        """Ask for values, unless a rollback hides an own change that was acknowledged."""
        seen = [each for each in self.outbox.values() if group in each.ever_acknowledged]
        hidden = not all(each.answered(group) for each in seen)
        if group in self._pulled or (hidden and not self.world.lacks(Defect.STALE_PULLS)):
            return
        expected = frozenset(each.sequence for each in seen)
        self.world.send(self._request(group, Kind.PULL, step=self._step, expected=expected))

    @override
    def _pull_answered(self, answer: Answer) -> None:
        self._progress_answered(answer)
        if answer.request.step != self._step or self.first_step is None:
            return
        if answer.outcome.unseen:
            facts = f"{sorted(answer.outcome.unseen)} of {self.rank}"
            violated("own_writes", f"group {answer.request.group} answered without {facts}")
        self._pulled.add(answer.request.group)

    @override
    def _refused(self, entry: Entry, group: int) -> None:
        """Void every other refused push, in all groups: some may have taken it already."""
        if entry.kind is not Kind.PUSH or entry.sequence % 2 or entry.answered(group):
            return
        if self.world.lacks(Defect.NO_VOID):
            del self.outbox[entry.sequence]
            self.entries.remove(entry)
            return
        entry.kind = Kind.VOID
        counts = not self.world.lacks(Defect.VOID_WITHOUT_STEPS)
        entry.parts = {
            each: replace(part, deltas={}) if counts else EMPTY
            for each, part in entry.parts.items()
        }
        self.world.counts["voids"] += 1

    @override
    def _train(self) -> None:
        if not self.may_start() or len(self.outbox) >= OUTBOX_ENTRIES:
            return
        if self.first_step is None:
            self._begin()
        elif self.steps_left:
            if len(self._pulled) == len(GROUPS):
                self._push()
        elif not self.outbox or self._ends_early():
            self.done = self.has_left
            if not self.has_left:
                self.has_left, self.may_die = True, False
                self.make(Kind.LEAVE, dict.fromkeys(GROUPS, EMPTY))

    def _begin(self) -> None:
        """Begin at the greatest level of all groups, once no group can lose the join.

        A change tells this to groups where the level is lower: the first pull would wait in
        them for the workers that wait for this one.
        """
        if len(self._durable_joins) == len(GROUPS):
            self.first_step = self._step = max(self._levels.values())
            differ = min(self._levels.values()) < self.first_step
            if differ and not self.world.lacks(Defect.GATE_GAP):
                self.make(Kind.BEGIN, dict.fromkeys(GROUPS, Part(step=self._step - 1)))
            self._pulled = set()

    def _push(self) -> None:
        self.steps_left -= 1
        parts = {
            group: replace(self._gradients(group), first=self._step, step=self._step)
            for group in GROUPS
        }
        self.make(Kind.PUSH, parts)
        self._step += 1
        self._pulled = set()

    def _ends_early(self) -> bool:
        return self.world.lacks(Defect.END_BEFORE_DURABLE) and self.settled()

    def _gradients(self, group: int) -> Part:
        chance = self.world.random
        count = chance.randint(0, 2)
        rows = rows_of(group)
        return Part({chance.choice(rows): chance.getrandbits(40) for _ in range(count)})
