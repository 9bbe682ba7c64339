"""A group of a job in GEO: rows, and a recorder for each worker."""

from collections.abc import Iterable
from typing import Self

from tests.recovery.groups.tables import TableState
from tests.recovery.protocol import Acked, Command, Kind, Reply
from typing_extensions import override

ROWS_OF_A_REPLY = 2
OPEN_REPLIES = 4
REPLIES_OF_A_TERM = 1000  # more than a group gives


class Recorder:
    """Which rows a worker hasn't received, and the replies that it hasn't acknowledged."""

    def __init__(self, batch: int) -> None:
        self.batch = batch
        self.waiting: dict[int, int] = {}  # row to the first reply that holds its newest change
        self.open: dict[int, tuple[int, ...]] = {}

    def copied(self) -> "Recorder":
        """Return a copy."""
        image = Recorder(self.batch)
        image.waiting, image.open = dict(self.waiting), dict(self.open)
        return image

    def note(self, rows: Iterable[int]) -> None:
        """Let rows wait; their newest change is in the next reply at the earliest."""
        for row in rows:
            self.waiting[row] = self.batch + 1

    def acknowledge(self, batch: int) -> None:
        """Forget what the worker received with a reply."""
        if batch not in self.open:
            return
        for row in self.open[batch]:
            if self.waiting.get(row, batch + 1) <= batch:
                del self.waiting[row]
        self.open = {number: rows for number, rows in self.open.items() if number > batch}

    def next_rows(self) -> tuple[int, ...]:
        """Begin a reply, and return its rows."""
        self.batch += 1
        rows = tuple(self.waiting)[:ROWS_OF_A_REPLY]
        self.open[self.batch] = rows
        while len(self.open) > OPEN_REPLIES:
            del self.open[min(self.open)]
        return rows


class GeoState(TableState):
    """Rows with recorders."""

    def __init__(self, group: int) -> None:
        super().__init__(group)
        self.recorders: dict[int, Recorder] = {}

    @override
    def copied(self) -> Self:
        image = super().copied()
        image.recorders = {rank: each.copied() for rank, each in self.recorders.items()}
        return image

    @override
    def _begin_term(self) -> None:
        for recorder in self.recorders.values():
            recorder.open.clear()

    @override
    def _join(self, rank: int, incarnation: int) -> None:
        super()._join(rank, incarnation)
        last = max((each.batch for each in self.recorders.values()), default=0)
        self.recorders[rank] = Recorder(last)
        self.recorders[rank].note(self.rows)

    @override
    def _execute(self, command: Command) -> Reply | None:
        if command.kind is Kind.EXCHANGE:
            self._add(command.part)
            for rank, recorder in self.recorders.items():
                if rank != command.rank:
                    recorder.note(command.part.deltas)
        elif command.kind is Kind.RESUME:
            self.recorders[command.rank].note(command.part.heard)
        elif command.kind is not Kind.LISTEN:
            return super()._execute(command)
        return self._reply(command)

    def _reply(self, command: Command) -> Reply:
        recorder = self.recorders[command.rank]
        if command.acked.term in {self.term, None}:
            recorder.acknowledge(command.acked.batch)
        rows = recorder.next_rows()
        return Reply(
            {row: self.value(row) for row in rows},
            Acked(self.term, recorder.batch),
            more=len(recorder.waiting) > len(rows),
        )


class GeoRowsState(GeoState):
    """Sends every row again after a new term; numbers of replies never come again."""

    def __init__(self, group: int, *, numbers_repeat: bool, sends_again: bool) -> None:
        super().__init__(group)
        self._numbers_repeat = numbers_repeat
        self._sends_again = sends_again

    @override
    def _begin_term(self) -> None:
        super()._begin_term()
        for recorder in self.recorders.values():
            if not self._numbers_repeat:
                recorder.batch = max(recorder.batch, self.term * REPLIES_OF_A_TERM)
            if self._sends_again:
                recorder.note(self.rows)
