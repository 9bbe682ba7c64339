"""A worker in LocalSGD: each reply holds all values."""

from tests.recovery.defects import Defect
from tests.recovery.protocol import GROUPS, ROWS, Answer, Part
from tests.recovery.workers.own_copy import OwnCopyWorker
from tests.recovery.workers.worker import Entry
from typing_extensions import override


class LocalSgdWorker(OwnCopyWorker):
    """What it sends next is a difference: any reply of this term may be taken in."""

    @override
    def _reply_answered(self, answer: Answer, entry: Entry) -> None:
        if answer.outcome.reply is not None:
            self._take_in(answer.request.group, answer.outcome.reply)

    @override
    def _term_changed(self, group: int) -> None:
        super()._term_changed(group)
        if self.outbox and self.world.lacks(Defect.LOCALSGD_NEW_DELTA):
            self._take_anew(self.outbox[max(self.outbox)])

    def _take_anew(self, entry: Entry) -> None:
        """Break a rule: send what was changed meanwhile under an old sequence."""
        parts = {group: dict(entry.parts[group].deltas) for group in GROUPS}
        for row in range(ROWS):
            current, agreed = self.values(row)
            if current != agreed:
                deltas = parts[row % len(GROUPS)]
                deltas[row] = deltas.get(row, 0) + current - agreed
                self.agreed[row] = current
        entry.parts = {group: Part(parts[group]) for group in GROUPS}
