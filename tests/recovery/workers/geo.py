"""A worker in GEO: it receives the rows that others changed, a few in each reply."""

from tests.recovery.defects import Defect
from tests.recovery.protocol import EMPTY, GROUPS, Acked, Answer, Kind, Part
from tests.recovery.workers.own_copy import OwnCopyWorker
from tests.recovery.workers.worker import Entry
from tests.recovery.world import World
from typing_extensions import override


class _GeoWorker(OwnCopyWorker):
    """Sends a half of what it changed before the end, so that replies cross with changes."""

    @override
    def _delta(self, changed: int, *, whole: bool) -> int:
        return changed if whole else changed // 2


class GeoWorker(_GeoWorker):
    """Knows which rows it received from a part that isn't durable.

    ``_heard`` holds them with the term and the position of the reply; once a resume names
    them, ``_resumed`` does, with the sequence of that one.
    """

    def __init__(self, world: World, rank: int, incarnation: int, steps: int) -> None:
        super().__init__(world, rank, incarnation, steps)
        self._heard: dict[int, dict[int, tuple[int, int]]] = {group: {} for group in GROUPS}
        self._resumed: dict[int, dict[int, int]] = {group: {} for group in GROUPS}

    @override
    def _term_changed(self, group: int) -> None:
        super()._term_changed(group)
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
        reply, group = answer.outcome.reply, answer.request.group
        if reply is None or not (newest or self.world.lacks(Defect.GEO_EARLY_REPLIES)):
            return
        self._take_in(group, reply)
        untermed = self.world.lacks(Defect.GEO_ACK_WITHOUT_TERM)
        self.acked[group] = Acked(None, reply.batch.batch) if untermed else reply.batch
        if self.world.lacks(Defect.GEO_NO_RESUME):
            return
        for row in reply.rows:
            self._resumed[group].pop(row, None)
            self._heard[group][row] = (answer.term, answer.progress.position)

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
    def _waits(self) -> bool:
        undurable = any(self._heard.values()) or any(self._resumed.values())
        return super()._waits() or undurable


class GeoRowsWorker(_GeoWorker):
    """Is sent every row after a new term, and names those that it has and that didn't come.

    Those are gone from the group, with the change of a worker that died. A term that nothing
    was lost with, of a move, isn't a new one here: groups say which term was begun anew.
    """

    def __init__(self, world: World, rank: int, incarnation: int, steps: int) -> None:
        super().__init__(world, rank, incarnation, steps)
        self._begun = dict.fromkeys(GROUPS, 0)
        self._came: dict[int, set[int]] = {group: set() for group in GROUPS}
        self._to_name = set(GROUPS)

    @override
    def _join_answered(self, answer: Answer) -> None:
        group, begun = answer.request.group, answer.outcome.begun
        if begun != self._begun[group]:
            self._begun[group], self._came[group] = begun, set()
            self._to_name.add(group)

    @override
    def _reply_answered(self, answer: Answer, entry: Entry) -> None:
        reply, group = answer.outcome.reply, answer.request.group
        newest = entry.sequence == self.sequence
        if reply is None or not (newest or self.world.lacks(Defect.GEO_EARLY_REPLIES)):
            return
        self._take_in(group, reply)
        self.acked[group] = Acked(None, reply.batch.batch)
        self._came[group].update(reply.rows)
        if group in self._to_name and not reply.more:
            self._to_name.discard(group)
            self._name_rows(group)

    def _name_rows(self, group: int) -> None:
        """Name the rows that every worker was sent, but that the group doesn't have."""
        held = {row for row in self.agreed if row % len(GROUPS) == group}
        rows = tuple(sorted(held - self._came[group]))
        left_out = Defect.GEO_ROWS_NOT_NAMED, Defect.GEO_ROWS_NOT_AGAIN
        if rows and not any(self.world.lacks(each) for each in left_out):
            parts = dict.fromkeys(GROUPS, EMPTY) | {group: Part(heard=rows)}
            self.make(Kind.RESUME, parts)
            self._more.add(group)
            self.world.counts["named_rows"] += len(rows)

    @override
    def _waits(self) -> bool:
        return super()._waits() or bool(self._to_name)
