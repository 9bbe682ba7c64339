"""A worker in GEO: an own copy of the rows, and exchanges of what changed."""

from collections import Counter

from tests.recovery.defects import Defect
from tests.recovery.protocol import (
    EMPTY,
    GROUPS,
    OUTBOX_ENTRIES,
    ROWS,
    Acked,
    Answer,
    Kind,
    Part,
    Reply,
    first_value,
)
from tests.recovery.workers.worker import Entry, Worker
from tests.recovery.world import World
from typing_extensions import override


class GeoWorker(Worker):
    """Exchanges one by one; ``progress`` is what it changed itself, for the checks.

    ``_heard`` holds the rows of replies that aren't durable: with the term and the position
    of the reply, or, once a resume names them, with that one's sequence.
    """

    def __init__(self, world: World, rank: int, incarnation: int, steps: int) -> None:
        super().__init__(world, rank, incarnation, steps)
        self.current: dict[int, int] = {}
        self.agreed: dict[int, int] = {}
        self.progress: Counter[int] = Counter()
        self.arrived = False
        self._finishing = False
        self._heard: dict[int, dict[int, tuple[int, int]]] = {group: {} for group in GROUPS}
        self._resumed: dict[int, dict[int, int]] = {group: {} for group in GROUPS}
        self._more = set(GROUPS)

    def values(self, row: int) -> tuple[int, int]:
        """Return a row as this worker has it, and as it last was at its group."""
        first = first_value(row)
        return self.current.get(row, first), self.agreed.get(row, first)

    @override
    def _term_changed(self, group: int) -> None:
        self._more.add(group)
        rows = (*self._resumed[group], *self._heard[group])
        if not rows:
            return
        parts = dict.fromkeys(GROUPS, EMPTY) | {group: Part(heard=rows)}
        self.make(Kind.RESUME, parts)
        self._resumed[group] = dict.fromkeys(rows, self.sequence)
        self._heard[group] = {}

    @override
    def _acked_with(self, entry: Entry, group: int) -> Acked:
        untermed = self.world.lacks(Defect.GEO_ACK_WITHOUT_TERM)
        return entry.first_acked[group] if untermed else self.acked[group]

    @override
    def _reply_answered(self, answer: Answer, entry: Entry) -> None:
        newest = entry.sequence == self.sequence
        reply = answer.outcome.reply
        if reply is not None and (newest or self.world.lacks(Defect.GEO_EARLY_REPLIES)):
            self._hear(answer, reply)

    def _hear(self, answer: Answer, reply: Reply) -> None:
        """Take in the servers' values, but keep what was changed here since."""
        group = answer.request.group
        for row, value in reply.rows.items():
            current, agreed = self.values(row)
            self.current[row] = current + value - agreed
            self.agreed[row] = value
            if not self.world.lacks(Defect.GEO_NO_RESUME):
                self._resumed[group].pop(row, None)
                self._heard[group][row] = (answer.term, answer.progress.position)
        untermed = self.world.lacks(Defect.GEO_ACK_WITHOUT_TERM)
        self.acked[group] = Acked(None, reply.batch.batch) if untermed else reply.batch
        if reply.more:
            self._more.add(group)
        else:
            self._more.discard(group)

    @override
    def _progress_answered(self, answer: Answer) -> None:
        group, progress = answer.request.group, answer.progress
        self._heard[group] = {
            row: (term, position)
            for row, (term, position) in self._heard[group].items()
            if term != answer.term or position > progress.durable_position
        }
        self._resumed[group] = {
            row: sequence
            for row, sequence in self._resumed[group].items()
            if sequence > progress.durable
        }

    @override
    def _train(self) -> None:
        if not self.may_start():
            return
        chance = self.world.random
        if self.steps_left and chance.random() < 0.6:
            self._change_a_row()
        if not self.settled() or len(self.outbox) >= OUTBOX_ENTRIES:
            return
        if self._finishing and not self.steps_left:
            self._end()
        elif not self.steps_left or chance.random() < 0.5:
            self._finishing = not self.steps_left
            self._exchange(whole=self._finishing)

    def _change_a_row(self) -> None:
        self.steps_left -= 1
        row = self.world.random.randrange(ROWS)
        delta = self.world.random.getrandbits(40)
        self.current[row] = self.values(row)[0] + delta
        self.progress[row] += delta

    def _end(self) -> None:
        """Once all workers' changes are durable, hear until nothing waits."""
        self.arrived = self.arrived or not self.outbox
        others = [each for each in self.world.workers if isinstance(each, GeoWorker)]
        if not all(each.arrived for each in others):
            return
        if self.may_die:
            self.may_die = False
            self._more = set(GROUPS)
        waits = any(self._heard.values()) or any(self._resumed.values())
        if self._more or waits:
            self._exchange(whole=True)
        else:
            self.done = not self.outbox

    def _exchange(self, *, whole: bool) -> None:
        """Send what was changed since the last exchange; half of it before the end."""
        deltas: dict[int, dict[int, int]] = {group: {} for group in GROUPS}
        for row in sorted(self.current):
            current, agreed = self.values(row)
            delta = current - agreed if whole else (current - agreed) // 2
            if delta:
                deltas[row % len(GROUPS)][row] = delta
                self.agreed[row] = agreed + delta
        self.make(Kind.EXCHANGE, {group: Part(deltas[group]) for group in GROUPS})
