"""From whole tables to one message a pserver, and back. Sans-io.

Rows travel sorted by shard, as ``partition`` leaves them; a pserver hosts a contiguous
block of shards, so its part of a request is a slice, and its answer a slice of the
rows. Every write goes to every pserver, with or without rows, so that each of them can
count this worker's steps.

Shape legend: U = unique ids, D = row width, S = shards, P = values of a dense table.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.placement import Placement, range_of_shard
from paramfleet_shared.tables.rowstore import check_array
from paramfleet_shared.wire.message import Message

__all__ = ["Author", "Read", "ReadPlan", "Rows", "Write", "dense_slice", "write_messages"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Author:
    """Who writes: with a table and a sequence it identifies a push."""

    rank: int
    incarnation: int

    def fields(self) -> dict[str, Any]:
        """Return the header's part."""
        return {"rank": self.rank, "incarnation": self.incarnation}


class Rows(NamedTuple):
    """Which rows of a sparse table: each id once, sorted by shard."""

    ids_U: NDArray[np.int64]
    offsets: NDArray[np.int64]
    """int64 [S + 1]: the shards' bounds in ``ids_U``."""

    def of(self, placement: Placement, server: int) -> tuple[slice, NDArray[np.int64]]:
        """Return a pserver's part of the ids, and its shards' bounds within it."""
        shards = placement.shards_of(server)
        bounds = self.offsets[shards.start : shards.stop + 1]
        return slice(int(bounds[0]), int(bounds[-1])), bounds - bounds[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class Read:
    """What to pull of one table: ``rows`` of it, or a whole dense table of ``size``."""

    table: str
    rows: Rows | None = None
    dim: int = 0
    size: int = 0
    create: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Write:
    """What to push of one table: a gradient (or difference) per row, or a dense one."""

    table: str
    sequence: int
    values: NDArray[np.float32]
    """float32 [U, D] in the order of ``rows``, or [P] for a dense table."""
    rows: Rows | None = None
    lr: float = 0.0


def dense_slice(size: int, placement: Placement, server: int) -> slice:
    """Return the part of a dense table of ``size`` values that a pserver hosts."""
    shards = placement.shards_of(server)
    start, _ = range_of_shard(size, placement.num_shards, shards.start)
    _, stop = range_of_shard(size, placement.num_shards, shards.stop - 1)
    return slice(start, stop)


class ReadPlan:
    """One pull over several tables: its messages, and how the answers go together."""

    def __init__(self, reads: Sequence[Read], placement: Placement) -> None:
        self._reads = reads
        self._placement = placement

    def messages(self, *, rank: int, min_step: int) -> list[Message]:
        """Return one message a pserver.

        Args:
            rank: Who asks.
            min_step: Sync: the pserver answers once this many steps are applied.
        """
        return [self._message(server, rank, min_step) for server in self._servers]

    def join(self, answers: Sequence[Message]) -> list[NDArray[np.float32]]:
        """Return each read's rows [U, D] in the order asked, or dense values [P].

        Of one pserver they are the answer's own tensors.

        Raises:
            RowShapeError: if an answer isn't what was asked for.
        """
        return [
            self._join_part(read, [answer.tensors[f"{index}.rows"] for answer in answers])
            for index, read in enumerate(self._reads)
        ]

    @property
    def _servers(self) -> range:
        return range(self._placement.num_servers)

    def _message(self, server: int, rank: int, min_step: int) -> Message:
        parts: list[dict[str, Any]] = []
        tensors: dict[str, NDArray[Any]] = {}
        for index, read in enumerate(self._reads):
            parts.append({"table": read.table, "create": read.create})
            if read.rows is not None:
                part, offsets = read.rows.of(self._placement, server)
                tensors[f"{index}.ids"] = read.rows.ids_U[part]
                tensors[f"{index}.offsets"] = offsets
        fields = {"rank": rank, "min_version": min_step, "parts": parts}
        return Message(fields=fields, tensors=tensors)

    @staticmethod
    def _join_part(read: Read, parts: list[NDArray[np.float32]]) -> NDArray[np.float32]:
        whole = parts[0] if len(parts) == 1 else np.concatenate(parts)
        shape = (read.size,) if read.rows is None else (len(read.rows.ids_U), read.dim)
        check_array(whole, np.float32, shape, table=read.table)
        return whole


def write_messages(
    writes: Sequence[Write],
    placement: Placement,
    fields: Mapping[str, Any],
    *,
    values_name: str,
    part_fields: Callable[[int, Write], Mapping[str, Any]] = lambda _server, _write: {},
) -> list[Message]:
    """Return one message a pserver for a push or an exchange.

    Args:
        writes: Tables and what is written to each.
        placement: Who hosts what.
        fields: The header besides ``parts``.
        values_name: ``grads`` or ``deltas``, as the operation calls them.
        part_fields: More about one part of one pserver's message.
    """
    messages = []
    for server in range(placement.num_servers):
        parts: list[dict[str, Any]] = []
        tensors: dict[str, NDArray[Any]] = {}
        for index, write in enumerate(writes):
            about = {"table": write.table, "sequence": write.sequence, "lr": write.lr}
            if write.rows is None:
                part = dense_slice(len(write.values), placement, server)
            else:
                part, offsets = write.rows.of(placement, server)
                tensors[f"{index}.ids"] = write.rows.ids_U[part]
                tensors[f"{index}.offsets"] = offsets
                about["unique"] = True
            tensors[f"{index}.{values_name}"] = write.values[part]
            parts.append({**about, **part_fields(server, write)})
        messages.append(Message(fields={**fields, "parts": parts}, tensors=tensors))
    return messages
