"""From whole tables to one message a pserver, and back. Sans-io.

Ids are sorted by shard once; a pserver hosts a contiguous block of shards, so
its part of a request is a slice. Every write goes to every pserver, with or
without rows, so that each of them can count this worker's steps.

Shape legend: U = unique ids, D = row width, P = values of a dense table.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.placement import Placement, range_of_shard
from paramfleet_shared.tables.routing import Routed, route
from paramfleet_shared.tables.rowstore import gather_rows, scatter_rows
from paramfleet_shared.wire.message import Message

__all__ = ["Author", "Read", "ReadPlan", "Write", "dense_slice", "write_messages"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Author:
    """Who writes: with a table and a sequence it identifies a push."""

    rank: int
    incarnation: int

    def fields(self) -> dict[str, Any]:
        """Return the header's part."""
        return {"rank": self.rank, "incarnation": self.incarnation}


@dataclass(frozen=True, kw_only=True, slots=True)
class Read:
    """What to pull of one table: rows of ``ids_U``, or a whole dense table of ``size``."""

    table: str
    ids_U: NDArray[np.int64] | None = None
    dim: int = 0
    size: int = 0
    create: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Write:
    """What to push of one table: a gradient (or difference) per row, or a dense one."""

    table: str
    sequence: int
    values: NDArray[np.float32]
    """float32 [U, D], or [P] for a dense table."""
    ids_U: NDArray[np.int64] | None = None
    lr: float = 0.0


def dense_slice(size: int, placement: Placement, server: int) -> slice:
    """Return the part of a dense table of ``size`` values that a pserver hosts."""
    shards = placement.shards_of(server)
    start, _ = range_of_shard(size, placement.num_shards, shards.start)
    _, stop = range_of_shard(size, placement.num_shards, shards.stop - 1)
    return slice(start, stop)


def _slice_of(
    routed: Routed, placement: Placement, server: int
) -> tuple[slice, NDArray[np.int64]]:
    """Return a pserver's slice of routed ids, and its shards' offsets within it."""
    shards = placement.shards_of(server)
    offsets = routed.offsets[shards.start : shards.stop + 1]
    part = slice(int(offsets[0]), int(offsets[-1]))
    return part, offsets - offsets[0]


class ReadPlan:
    """One pull over several tables: its messages, and how the answers go together."""

    def __init__(self, reads: Sequence[Read], placement: Placement) -> None:
        self._reads = reads
        self._placement = placement
        self._routed = [
            None if read.ids_U is None else route(read.ids_U, placement.num_shards)
            for read in reads
        ]

    def messages(self, *, rank: int, min_step: int) -> list[Message]:
        """Return one message a pserver.

        Args:
            rank: Who asks.
            min_step: Sync: the pserver answers once this many steps are applied.
        """
        return [self._message(server, rank, min_step) for server in self._servers]

    def join(self, answers: Sequence[Message]) -> list[NDArray[np.float32]]:
        """Return each read's rows [U, D] in the order asked, or dense values [P]."""
        return [self._join_part(part, answers) for part in range(len(self._reads))]

    @property
    def _servers(self) -> range:
        return range(self._placement.num_servers)

    def _message(self, server: int, rank: int, min_step: int) -> Message:
        parts: list[dict[str, Any]] = []
        tensors: dict[str, NDArray[Any]] = {}
        for index, (read, routed) in enumerate(zip(self._reads, self._routed, strict=True)):
            parts.append({"table": read.table, "create": read.create})
            if routed is not None:
                part, offsets = _slice_of(routed, self._placement, server)
                tensors[f"{index}.ids"] = routed.ids[part]
                tensors[f"{index}.offsets"] = offsets
        fields = {"rank": rank, "min_version": min_step, "parts": parts}
        return Message(fields=fields, tensors=tensors)

    def _join_part(self, index: int, answers: Sequence[Message]) -> NDArray[np.float32]:
        read, routed = self._reads[index], self._routed[index]
        name = f"{index}.rows"
        if routed is None:
            values = np.empty(read.size, np.float32)
            for server in self._servers:
                values[dense_slice(read.size, self._placement, server)] = answers[
                    server
                ].tensors[name]
            return values
        rows = np.empty((len(routed.ids), read.dim), np.float32)
        for server in self._servers:
            part, _ = _slice_of(routed, self._placement, server)
            if part.stop > part.start:
                positions = routed.positions[part].astype(np.int64)
                scatter_rows(rows, positions, answers[server].tensors[name])
        return rows


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
    routes = [None if w.ids_U is None else route(w.ids_U, placement.num_shards) for w in writes]
    messages = []
    for server in range(placement.num_servers):
        parts: list[dict[str, Any]] = []
        tensors: dict[str, NDArray[Any]] = {}
        for index, (write, routed) in enumerate(zip(writes, routes, strict=True)):
            about = {"table": write.table, "sequence": write.sequence, "lr": write.lr}
            parts.append({**about, **part_fields(server, write)})
            if routed is None:
                part = dense_slice(len(write.values), placement, server)
                tensors[f"{index}.{values_name}"] = write.values[part]
                continue
            part, offsets = _slice_of(routed, placement, server)
            tensors[f"{index}.ids"] = routed.ids[part]
            tensors[f"{index}.offsets"] = offsets
            rows = np.empty((part.stop - part.start, write.values.shape[1]), np.float32)
            gather_rows(write.values, routed.positions[part].astype(np.int64), rows)
            tensors[f"{index}.{values_name}"] = rows
        messages.append(Message(fields={**fields, "parts": parts}, tensors=tensors))
    return messages
