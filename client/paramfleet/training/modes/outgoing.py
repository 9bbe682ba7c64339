"""Gradients on their way to the pservers: narrowed, and nothing of them lost for good.

A push names the pull that had its ids, which needn't travel again. Float32 rows travel as they
were asked for, narrow ones sorted by id inside their shard. Those of a narrow job are so from
the start (``RowSource.by_id``), and nothing is moved here; others are brought into that order.

One thread at a time writes, in async the communicator's loop, while another one reads.
"""

import threading
from collections.abc import Iterator, Sequence
from itertools import count
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet.tables.error_feedback import (
    Found,
    Residual,
    RowResiduals,
    Salts,
    WireFormat,
)
from paramfleet.training.modes.gradients import TableGradient
from paramfleet.transport.known_ids import KnownIds, Named
from paramfleet.transport.requests import Read, ReadPlan, Write, dense_slice
from paramfleet_shared.discovery.placement import Placement
from paramfleet_shared.errors.served import KnownIdsGoneError, PulledIdsGoneError
from paramfleet_shared.tables.codecs.catalog import CODECS
from paramfleet_shared.tables.encoding import Encoded, WireDtype, encode_rows, narrowest
from paramfleet_shared.tables.partition import partition
from paramfleet_shared.tables.rows.batch import RowIds
from paramfleet_shared.tables.spec import TableSpec
from paramfleet_shared.values.spans import complement

__all__ = ["Outgoing"]

_REST_VALUES = 1 << 22
"""Floats of a sparse table that one push of residuals carries: 16 MiB."""


_PULLS = 24
"""Pulls of one table whose rows a push may name: more than steps wait to be sent, and fewer
than a pserver keeps, since more are pulled while a push is on its way."""

_PUSHES_UNNAMED = 1000
"""Pushes that carry their ids after a pserver had forgotten those of a pull: what made it
forget them lasts, and each refused push travels twice."""


class _Pull(NamedTuple):
    """Rows that were pulled."""

    asked: RowIds
    """As the model asked for them."""
    by_id: RowIds
    """Sorted by id inside their shard; those of float32 as they were asked for."""
    rows: RowIds
    """As they travel."""
    named: Named | None
    """Their numbers, and where each of ``rows`` is in ``by_id``; None if they are the same."""
    order: NDArray[np.int64] | None
    """Where each of ``rows`` was asked for; None if the order is the same."""
    number: int
    rests: list[Found]
    """Where what is left of the rows is kept, once it was looked up; else empty."""

    def is_of(self, rows: RowIds) -> bool:
        """Return whether these rows were asked for, in this order."""
        return np.array_equal(self.asked.ids, rows.ids)


class Outgoing:
    """Makes writes of gradients, and keeps what a format loses of them for good.

    Args:
        specs: The tables, sparse and dense.
        placement: Who hosts what.
        wire: How gradients travel.
        rank: Of this worker.
        incarnation: Of this worker, so that its pulls differ from its former self's.
    """

    def __init__(
        self,
        specs: Sequence[TableSpec],
        placement: Placement,
        wire: WireDtype,
        *,
        rank: int = 0,
        incarnation: int = 0,
    ) -> None:
        self._salts = Salts(rank, incarnation)
        self.numbers = count(incarnation << 32)
        """Of this worker's pulls: pservers keep ids by number, so each has its own."""
        self._pulls: dict[str, dict[int, _Pull | None]] = {}
        """The latest of each table; None for one that was named, which counts still.
        Others age by it as they do in the pservers."""
        self._pulling = threading.Lock()
        self._placement = placement
        self._specs = {spec.name: spec for spec in specs}
        self._wires = {spec.name: _wire_of(spec, wire) for spec in specs}
        self._parts = {
            spec.name: [
                dense_slice(spec.size, placement, server)
                for server in range(placement.num_servers)
            ]
            for spec in specs
            if spec.kind == "dense"
        }
        self._rows: dict[str, RowResiduals] = {}
        self._dense: dict[str, Residual[NDArray[np.float32], Encoded]] = {}
        for spec in specs:
            chosen = self._wires[spec.name]
            if CODECS[chosen].rounding != "feedback":
                continue
            if spec.kind == "sparse":
                self._rows[spec.name] = RowResiduals(spec.name, spec.dim, chosen)
            else:
                self._dense[spec.name] = Residual(WireFormat(chosen))
        self._known = {
            spec.name: KnownIds(spec.name, placement, incarnation=incarnation)
            for spec in specs
            if spec.kind == "sparse" and CODECS[wire].rounding == "feedback"
        }
        self._rates: dict[str, float] = {}
        self._unnamed: dict[str, int] = {}

    def read(self, table: str, rows: RowIds) -> Read:
        """Return what is pulled of rows whose gradient will be pushed."""
        wire, dim = self._wires[table], self._specs[table].dim
        if wire == "float32":
            with self._pulling:
                pull = _Pull(rows, rows, rows, None, None, next(self.numbers), [])
                self._keep(table, pull)
            return Read(table=table, rows=rows, dim=dim, create=True, keep=pull.number)
        by_id, order = rows.sorted()
        known = self._known.get(table)
        with self._pulling:
            same = self._as_pulled(table, by_id)
            if same is not None:
                named = same[1].named
            else:
                named = None if known is None else known.name(*by_id)
            in_order = by_id
            if named is not None:
                in_order = RowIds(named.ids, by_id.offsets)
                order = named.order if order is None else order[named.order]
            pull = _Pull(rows, by_id, in_order, named, order, next(self.numbers), [])
            self._keep(table, pull)
        return Read(
            table=table,
            rows=in_order,
            dim=dim,
            create=True,
            wire=wire,
            order=order,
            keep=pull.number,
            as_pulled=None if same is None else (same[0], same[1].number),
            named=named if same is None else None,
        )

    def _keep(self, table: str, pull: _Pull) -> None:
        """Let a push name a pull, and none the oldest of too many."""
        pulls = self._pulls.setdefault(table, {})
        pulls[pull.number] = pull
        if len(pulls) > _PULLS:
            del pulls[next(iter(pulls))]

    def confirm(self, plan: ReadPlan) -> None:
        """Note that all pservers have answered a pull of what ``read`` returned."""
        for table, named in plan.named():
            self._known[table].confirm(named)

    def note_gone(
        self, gone: PulledIdsGoneError | KnownIdsGoneError, plan: ReadPlan | None = None
    ) -> None:
        """Note what a pserver doesn't keep: a pull's ids, or those that have numbers.

        Args:
            gone: What it said.
            plan: To which pull; None to a push.
        """
        table = gone.facts["table"]
        if isinstance(gone, KnownIdsGoneError):
            self._known[table].lose(gone.facts["book"])
        else:
            self.stop_naming(table)
        for name, named in () if plan is None else plan.named():
            self._known[name].give_up(named)

    def _as_pulled(self, table: str, rows: RowIds) -> tuple[str, _Pull] | None:
        """Return the latest pull of another table if it was of the same rows."""
        for other, pulls in self._pulls.items():
            latest = next(reversed(pulls.values()), None)
            if other == table or latest is None or self._unnamed.get(other):
                continue
            if np.array_equal(latest.by_id.ids, rows.ids):
                return other, latest
        return None

    def find_rest(self, read: Read) -> None:
        """Look up what is left of the rows of a pull, which the write would do later."""
        if read.keep is None or read.table not in self._rows:
            return
        with self._pulling:
            pull = self._pulls[read.table].get(read.keep)
        if pull is not None:
            pull.rests.append(self._rows[read.table].find(pull.rows.ids))

    def write(self, gradient: TableGradient) -> Write:
        """Return what is pushed of a table for a gradient."""
        name, rows, values = gradient.name, gradient.rows, gradient.grads
        self._rates[name] = gradient.lr
        encoded = None
        pull = None if rows is None else self._pull_of(name, rows)
        if self._wires[name] == "float32":
            pass
        elif rows is None:
            encoded = self._encode_dense(name, gradient)
        else:
            rows, order = rows.sorted() if pull is None else (pull.rows, pull.order)
            if order is not None:
                values = values[order]
            whole = self._encode_rows(name, rows, values, pull)
            servers = range(self._placement.num_servers)
            encoded = [
                whole.part(rows.within(self._placement.shards_of(server))) for server in servers
            ]
        return Write(
            table=name,
            values=values,
            rows=rows,
            lr=gradient.lr,
            now=gradient.now,
            wire=self._wires[name],
            encoded=encoded,
            pulled=self._named(name, None if pull is None else pull.number),
            numbers=gradient.numbers,
            spans=gradient.spans,
            set_before=gradient.set_before,
        )

    def _encode_dense(self, name: str, gradient: TableGradient) -> list[Encoded]:
        """Return each pserver's part of a gradient, as it travels.

        Nothing that is left of values without a gradient goes with it: pservers don't step
        them.
        """
        values = gradient.grads
        if name in self._dense:
            rest = self._dense[name]
            unsent = (
                [] if gradient.spans is None else complement(gradient.spans, (0, len(values)))
            )
            kept = [None if rest.left is None else rest.left[a:b].copy() for a, b in unsent]
            sent = rest.send(values, self._parts[name])
            for (start, stop), each in zip(unsent, kept, strict=True):
                if rest.left is not None:
                    rest.left[start:stop] = 0 if each is None else each
            return sent
        whole = encode_rows(values, self._wires[name], salt=self._salts.next())
        return [whole.part(part) for part in self._parts[name]]

    def _encode_rows(
        self, name: str, rows: RowIds, values: NDArray[np.float32], pull: _Pull | None
    ) -> Encoded:
        """Return gradients of rows, in their order, as they travel."""
        named = None if pull is None else pull.named
        if name not in self._rows and named is None:
            return encode_rows(values, self._wires[name], salt=self._salts.next())
        if name not in self._rows and named is not None:
            # Chance goes by the order of ids: what is known depends on when answers came.
            by_id = np.empty_like(values)
            by_id[named.order] = values
            encoded = encode_rows(by_id, self._wires[name], salt=self._salts.next())
            return Encoded(encoded.rows[named.order])
        found = pull.rests[0] if pull is not None and pull.rests else None
        return self._rows[name].encode(rows.ids, values, found)

    def stop_naming(self, table: str) -> None:
        """Note that a pserver doesn't keep a pull's ids: the next pushes carry theirs."""
        self._unnamed[table] = _PUSHES_UNNAMED

    def _named(self, table: str, pulled: int | None) -> int | None:
        """Return how a push names its pull; None if it carries its ids for now."""
        left = self._unnamed.get(table, 0)
        if not left:
            return pulled
        self._unnamed[table] = left - 1
        return None

    def _pull_of(self, table: str, rows: RowIds) -> _Pull | None:
        """Return the pull that had these rows, if one did.

        A pull is named once. Of several of the same ids it is the first, which the
        pservers have answered if any.
        """
        with self._pulling:
            pulls = self._pulls.get(table, {})
            left = [pull for pull in pulls.values() if pull is not None]
            same = (pull for pull in left if pull.asked.ids is rows.ids)
            alike = (pull for pull in left if pull.is_of(rows))
            pull = next(same, None) or next(alike, None)
            if pull is not None:
                pulls[pull.number] = None
            return pull

    def take_rest(self) -> Iterator[TableGradient]:
        """Yield what is left of all gradients, to be pushed as float32.

        Only plain SGD takes a late gradient for what it is. Adagrad would count it as one
        more step, momentum and Adam would move by their state: for them what is left, less
        than one step of the format for each value, is dropped.
        """
        for name, rows in self._rows.items():
            if self._is_late_welcome(name):
                for ids, grads in rows.take(max_rows=_REST_VALUES // self._specs[name].dim):
                    parted = partition(ids, self._placement.num_shards)
                    order = np.empty_like(parted.inverse)
                    order[parted.inverse] = np.arange(len(ids))
                    lr = self._rates[name]
                    sorted_rows = RowIds(parted.ids, parted.offsets)
                    yield TableGradient(name=name, rows=sorted_rows, grads=grads[order], lr=lr)
        for name, dense in self._dense.items():
            left = dense.take() if self._is_late_welcome(name) else None
            if left is not None:
                yield TableGradient(name=name, rows=None, grads=left, lr=self._rates[name])

    def forget(self) -> None:
        """Drop what is left of all gradients."""
        for rows in self._rows.values():
            rows.forget()
        for dense in self._dense.values():
            dense.forget()

    def drop_rests(self, table: str, ids: NDArray[np.int64]) -> None:
        """Drop what is left of the gradients of rows, int64 [n], that are removed."""
        if table in self._rows:
            self._rows[table].drop(ids)

    def _is_late_welcome(self, name: str) -> bool:
        rule = self._specs[name].optimizer.record
        is_plain = rule.pace == "gradients" and not rule.columns
        return is_plain and name in self._rates


def _wire_of(spec: TableSpec, wire: WireDtype) -> WireDtype:
    """Return how a table's numbers travel where ``wire`` is the job's way: counts exactly."""
    if spec.optimizer.num_counts:
        return "float32"
    return narrowest(wire, spec.dim) if spec.kind == "sparse" else wire
