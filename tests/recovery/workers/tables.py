"""A worker in async: pushes that may come in any order."""

from tests.recovery.defects import Defect
from tests.recovery.protocol import (
    GROUPS,
    IN_FLIGHT,
    OUTBOX_ENTRIES,
    Kind,
    Part,
    rows_of,
)
from tests.recovery.workers.worker import Entry, Worker
from typing_extensions import override


class AsyncWorker(Worker):
    """Pushes what it has; some pushes are on their way at the same time."""

    @override
    def _next_to_send(self, unanswered: list[Entry]) -> Entry:
        return self.world.random.choice(unanswered[:IN_FLIGHT])

    @override
    def _train(self) -> None:
        if not self.may_start() or len(self.outbox) >= OUTBOX_ENTRIES:
            return
        if self.steps_left:
            self.steps_left -= 1
            self.make(Kind.PUSH, {group: self._gradients(group) for group in GROUPS})
        elif not self.outbox or self._ends_early():
            self.done = True

    def _ends_early(self) -> bool:
        return self.world.lacks(Defect.END_BEFORE_DURABLE) and self.settled()

    def _gradients(self, group: int) -> Part:
        chance = self.world.random
        count = chance.randint(0, 2)
        return Part(
            {chance.choice(rows_of(group)): chance.getrandbits(40) for _ in range(count)}
        )
