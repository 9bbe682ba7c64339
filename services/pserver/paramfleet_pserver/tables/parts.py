"""What a worker sends to a table, or asks of it, and how its owner carries that out."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_pserver.core.pacing import Pace, RateGuard, Stride
from paramfleet_shared.tables.codecs.catalog import CODECS
from paramfleet_shared.tables.dense import DenseRange, pieces_of
from paramfleet_shared.tables.encoding import (
    DENSE_WIDTH,
    Encoded,
    WireDtype,
    decode_rows,
    encode_rows,
)
from paramfleet_shared.tables.sparse import SparseShard
from paramfleet_shared.tables.spec import OptimizerSpec
from paramfleet_shared.values.spans import Span, union

__all__ = [
    "DensePart",
    "Guarded",
    "Piece",
    "SetValues",
    "SparsePart",
    "Stepping",
    "Update",
    "encode_values",
    "is_counted",
    "is_stepping",
    "numbers_of",
    "pull_rows",
    "push_guarded_rows",
    "push_guarded_values",
    "push_rows",
    "push_values",
    "read_values",
    "square_of",
    "write_rows",
]

CODED_VALUES = 1 << 15
"""Floats that are read and then encoded at a time: they stay near."""


class SparsePart(NamedTuple):
    """One worker's rows of a sparse table."""

    ids: NDArray[np.int64]
    """Sorted by shard. [n]"""
    offsets: NDArray[np.int64]
    """Bounds of this server's shards in ``ids``. [shards + 1]"""
    rows: Encoded
    """[n, D], as they travel."""
    wire: WireDtype = "float32"
    """How they do."""
    scale: float = 1.0
    """What the rows are multiplied by."""
    unique: bool = False
    """Whether the worker promises that the ids differ."""
    weights: NDArray[np.float32] | None = None
    """What each row is multiplied by beside ``scale``; None for 1. [n]"""
    slots: NDArray[np.int64] | None = None
    """Where the rows were before the numbers are added, -1 for new ones; None if nobody has
    looked. They hold among an owner's jobs of one change, and no longer. [n]"""
    now: int = 0
    """When it was, as the rows keep it: the worker's day, hour or step; 0 if they don't."""
    marks: NDArray[np.uint8] | None = None
    """In GEO, what a worker says of each row (``MARK_GROWN``); nothing is added of ids that
    have none. None for 0. [n]"""

    @property
    def numbers(self) -> Encoded:
        """Return the numbers, whatever the kind of table."""
        return self.rows

    def within(self, shards: range) -> slice:
        """Return where the rows of neighbouring shards lie."""
        return slice(int(self.offsets[shards.start]), int(self.offsets[shards.stop]))

    def part(self, where: slice) -> "SparsePart":
        """Return some of the rows, as views; itself if these are all."""
        if where.start == 0 and where.stop == len(self.ids):
            return self
        weights = None if self.weights is None else self.weights[where]
        slots = None if self.slots is None else self.slots[where]
        marks = None if self.marks is None else self.marks[where]
        return self._replace(
            ids=self.ids[where],
            rows=self.rows.part(where),
            weights=weights,
            slots=slots,
            marks=marks,
        )

    def scaled(self, scale: float) -> "SparsePart":
        """Return the rows multiplied by another ``scale``."""
        return self._replace(scale=scale)


@dataclass(slots=True)
class Update:
    """One update of a dense table's range whose numbers come in pieces.

    Each piece is applied when it comes. What holds for all of them is found out with the
    first one: its number, and how far to step.
    """

    source: tuple[int, int]
    """The worker's incarnation, and the sequence of the first piece it sent."""
    square: float
    """The squared length of all numbers together."""
    number: int = 0
    """Among the table's updates, from 1; 0 as long as it hasn't begun."""
    first: bool | None = None
    """Whether the range hadn't stepped before. The range's owner sets it."""
    stride: Stride | None = None
    """How far to step, where that is guarded. The range's owner sets it."""


class Piece(NamedTuple):
    """What a piece of a dense table's range is a piece of, as its worker says."""

    first: int
    """The sequence of the update's first piece."""
    square: float
    """The squared length of all the update's numbers here."""


class SetValues(NamedTuple):
    """Values of a dense table that a worker's program has changed itself, not its optimizer."""

    places: NDArray[np.int64]
    """Of the values in this server's range, rising. [k]"""
    values: NDArray[np.float32]
    """[k]"""


class DensePart(NamedTuple):
    """One worker's numbers for this server's range of a dense table, or for a piece of it."""

    values: Encoded
    """[length of the range or the piece], as they travel."""
    wire: WireDtype = "float32"
    """How they do."""
    scale: float = 1.0
    """What the values are multiplied by."""
    at: int = 0
    """The first one's place in the range."""
    piece: Piece | None = None
    """What it is a piece of; None for the whole range."""
    update: Update | None = None
    """The same as the table knows it, from when the piece is applied."""
    spans: tuple[Span, ...] | None = None
    """Which values of the range have a gradient; None for all of the part. No others step."""
    set_before: SetValues | None = None
    """What the range's values are overwritten with before the update."""
    is_update: bool = True
    """Whether values of the table have a gradient, here or on another server: else the part
    only sets some."""

    @property
    def numbers(self) -> Encoded:
        """Return the numbers, whatever the kind of table."""
        return self.values

    @property
    def stepping(self) -> tuple[Span, ...]:
        """Return which values of the range have a gradient."""
        if not self.is_update:
            return ()
        if self.spans is not None:
            return self.spans
        where = self.where
        return union([(where.start, where.stop)])

    @property
    def where(self) -> slice:
        """Return which values of the range it is for."""
        return slice(self.at, self.at + len(self.values.rows))

    def part(self, piece: slice) -> "DensePart":
        """Return some of the numbers, as views."""
        return self._replace(values=_part_of(self.values, piece))

    def scaled(self, scale: float) -> "DensePart":
        """Return the values multiplied by another ``scale``."""
        return self._replace(scale=scale)


def is_counted(part: SparsePart | DensePart) -> bool:
    """Return whether a part counts as a push of its table: of several pieces the first."""
    return not isinstance(part, DensePart) or not part.at


def is_stepping(part: SparsePart | DensePart) -> bool:
    """Return whether a part makes an update, and doesn't only set values."""
    return not isinstance(part, DensePart) or part.is_update


def pull_rows(block: SparseShard, part: SparsePart, *, create: bool) -> None:
    """Read rows into ``part.rows``, as they are to travel.

    Where there is room for what copies of rows with an accessor need, that comes, too.
    """
    if part.rows.rows.shape[1] != block.spec.dim:
        encode_rows(block.read_counted(part.ids), part.wire, out=part.rows)
        return
    if CODECS[part.wire].direct:
        block.pull(part.ids, part.rows.rows, create=create)
        return
    step = max(1, CODED_VALUES // block.spec.dim)
    buffer = np.empty((min(step, len(part.ids)), block.spec.dim), np.float32)
    for start in range(0, len(part.ids), step):
        some = part.part(slice(start, start + step))
        rows = buffer[: len(some.ids)]
        block.pull(some.ids, rows, create=create)
        encode_rows(rows, part.wire, out=some.rows)


class Stepping(NamedTuple):
    """How far and by which numbers a table steps in one update."""

    lr: float
    """Learning rate."""
    step: int
    """The update's number, from 1."""
    rule: OptimizerSpec | None = None
    """The table's rule with the numbers of this update; None for those that it was declared
    with."""


def push_rows(block: SparseShard, parts: list[SparsePart], by: Stepping) -> None:
    """Let a block's rows step by one update that is made of parts, in this order."""
    unscaled, (lr, step, rule) = block.spec.num_unscaled, by
    block.train_by(rule)
    if len(parts) > 1:
        ids = np.concatenate([part.ids for part in parts])
        rows = np.concatenate([numbers_of(part, unscaled) for part in parts])
        now = max(part.now for part in parts)
        block.push(ids, rows, lr=lr, step=step, now=now)
        return
    part = parts[0]
    as_sent = part.scale == 1.0 and part.weights is None
    direct = part.unique and as_sent and CODECS[part.wire].direct
    rows = part.rows.rows if direct else numbers_of(part, unscaled)
    block.push(part.ids, rows, lr=lr, step=step, unique=part.unique, now=part.now)


def write_rows(block: SparseShard, part: SparsePart) -> None:
    """Give a block's rows the part's float32 values; unknown ids get rows, with any entry."""
    before = block.num_rows
    block.write(part.ids, part.rows.rows)
    if block.admission is not None:
        block.admission.num_admitted += block.num_rows - before


def push_values(
    dense: DenseRange,
    parts: Sequence[DensePart],
    by: Stepping,
    segments: Sequence[tuple[int, int, int]] | None = None,
) -> None:
    """Let a range's values step by the sum of parts, in this order; all are of one piece.

    Values that workers have set are overwritten before: the first part that has one counts.

    Args:
        dense: The range.
        parts: At least one.
        by: How they step.
        segments: Which values step, as (start, stop, the number of their step); None for all,
            by the update's number.
    """
    where, update = parts[0].where, parts[0].update
    for part in reversed(parts):
        if part.set_before is not None:
            dense.set_some(*part.set_before)
    if update is not None and update.first is None:
        update.first = dense.is_untouched
    first = None if update is None else update.first
    dense.train_by(by.rule)
    if segments is None:
        read = partial(_sum_of, parts, 0)
        num = where.stop - where.start
        dense.push_pieces(read, lr=by.lr, step=by.step, at=where.start, num=num, first=first)
        return
    for start, stop, number in segments:
        read = partial(_sum_of, parts, start - where.start)
        is_first = True if number == 1 else first  # torch begins each parameter by itself
        num = stop - start
        dense.push_pieces(read, lr=by.lr, step=number, at=start, num=num, first=is_first)


def _sum_of(parts: Sequence[DensePart], skipped: int, piece: slice) -> NDArray[np.float32]:
    """Return the sum of what parts have of a piece that counts from behind ``skipped``."""
    where = slice(skipped + piece.start, skipped + piece.stop)
    total = _numbers_in(parts[0], where)
    for part in parts[1:]:
        total = total + _numbers_in(part, where)
    return total


def _numbers_in(part: DensePart, where: slice) -> NDArray[np.float32]:
    """Return some of a part's numbers, scaled: a scale on the way is of ``DENSE_WIDTH``."""
    begins = where.start % DENSE_WIDTH if part.values.scales is not None else 0
    numbers = numbers_of(part.part(slice(where.start - begins, where.stop)))
    return numbers[begins:] if begins else numbers


_LEAST_STEPS = 1e-30
"""A rate that squares to 0 is none."""


class Guarded(NamedTuple):
    """An update whose stride depends on its numbers."""

    guard: RateGuard
    """Of what steps."""
    pace: Pace
    steps: float = 1.0
    """Of which the numbers are the sum, each counted as much as its rate is."""

    def stride(self, square: float) -> Stride:
        """Return how far to step with numbers of a squared length."""
        return self.guard.stride(square / max(self.steps, _LEAST_STEPS) ** 2, self.pace)


def push_guarded_rows(
    block: SparseShard, part: SparsePart, by: Stepping, guarded: Guarded
) -> None:
    """As ``push_rows`` of one part, as far as the guard lets it."""
    if part.wire != "float32":
        part = part._replace(rows=Encoded(decode_rows(part.rows, part.wire)), wire="float32")
    stride = guarded.stride(square_of(part, unscaled=block.spec.num_unscaled))
    share = guarded.pace.share_at(stride.power)
    push_rows(block, [part._replace(scale=stride.scale)], by._replace(lr=by.lr * share))


def square_of(part: SparsePart, *, unscaled: int) -> float:
    """Return the squared length of all rows together, as they were sent.

    Args:
        part: Of the rows.
        unscaled: How many of a row's first numbers are left out.
    """
    flat = decode_rows(part.rows, part.wire)[:, unscaled:].reshape(-1)
    return float(np.dot(flat, flat))


def push_guarded_values(
    dense: DenseRange,
    part: DensePart,
    by: Stepping,
    guarded: Guarded,
    segments: Sequence[tuple[int, int, int]] | None = None,
) -> None:
    """As ``push_values`` of one part, as far as the guard lets it."""
    update = part.update
    if update is None:
        stride = guarded.stride(_square_of_values(part))
    else:
        stride = update.stride = update.stride or guarded.stride(update.square)
    scale, share = stride.scale, guarded.pace.share_at(stride.power)
    if dense.spec.optimizer.record.adds:  # it has no rate
        scale *= share
    push_values(dense, [part._replace(scale=scale)], by._replace(lr=by.lr * share), segments)


def _square_of_values(part: DensePart) -> float:
    """Return the squared length of a range's numbers."""
    square = 0.0
    for piece in pieces_of(len(part.values.rows)):
        values = numbers_of(part.part(piece))
        square += float(np.dot(values, values))
    return square


def read_values(dense: DenseRange, where: slice, wire: WireDtype, out: Encoded) -> None:
    """Copy some of a range's values to ``out``, as they are to travel."""
    encode_values(dense.values[where], wire, out)


def encode_values(values: NDArray[np.float32], wire: WireDtype, out: Encoded) -> None:
    """Copy values of a dense table to ``out``, as they are to travel."""
    for piece in pieces_of(len(values)):
        encode_rows(values[piece], wire, out=_part_of(out, piece))


def _part_of(values: Encoded, piece: slice) -> Encoded:
    """Return a piece of a vector, which begins where a scale does, as views."""
    if values.scales is None:
        return Encoded(values.rows[piece])
    first, stop = piece.start // DENSE_WIDTH, -(-piece.stop // DENSE_WIDTH)
    return Encoded(values.rows[piece], values.scales[first:stop])


def numbers_of(part: SparsePart | DensePart, unscaled: int = 0) -> NDArray[np.float32]:
    """Return a part's numbers as float32, scaled and weighed.

    Args:
        part: It.
        unscaled: How many of a row's first numbers stay as they are.
    """
    values = decode_rows(part.numbers, part.wire)
    weights = part.weights if isinstance(part, SparsePart) else None
    if part.scale == 1.0 and weights is None:
        return values
    if unscaled:
        values = values.copy()
    scaled = values[:, unscaled:] if unscaled else values
    if part.scale != 1.0:
        scaled = scaled * np.float32(part.scale)
    if weights is not None:
        scaled = scaled * weights[:, np.newaxis]
    if not unscaled:
        return scaled
    values[:, unscaled:] = scaled
    return values
