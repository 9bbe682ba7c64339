"""A worker that trains an own copy of the rows, and exchanges what it changed."""

from collections import Counter

from tests.recovery.protocol import (
    GROUPS,
    OUTBOX_ENTRIES,
    ROWS,
    Kind,
    Part,
    Reply,
    first_value,
)
from tests.recovery.workers.worker import Worker
from tests.recovery.world import World
from typing_extensions import override

UNIT = 6  # divisible by every number of workers


class OwnCopyWorker(Worker):
    """Exchanges one by one; ``progress`` is what it changed itself, for the checks."""

    def __init__(self, world: World, rank: int, incarnation: int, steps: int) -> None:
        super().__init__(world, rank, incarnation, steps)
        self.current: dict[int, int] = {}
        self.agreed: dict[int, int] = {}
        self.progress: Counter[int] = Counter()
        self.arrived = False
        self._finishing = False
        self._more = set(GROUPS)

    def values(self, row: int) -> tuple[int, int]:
        """Return a row as this worker has it, and as it last was at its group."""
        first = first_value(row)
        return self.current.get(row, first), self.agreed.get(row, first)

    @override
    def _term_changed(self, group: int) -> None:
        self._more.add(group)

    def _take_in(self, group: int, reply: Reply) -> None:
        """Take the group's values, and add what was changed here since."""
        for row, value in reply.rows.items():
            current, agreed = self.values(row)
            self.current[row] = current + value - agreed
            self.agreed[row] = value
        if reply.more:
            self._more.add(group)
        else:
            self._more.discard(group)

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
        delta = self.world.random.getrandbits(40) * UNIT
        self.current[row] = self.values(row)[0] + delta
        self.progress[row] += delta

    def _end(self) -> None:
        """Once all workers' changes are durable, hear until nothing waits."""
        self.arrived = self.arrived or not self.outbox
        others = [each for each in self.world.workers if isinstance(each, OwnCopyWorker)]
        if not all(each.arrived for each in others):
            return
        if self.may_die:
            self.may_die = False
            self._more = set(GROUPS)
        if self._waits():
            self._exchange(whole=True)
        else:
            self.done = not self.outbox

    def _waits(self) -> bool:
        """Return whether there may be values that it hasn't received."""
        return bool(self._more)

    def _exchange(self, *, whole: bool) -> None:
        """Send what was changed since the last exchange; in GEO half of it before the end."""
        deltas: dict[int, dict[int, int]] = {group: {} for group in GROUPS}
        for row in sorted(self.current):
            current, agreed = self.values(row)
            delta = self._delta(current - agreed, whole=whole)
            if delta:
                deltas[row % len(GROUPS)][row] = delta
                self.agreed[row] = agreed + delta
        self.make(Kind.EXCHANGE, {group: Part(deltas[group]) for group in GROUPS})

    def _delta(self, changed: int, *, whole: bool) -> int:
        """Return how much of a change an exchange sends."""
        return changed
