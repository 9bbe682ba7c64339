"""Recorders and sharers of a snapshot as they come, message after message."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paramfleet_pserver.commands.snapshot.arrays import array_of, rows_of
from paramfleet_pserver.commands.snapshot.rows import TableReader
from paramfleet_pserver.core.geo.recorder import GeoRecorder, Waiting
from paramfleet_pserver.core.geo.sharers import Periods, Sharers
from paramfleet_pserver.requests.fields import Fields
from paramfleet_pserver.tables.table import SparseTable
from paramfleet_shared.net.wire.message import MalformedMessageError, Message
from paramfleet_shared.values.ids import Rank

__all__ = ["RecorderReader"]

_Kept = list[tuple[GeoRecorder, Sharers]]


@dataclass(slots=True)
class _Worker:
    """What has come of one worker's part of a block."""

    rank: Rank
    num_places: int
    """Of the block."""
    batch: int
    sent: tuple[tuple[int, int], ...]
    counts: tuple[int, int, int]
    queue: list[NDArray[np.uint32]] = field(default_factory=list)
    marks: list[NDArray[np.uint32]] = field(default_factory=list)
    periods: list[NDArray[np.uint32]] = field(default_factory=list)
    changes: list[NDArray[np.uint8]] = field(default_factory=list)

    def put(self, recorder: GeoRecorder, sharers: Sharers) -> None:
        """Let a block's recorder and sharers have it.

        Raises:
            ValueError: if it isn't what one worker can have.
        """
        queue, marks = _joined(self.queue, np.uint32), _joined(self.marks, np.uint32)
        recorder.restore(Waiting(self.rank, self.batch, queue, marks, self.sent))
        periods, changes = _joined(self.periods, np.uint32), _joined(self.changes, np.uint8)
        sharers.restore(Periods(self.rank, *self.counts, periods, changes))


class RecorderReader:
    """Makes recorders of a store's tables, whose rows have come.

    Args:
        tables: They.
    """

    def __init__(self, tables: TableReader) -> None:
        self._tables = tables
        self._kept: dict[str, tuple[SparseTable, _Kept]] = {}
        self._worker: _Worker | None = None
        """Who comes now."""
        self._at: tuple[str, int] = "", 0
        """Of which table's block."""

    def recorder(self, message: Message) -> None:
        """Make a recorder of a block, after those of the blocks before.

        Raises:
            MalformedMessageError: if a field or tensor is wrong.
            ValueError: if what came before isn't what a worker can have.
        """
        self._end_worker()
        fields = Fields(message.fields, where="recorder")
        table, _ = self._tables.block_of(fields)
        _, kept = self._kept.setdefault(table.spec.name, (table, []))
        if fields.integer("block") != len(kept):
            raise MalformedMessageError(where="recorder", rule="comes out of order")
        sharers = Sharers(is_used=fields.flag("shares"))
        recorder = GeoRecorder(num_workers=0, last_batch=fields.integer("last"))
        kept.append((recorder, sharers))
        self._at = table.spec.name, len(kept) - 1

    def waiting(self, message: Message) -> None:
        """Begin with another worker.

        Raises:
            MalformedMessageError: if a field or tensor is wrong.
            ValueError: if what came before isn't what a worker can have.
        """
        self._end_worker()
        fields = Fields(message.fields, where="waiting")
        table, block = self._tables.block_of(fields)
        if (table.spec.name, fields.integer("block")) != self._at:
            raise MalformedMessageError(where="waiting", rule="must follow its recorder")
        sent = tuple((batch, end) for batch, end in rows_of(message, "sent", 2))
        ((step, ending, period),) = array_of(message, "counts", "int64", (1, 3)).tolist()
        self._worker = _Worker(
            Rank(fields.integer("rank")),
            block.rows.num_slots,
            fields.integer("batch"),
            sent,
            (step, ending, period),
        )

    def queue(self, message: Message) -> None:
        """Note rows that wait for the worker, the longest-waiting first.

        Raises:
            MalformedMessageError: if a field or tensor is wrong.
        """
        worker = self._worker_of(message, "queue", lambda one: one.queue)
        queue = array_of(message, "queue", "int64", (None,))
        marks = array_of(message, "marks", "int64", queue.shape)
        if len(queue) and not 0 <= int(queue.min()) <= int(queue.max()) < worker.num_places:
            raise MalformedMessageError(where="tensor 'queue'", rule="must have places of rows")
        worker.queue.append(queue.astype(np.uint32))
        worker.marks.append(marks.astype(np.uint32))

    def periods(self, message: Message) -> None:
        """Note when others changed rows, by place.

        Raises:
            MalformedMessageError: if a field or tensor is wrong.
        """
        worker = self._worker_of(message, "periods", lambda one: one.periods)
        periods = array_of(message, "periods", "int64", (None,)).astype(np.uint32)
        worker.periods.append(periods)
        worker.changes.append(array_of(message, "changes", "uint8", periods.shape).copy())

    def end(self) -> Iterator[tuple[SparseTable, _Kept]]:
        """Yield all recorders of each table that has some.

        Raises:
            MalformedMessageError: if a block has none.
            ValueError: if what came before isn't what a worker can have.
        """
        self._end_worker()
        for table, kept in self._kept.values():
            if len(kept) != len(table.blocks):
                where = f"table {table.spec.name!r}"
                raise MalformedMessageError(where=where, rule="lacks recorders")
            yield table, kept

    def _worker_of(
        self,
        message: Message,
        where: str,
        parts_of: "Callable[[_Worker], list[NDArray[np.uint32]]]",
    ) -> _Worker:
        """Return who a part belongs to, which is the next one of its kind.

        Raises:
            MalformedMessageError: if it isn't.
        """
        fields, worker = Fields(message.fields, where=where), self._worker
        at = fields.text("table"), fields.integer("block"), fields.integer("rank")
        if worker is None or at != (*self._at, worker.rank):
            raise MalformedMessageError(where=where, rule="must follow its worker")
        if fields.integer("start") != sum(map(len, parts_of(worker))):
            raise MalformedMessageError(where=where, rule="comes out of order")
        return worker

    def _end_worker(self) -> None:
        if self._worker is not None:
            _, kept = self._kept[self._at[0]]
            self._worker.put(*kept[-1])
            self._worker = None


def _joined(parts: list[NDArray[Any]], dtype: type[np.generic]) -> NDArray[Any]:
    return np.concatenate([np.empty(0, dtype), *parts])
