"""From whole tables to one message a pserver, and back. Sans-io.

Rows travel sorted by shard, as ``partition`` leaves them; a pserver hosts a contiguous
block of shards, so its part of a request is a slice, and its answer a slice of the
rows. Every write goes to every pserver, with or without rows, so that each of them can
count this worker's steps.

Numbers travel as float32, or narrower where a read or a write says so; then ids are
sorted inside their shard and travel as packed differences where that is smaller.

Shape legend: U = unique ids, D = row width, S = shards, P = values of a dense table.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paramfleet.transport.known_ids import Named
from paramfleet_shared.discovery.placement import Placement, range_of_shard
from paramfleet_shared.net.wire.identity import FIRST_SEQUENCE, ChangeIdentity
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.tables.encoding import (
    Encoded,
    WireDtype,
    decode_rows,
    pack_ids,
    stored_dtype,
)
from paramfleet_shared.tables.rows.batch import RowIds
from paramfleet_shared.tables.rowstore import check_array, scatter_rows
from paramfleet_shared.values.spans import Span, moved

__all__ = [
    "Author",
    "Read",
    "ReadPlan",
    "Write",
    "decoded_part",
    "dense_slice",
    "set_tensors",
    "write_messages",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Author:
    """Who writes, and the one count of its changes. Any thread may ask for the next."""

    rank: int
    incarnation: int
    _sequences: "count[int]" = field(
        default_factory=lambda: count(FIRST_SEQUENCE), init=False, compare=False, repr=False
    )
    _given: list[int] = field(default_factory=list, init=False, compare=False, repr=False)
    """The first sequence, from when it was given."""

    def fields(self) -> dict[str, Any]:
        """Return the header's part."""
        return {"rank": self.rank, "incarnation": self.incarnation}

    @property
    def has_written(self) -> bool:
        """Return whether there was a change."""
        return bool(self._given)

    def change(self) -> dict[str, Any]:
        """Return the header's part of a new change: it goes to every pserver."""
        sequence = next(self._sequences)
        if sequence == FIRST_SEQUENCE:
            self._given.append(sequence)
        return ChangeIdentity(self.rank, self.incarnation, sequence).fields()


@dataclass(frozen=True, kw_only=True, slots=True)
class Read:
    """What to pull of one table: ``rows`` of it, or a whole dense table of ``size``."""

    table: str
    rows: RowIds | None = None
    dim: int = 0
    size: int = 0
    create: bool = False
    wire: WireDtype = "float32"
    """How the answer travels."""
    piece: slice | None = None
    """Of a dense table: which values of each pserver's range, as far as it has them; None
    for all."""
    order: NDArray[np.int64] | None = None
    """Where each of ``rows`` was asked for, int64 [U], if they were sorted inside their
    shard since; None if they stand as they were asked for."""
    keep: int | None = None
    """By which number a push will name the ids; None if none will."""
    as_pulled: tuple[str, int] | None = None
    """Another table's pull of the same rows, by its ``keep``: their ids don't travel again."""
    named: Named | None = None
    """The same rows by the numbers that the pservers know them by."""
    counted: bool = False
    """Whether what copies of rows with an accessor need comes behind their values; ``dim``
    counts that, too."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Write:
    """What to push of one table: a gradient (or difference) per row, or a dense one."""

    table: str
    values: NDArray[np.float32]
    """float32 [U, D] in the order of ``rows``, or [P] for a dense table."""
    rows: RowIds | None = None
    lr: float = 0.0
    now: int = 0
    """When it is, as the rows keep it: a day, an hour or a step; 0 if they don't."""
    wire: WireDtype = "float32"
    """How it travels."""
    encoded: Sequence[Encoded] | None = None
    """What travels instead of ``values`` if that isn't float32: one for each pserver. The
    rows are sorted inside their shard then."""
    pulled: int | None = None
    """The pull that had the same rows, so that their ids needn't travel again."""
    marks: NDArray[np.uint8] | None = None
    """What an exchange says of each row beside its numbers. [U]"""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """Those of the table's rule that differ in this step from the declared ones."""
    spans: Sequence[Span] | None = None
    """Which values of a dense table have a gradient; None for all."""
    set_before: tuple[NDArray[np.int64], NDArray[np.float32]] | None = None
    """Places and values of a dense table that are overwritten before."""

    def marks_of(self, part: slice) -> NDArray[np.uint8] | None:
        """Return what is said of some rows."""
        return None if self.marks is None else self.marks[part]


def dense_slice(size: int, placement: Placement, server: int) -> slice:
    """Return the part of a dense table of ``size`` values that a pserver hosts."""
    shards = placement.shards_of(server)
    start, _ = range_of_shard(size, placement.num_shards, shards.start)
    _, stop = range_of_shard(size, placement.num_shards, shards.stop - 1)
    return slice(start, stop)


_Part = tuple[list[dict[str, Any]], dict[str, NDArray[Any]]]
"""A pserver's part of a pull: the parts of tables, and their tensors by name."""


class ReadPlan:
    """One pull over several tables: its messages, and how the answers go together."""

    def __init__(self, reads: Sequence[Read], placement: Placement) -> None:
        self._placement = placement
        self.reads: list[Read] = []
        """What is pulled, as it travels."""
        for read in reads:
            rows, order = read.rows, read.order
            if rows is not None and order is None and read.wire != "float32":
                rows, order = rows.sorted()
            moved = rows is not read.rows
            self.reads.append(replace(read, rows=rows, order=order) if moved else read)
        self._behind: list[_Part] = []
        """The pservers' parts behind a write: a step's reads may be those of the last."""

    def messages(
        self,
        *,
        rank: int,
        min_step: int,
        incarnation: int | None = None,
        version: int | None = None,
    ) -> list[Message]:
        """Return one message a pserver.

        Args:
            rank: Who asks.
            min_step: Sync: the pserver answers once this many steps are applied.
            incarnation: Whose push may name the rows that are kept; needed where some are.
            version: Sync: steps that the values have; None for all that are applied.
        """
        asker = {"rank": rank}
        if version is not None:
            asker["version"] = version
        if incarnation is not None and any(read.keep is not None for read in self.reads):
            asker["incarnation"] = incarnation
        return [
            Message(fields={**asker, "min_version": min_step, "parts": parts}, tensors=tensors)
            for parts, tensors in map(self._part, self._servers)
        ]

    def with_ids(self) -> "ReadPlan":
        """Return the same plan, with the ids of every part."""
        reads = [replace(read, as_pulled=None, named=None) for read in self.reads]
        return ReadPlan(reads, self._placement)

    def behind(self, writes: Sequence[Message]) -> list[Message]:
        """Return one message a pserver that writes, and reads what has become of it."""
        if not self._behind:
            for parts, tensors in map(self._part, self._servers):
                of_pull = {f"pull.{name}": tensor for name, tensor in tensors.items()}
                self._behind.append((parts, of_pull))
        return [
            Message(
                fields={**write.fields, "pull": parts}, tensors={**write.tensors, **tensors}
            )
            for write, (parts, tensors) in zip(writes, self._behind, strict=True)
        ]

    def named(self) -> list[tuple[str, Named]]:
        """Return by which numbers rows are asked for, with their tables."""
        return [(read.table, read.named) for read in self.reads if read.named is not None]

    def join(self, answers: Sequence[Message]) -> list[NDArray[np.float32]]:
        """Return each read's rows [U, D] in the order asked, or dense values [P].

        Of one pserver they are the answer's own tensors.

        Raises:
            RowShapeError: if an answer isn't what was asked for.
        """
        return [
            self._join_part(
                read, [decoded_part(answer, index, read.wire) for answer in answers]
            )
            for index, read in enumerate(self.reads)
        ]

    def put(self, answers: Sequence[Message], into: Mapping[str, NDArray[np.float32]]) -> None:
        """Put the values of pieces of dense tables in their places.

        Args:
            answers: One of each pserver.
            into: By table float32 [P].

        Raises:
            RowShapeError: if an answer isn't what was asked for.
        """
        for index, read in enumerate(self.reads):
            for server, answer in enumerate(answers):
                piece = self._piece_of(read, server)
                start = dense_slice(read.size, self._placement, server).start
                values = into[read.table][start + piece.start : start + piece.stop]
                encoded = _encoded_part(answer, index)
                expected = np.dtype(stored_dtype(read.wire)).type
                check_array(encoded.rows, expected, values.shape, table=read.table)
                decode_rows(encoded, read.wire, out=values)

    def _piece_of(self, read: Read, server: int) -> slice:
        """Return which values of a pserver's range are read."""
        where = dense_slice(read.size, self._placement, server)
        length = where.stop - where.start
        piece = slice(0, length) if read.piece is None else read.piece
        return slice(min(piece.start, length), min(piece.stop, length))

    @property
    def _servers(self) -> range:
        return range(self._placement.num_servers)

    def _part(self, server: int) -> _Part:
        """Return what one pserver is asked for."""
        parts: list[dict[str, Any]] = []
        tensors: dict[str, NDArray[Any]] = {}
        for index, read in enumerate(self.reads):
            about = {"table": read.table, "create": read.create, **_wire_field(read.wire)}
            if read.counted:
                about["counted"] = True
            if read.rows is not None:
                if read.as_pulled is not None:
                    of, pull = read.as_pulled
                    about |= {"ids": "pulled", "of": of, "pulled": pull}
                elif read.named is not None:
                    _, offsets = read.rows.of(self._placement.shards_of(server))
                    about |= _put_named(tensors, index, read.named, server, offsets)
                else:
                    part, offsets = read.rows.of(self._placement.shards_of(server))
                    ids, pack = read.rows.ids[part], read.wire != "float32"
                    about |= _put_ids(tensors, index, ids, offsets, pack=pack)
                if read.keep is not None:
                    about["keep"] = read.keep
            elif read.piece is not None:
                where = self._piece_of(read, server)
                about |= {"start": where.start, "stop": where.stop}
            parts.append(about)
        return parts, tensors

    @staticmethod
    def _join_part(read: Read, parts: list[NDArray[np.float32]]) -> NDArray[np.float32]:
        whole = parts[0] if len(parts) == 1 else np.concatenate(parts)
        shape = (read.size,) if read.rows is None else (len(read.rows.ids), read.dim)
        check_array(whole, np.float32, shape, table=read.table)
        if read.order is None:
            return whole
        asked = np.empty_like(whole)
        scatter_rows(asked, read.order, whole)
        return asked


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
    sames = [_same_rows(writes, index) for index in range(len(writes))]
    for server in range(placement.num_servers):
        parts: list[dict[str, Any]] = []
        tensors: dict[str, NDArray[Any]] = {}
        for index, write in enumerate(writes):
            about: dict[str, Any] = {"table": write.table, "lr": write.lr}
            about |= _facts_of(write)
            about |= _wire_field(write.wire)
            if write.rows is None:
                part = dense_slice(len(write.values), placement, server)
            else:
                part, offsets = write.rows.of(placement.shards_of(server))
                about["unique"] = True
                if write.pulled is not None:
                    about |= {"ids": "pulled", "pulled": write.pulled}
                elif sames[index] is not None:
                    about |= {"ids": "same", "as": sames[index]}
                else:
                    ids, pack = write.rows.ids[part], write.wire != "float32"
                    about |= _put_ids(tensors, index, ids, offsets, pack=pack)
            encoded = Encoded(write.values[part])
            if write.encoded is not None:
                encoded = write.encoded[server]
            tensors[f"{index}.{values_name}"] = encoded.rows
            beside: dict[str, NDArray[Any] | None] = {
                "scales": encoded.scales,
                "marks": write.marks_of(part),
            }
            if write.rows is None:
                beside |= _dense_tensors(write, part)
            tensors |= {f"{index}.{k}": each for k, each in beside.items() if each is not None}
            parts.append({**about, **part_fields(server, write)})
        messages.append(Message(fields={**fields, "parts": parts}, tensors=tensors))
    return messages


def _facts_of(write: Write) -> dict[str, Any]:
    """Return what is said of a write where it isn't as usual."""
    about: dict[str, Any] = {}
    if write.now:
        about["now"] = write.now
    if write.numbers:
        about["numbers"] = dict(write.numbers)
    if write.spans is not None and not write.spans:
        about["only_sets"] = True
    return about


def _dense_tensors(write: Write, part: slice) -> dict[str, NDArray[Any] | None]:
    """Return what is said of some values of a dense table beside their gradients."""
    found: dict[str, NDArray[Any] | None] = {}
    if write.spans is not None:
        spans = moved(write.spans, (part.start, part.stop))
        found["spans"] = np.array(spans, np.int64).reshape(-1, 2)
    if write.set_before is not None:
        found |= set_tensors(write.set_before, part)
    return found


def set_tensors(
    set_values: tuple[NDArray[np.int64], NDArray[np.float32]], part: slice
) -> dict[str, NDArray[Any]]:
    """Return the tensors that overwrite some of a dense table's values.

    Args:
        set_values: Places in the table, rising, and values.
        part: The values that a pserver holds.
    """
    places, values = set_values
    first, stop = np.searchsorted(places, [part.start, part.stop])
    return {"set_at": places[first:stop] - part.start, "set_to": values[first:stop]}


def decoded_part(answer: Message, index: int, wire: WireDtype) -> NDArray[np.float32]:
    """Return the rows [n, D] or values [n] of part ``index`` of an answer."""
    return decode_rows(_encoded_part(answer, index), wire)


def _encoded_part(answer: Message, index: int) -> Encoded:
    return Encoded(answer.tensors[f"{index}.rows"], answer.tensors.get(f"{index}.scales"))


def _same_rows(writes: Sequence[Write], index: int) -> int | None:
    """Return an earlier write of the same rows whose ids travel: they needn't twice."""
    rows = writes[index].rows
    if rows is None or writes[index].wire == "float32" or not len(rows.ids):
        return None
    for other, write in enumerate(writes[:index]):
        if write.rows is None or write.pulled is not None or write.wire == "float32":
            continue
        if _are_same(write.rows, rows):
            return other
    return None


def _are_same(one: RowIds, other: RowIds) -> bool:
    return np.array_equal(one.ids, other.ids) and np.array_equal(one.offsets, other.offsets)


def _wire_field(wire: WireDtype) -> dict[str, str]:
    return {} if wire == "float32" else {"wire": wire}


def _put_ids(
    tensors: dict[str, NDArray[Any]],
    index: int,
    ids: NDArray[np.int64],
    offsets: NDArray[np.int64],
    *,
    pack: bool,
) -> dict[str, str]:
    """Add the ids of a part, packed if that is smaller; return the part's fields for it."""
    packed = pack_ids(ids, offsets) if pack else None
    tensors[f"{index}.ids"] = ids if packed is None else packed
    tensors[f"{index}.offsets"] = offsets
    return {} if packed is None else {"ids": "delta"}


def _put_named(
    tensors: dict[str, NDArray[Any]],
    index: int,
    named: Named,
    server: int,
    offsets: NDArray[np.int64],
) -> dict[str, Any]:
    """Add the rows of a part, by numbers where they have some; return its fields for it."""
    numbers, known, others, base = named.parts[server]
    packed, packed_others = pack_ids(numbers, known), pack_ids(others, offsets - known)
    tensors[f"{index}.numbers"] = numbers if packed is None else packed
    tensors[f"{index}.ids"] = others if packed_others is None else packed_others
    tensors[f"{index}.known"], tensors[f"{index}.offsets"] = known, offsets
    return {"ids": "known", "book": named.book} | ({} if base is None else {"base": base})
