"""Rows that changes are added to, and in async the staleness gate."""

from collections import Counter
from typing import Self

from tests.recovery.groups.gate import Gate
from tests.recovery.groups.state import GroupState
from tests.recovery.protocol import FIRST_ASSIGNED, Command, Kind, Part, Reply, first_value
from typing_extensions import override


class TableState(GroupState):
    """Rows, and the first values that rank 0 assigns; ``sums`` is for the checks."""

    def __init__(self, group: int) -> None:
        super().__init__(group)
        self.rows: dict[int, int] = {}
        self.assigned = 0
        self.updates = 0
        self.gate = Gate()
        self.sums: Counter[int] = Counter()

    @override
    def copied(self) -> Self:
        image = super().copied()
        image.rows = dict(self.rows)
        image.gate = self.gate.copied()
        image.sums = self.sums.copy()
        return image

    def value(self, row: int) -> int:
        """Return a row's value; one that doesn't exist yet has its first value."""
        return self.rows.get(row, first_value(row))

    @override
    def _join(self, rank: int, incarnation: int) -> None:
        super()._join(rank, incarnation)
        self.gate.join(rank)

    @override
    def _execute(self, command: Command) -> Reply | None:
        if command.kind is Kind.ASSIGN:
            if not self.assigned and not self.updates:  # only if the table is new
                self.assigned = FIRST_ASSIGNED
        elif command.kind is Kind.PUSH:
            self._add(command.part)
            self.gate.finish(command.rank, command.part.first, command.part.step)
        elif command.kind in {Kind.BEGIN, Kind.VOID}:
            if command.part.step >= 0:
                self.gate.finish(command.rank, command.part.first, command.part.step)
        elif command.kind is Kind.LEAVE:
            self.gate.leave(command.rank)
        return None

    def _add(self, part: Part) -> None:
        self.updates += 1
        for row, delta in part.deltas.items():
            self.rows[row] = self.value(row) + delta
            self.sums[row] += delta
