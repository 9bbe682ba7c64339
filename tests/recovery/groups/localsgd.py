"""A group of a job in LocalSGD: dense values, to which each worker adds its share."""

from tests.recovery.groups.tables import TableState
from tests.recovery.protocol import Command, Kind, Part, Reply, rows_of
from typing_extensions import override


class LocalSgdState(TableState):
    """Answers hold all values, so that nothing is noted for a worker."""

    def whole(self) -> Reply:
        """Return all values."""
        return Reply({row: self.value(row) for row in rows_of(self.group)})

    @override
    def _execute(self, command: Command) -> Reply | None:
        if command.kind is not Kind.EXCHANGE:
            return super()._execute(command)
        workers = len(self.windows)
        deltas = command.part.deltas.items()
        self._add(Part({row: delta // workers for row, delta in deltas}))
        return self.whole()
