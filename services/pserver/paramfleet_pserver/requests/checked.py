"""Requests as checked facts: what comes off the wire is judged here, before any effect.

Every function takes a message apart and returns plain records, or raises the error
that says what is wrong with it. Tensors stay views of the message.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_pserver.core.pacing import ASYNC_RATES, AsyncRate
from paramfleet_pserver.requests.changes import Changes, rule_of_step
from paramfleet_pserver.requests.fields import Fields
from paramfleet_pserver.requests.tensors import PartIds
from paramfleet_pserver.requests.total_requests import MAX_NORMS
from paramfleet_pserver.tables.parts import DensePart, SparsePart
from paramfleet_pserver.tables.table import SparseTable, Table
from paramfleet_pserver.tables.table_store import TableStore
from paramfleet_shared.errors.served import AnswerTooLargeError
from paramfleet_shared.net.wire.identity import NORMS, PROGRESS, ChangeIdentity
from paramfleet_shared.net.wire.limits import DEFAULT_LIMITS
from paramfleet_shared.net.wire.message import MalformedMessageError, Message
from paramfleet_shared.tables.encoding import WIRE_DTYPES, WireDtype, buffer_for, encoded_bytes
from paramfleet_shared.tables.rows.ctr import NUM_SEEN
from paramfleet_shared.tables.spec import OptimizerSpec, TableSpec
from paramfleet_shared.values.ids import Rank, Step

__all__ = [
    "LOSS_REDUCTIONS",
    "MAX_WORKERS",
    "ON_WORKER_LOSS",
    "Confirms",
    "DeclareRequest",
    "ExchangePart",
    "ExchangeRequest",
    "LossReduction",
    "Mode",
    "OnWorkerLoss",
    "PullPart",
    "PullRequest",
    "PushPart",
    "PushRequest",
    "checked_answer_bytes",
    "declare_request",
    "exchange_request",
    "pull_request",
    "push_request",
    "spec_of",
]

Mode = Literal["sync", "async", "geo", "localsgd", "gpubox"]
LossReduction = Literal["mean", "sum"]
LOSS_REDUCTIONS: tuple[LossReduction, ...] = ("mean", "sum")
OnWorkerLoss = Literal["wait", "shrink"]
ON_WORKER_LOSS: tuple[OnWorkerLoss, ...] = ("wait", "shrink")
MODES: tuple[Mode, ...] = ("sync", "async", "geo", "localsgd", "gpubox")
MAX_WORKERS = 65_536
"""Of a job, as ``paramfleet launch`` takes them: a training keeps something for each."""
MAX_ANSWER_BYTES = DEFAULT_LIMITS.max_body_bytes
"""A worker takes no longer body."""

MAX_PROGRESS_BYTES = 8 << 20
"""Of what a change says of where its worker is."""

_PullIds = Literal["plain", "delta", "pulled", "known"]
_PULL_IDS: tuple[_PullIds, ...] = ("plain", "delta", "pulled", "known")


@dataclass(frozen=True, kw_only=True, slots=True)
class DeclareRequest:
    """What a worker wants the servers to hold."""

    specs: tuple[TableSpec, ...]
    mode: Mode
    worker_num: int
    max_staleness: int | None
    sync_batch_norm: bool
    async_rate: AsyncRate
    on_worker_loss: OnWorkerLoss
    loss_reduction: LossReduction
    rank: Rank
    incarnation: int
    wire: WireDtype = "float32"
    """How rows are to travel, so that kernels are there for it."""


class PullPart(NamedTuple):
    """What to read of one table."""

    table: Table
    rows: SparsePart | None
    """Ids and bounds, and room for the rows; None reads a dense table's range."""
    create: bool
    where: slice | None = None
    """Which values of a dense table's range."""
    wire: WireDtype = "float32"
    """How the numbers of the answer travel."""
    keep: int | None = None
    """By which number a push may name the ids; None keeps them not."""


class Confirms(NamedTuple):
    """A worker says that its parts of all steps before one are with every pserver."""

    rank: Rank
    incarnation: int
    step: Step


class PullRequest(NamedTuple):
    """What a worker reads."""

    rank: Rank
    incarnation: int | None
    """Whose push may name the ids; None where none are kept."""
    min_version: int
    parts: tuple[PullPart, ...]
    version: int | None = None
    """Of sync: how many steps the values have, no more; None for as many as there are."""
    confirms: Confirms | None = None
    """Which of the worker's parts are with all pservers, where that is asked for."""


class PushPart(NamedTuple):
    """Gradients of one table."""

    table: Table
    content: SparsePart | DensePart
    lr: float
    rule: OptimizerSpec | None = None
    """The table's rule with the numbers of this step; None for those of the declaration."""


class PushRequest(NamedTuple):
    """What a worker pushes for a step."""

    identity: ChangeIdentity
    step: Step
    weight: float
    continues: bool
    """Whether more of the step will come by another push."""
    first: Step | None
    """The first step that is in it, if pushes of steps before may come later; None if all have
    come."""
    parts: tuple[PushPart, ...]
    progress: NDArray[np.uint8] | None = None
    """Where the worker is after the step, for a process that is started in its place."""
    norms: NDArray[np.float64] | None = None
    """Norms of the step's merged gradient that the worker was answered, by number."""

    @property
    def rank(self) -> Rank:
        """Return whose it is."""
        return Rank(self.identity.worker)


class ExchangePart(NamedTuple):
    """Differences of one table, and what the worker wants to hear in return."""

    table: Table
    content: SparsePart | DensePart
    ack: int
    """The last reply the worker has applied; 0 for none."""
    max_rows: int
    lr: float
    """Of the optimizer that takes a dense table's differences in LocalSGD."""
    answer_wire: WireDtype
    """How a dense table's values are answered."""
    quiet: bool
    """Whether a dense table's values aren't answered: the worker pulls them."""
    damping: float
    """The power of the number of workers by which GEO divides what several change."""
    guarded_steps: float
    """Steps that the differences are of, each counted as much as its rate is, if they are to be
    kept from growing; else 0."""


class ExchangeRequest(NamedTuple):
    """What a worker sends and asks for in GEO and LocalSGD."""

    identity: ChangeIdentity
    step: Step
    loss: float | None
    """What the worker says of itself, for the mean of all; None says nothing."""
    continues: bool
    """Whether more of the exchange will come by another message."""
    parts: tuple[ExchangePart, ...]
    progress: NDArray[np.uint8] | None = None
    """As ``PushRequest.progress``."""

    @property
    def rank(self) -> Rank:
        """Return whose it is."""
        return Rank(self.identity.worker)


def declare_request(message: Message) -> DeclareRequest:
    """Read a ``declare``.

    Raises:
        MalformedMessageError: if a field is missing or of a wrong type.
        TableSpecError: if a table is described wrongly.
    """
    fields = Fields(message.fields, where="declare")
    mode = fields.text("mode")
    known = next((each for each in MODES if each == mode), None)
    if known is None:
        raise MalformedMessageError(where="declare field 'mode'", rule=f"must be in {MODES}")
    return DeclareRequest(
        specs=tuple(spec_of(wire) for wire in fields.parts("tables")),
        mode=known,
        worker_num=fields.integer("worker_num", least=1, most=MAX_WORKERS),
        max_staleness=fields.optional_integer("max_staleness"),
        sync_batch_norm=fields.flag("sync_batch_norm"),
        async_rate=fields.choice("async_rate", ASYNC_RATES, "full"),
        on_worker_loss=fields.choice("on_worker_loss", ON_WORKER_LOSS, "wait"),
        loss_reduction=fields.choice("loss_reduction", LOSS_REDUCTIONS, "mean"),
        rank=Rank(fields.integer("rank")),
        incarnation=fields.integer("incarnation"),
        wire=fields.choice("wire_dtype", WIRE_DTYPES, "float32"),
    )


def spec_of(wire: Mapping[str, Any]) -> TableSpec:
    """Read a table's description.

    Raises:
        MalformedMessageError: if a size or the seed isn't a whole number.
        TableSpecError: if it breaks another rule.
    """
    fields = Fields(wire, where="declare table")
    for size in ("dim", "size", "num_shards"):
        fields.optional_integer(size)
    if "seed" in wire:
        fields.integer("seed", least=-(1 << 63))
    return TableSpec.from_wire(wire)


def pull_request(message: Message, store: TableStore) -> PullRequest:
    """Read a ``pull``, and make room for its rows.

    Raises:
        MalformedMessageError: if a field, a tensor's name or the bounds of ids are wrong.
        UnknownTableError: if a table wasn't declared.
        PulledIdsGoneError: if a part names a pull whose ids aren't kept any more.
        KnownIdsGoneError: if a part names ids by numbers that aren't known here.
        RowShapeError: if a tensor's dtype or shape is wrong.
        AnswerTooLargeError: if the answer would be longer than a worker takes.
    """
    fields = Fields(message.fields, where="pull")
    rank = Rank(fields.integer("rank"))
    reader = PartIds(message)
    parts: list[PullPart] = []
    num_bytes = 0
    for index, about in enumerate(fields.parts("parts")):
        part = Fields(about, where=f"pull part {index}")
        table = store.find(part.text("table"))
        wire = part.choice("wire", WIRE_DTYPES, "float32")
        rows, where = None, None
        if isinstance(table, SparseTable):
            coded = part.choice("ids", _PULL_IDS, "plain")
            if coded == "pulled":
                ids, offsets = _pulled_before(parts, part, store, rank)
            elif coded == "known":
                book, base = part.integer("book"), part.optional_integer("base")
                ids, offsets = reader.read_known(index, table, rank=rank, book=book, base=base)
            else:
                ids, offsets = reader.read(index, table, packed=coded == "delta")
            shape = (len(ids), _width_of(part, table, exact=fields.has("version")))
            num_bytes = _answer_bytes(num_bytes, table, shape, wire)
            rows = SparsePart(ids, offsets, buffer_for(shape, wire), wire)
        else:
            where = _values_of(part, table)
            num_bytes = _answer_bytes(num_bytes, table, (where.stop - where.start,), wire)
        parts.append(
            PullPart(
                table=table,
                rows=rows,
                create=part.flag("create") and not table.spec.creates_at_push,
                where=where,
                wire=wire,
                keep=part.optional_integer("keep"),
            )
        )
    keeps = any(part.keep is not None for part in parts)
    return PullRequest(
        rank=rank,
        incarnation=fields.integer("incarnation") if keeps else None,
        min_version=fields.integer("min_version"),
        parts=tuple(parts),
        version=fields.optional_integer("version"),
        confirms=_confirms_of(fields, rank),
    )


def _width_of(part: Fields, table: SparseTable, *, exact: bool) -> int:
    """Return how many numbers of each row a part asks for.

    Raises:
        MalformedMessageError: if it asks for such as the table's rows don't have.
    """
    if not part.flag("counted"):
        return table.spec.dim
    if exact or not table.spec.optimizer.num_counts:
        rule = "is for tables with an accessor, as they are now"
        raise MalformedMessageError(where="pull field 'counted'", rule=rule)
    return table.spec.dim + NUM_SEEN


def _values_of(part: Fields, table: Table) -> slice:
    """Return which values of a dense table's range a part asks for: all, unless it says.

    Raises:
        MalformedMessageError: if there are no such values.
    """
    start, stop = part.optional_integer("start"), part.optional_integer("stop")
    where = slice(0 if start is None else start, table.num_rows if stop is None else stop)
    if not where.start <= where.stop <= table.num_rows:
        rule = f"must be in order and at most {table.num_rows}, the values held here"
        raise MalformedMessageError(where="pull fields 'start' and 'stop'", rule=rule)
    return where


def _pulled_before(
    parts: list[PullPart], part: Fields, store: TableStore, rank: Rank
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the ids of an earlier part of this pull, or of a pull before it.

    Raises:
        MalformedMessageError: if a field is wrong.
        UnknownTableError: if ``of`` wasn't declared.
        PulledIdsGoneError: if the ids aren't kept any more.
    """
    pull, of = part.integer("pulled"), store.find(part.text("of"))
    if not isinstance(of, SparseTable):
        raise MalformedMessageError(where="pull field 'of'", rule="must name a sparse table")
    for earlier in parts:
        if earlier.table is of and earlier.keep == pull and earlier.rows is not None:
            return earlier.rows.ids, earlier.rows.offsets
    return of.pulled.find(rank, pull)


def push_request(message: Message, store: TableStore, *, pieces: bool = False) -> PushRequest:
    """Read a ``push``.

    Args:
        message: The request.
        store: The tables.
        pieces: Whether a part may be a piece of a dense table's range.

    Raises:
        MalformedMessageError: if a field or the bounds of ids are wrong, a tensor is
            missing, a table is named twice, or a part is a piece and may not be.
        UnknownTableError: if a table wasn't declared.
        PulledIdsGoneError: if a part names a pull whose ids aren't kept any more.
        RowShapeError: if a tensor's dtype or shape is wrong.
        TableSpecError: if a number of a part's rule is outside of its range.
    """
    fields = Fields(message.fields, where="push")
    changes = Changes(message, store, fields, tensor="grads", pieces=pieces)
    step, first = Step(fields.integer("step")), fields.optional_integer("first")
    if first is not None and first > step:
        raise MalformedMessageError(where="push field 'first'", rule=f"must be at most {step}")
    return PushRequest(
        identity=changes.identity,
        step=step,
        weight=fields.number("weight"),
        continues=fields.flag("continues"),
        first=None if first is None else Step(first),
        parts=tuple(
            PushPart(
                table=table,
                content=content,
                lr=part.number("lr"),
                rule=rule_of_step(part, table.spec),
            )
            for table, content, part in changes
        ),
        progress=_progress_of(message),
        norms=_norms_of(message),
    )


def exchange_request(message: Message, store: TableStore) -> ExchangeRequest:
    """Read an ``exchange``. Raises as ``push_request`` does; a part may be a piece."""
    fields = Fields(message.fields, where="exchange")
    changes = Changes(message, store, fields, tensor="deltas", pieces=True)
    return ExchangeRequest(
        identity=changes.identity,
        step=Step(fields.integer("step")),
        loss=fields.optional_number("loss", None),
        continues=fields.flag("continues"),
        parts=tuple(
            ExchangePart(
                table=table,
                content=content,
                ack=part.integer("ack"),
                max_rows=part.integer("max_rows", least=1),
                lr=part.optional_number("lr", 1.0),
                answer_wire=part.choice("answer_wire", WIRE_DTYPES, content.wire),
                quiet=part.flag("quiet"),
                damping=part.fraction("damping"),
                guarded_steps=part.count("guarded_steps"),
            )
            for table, content, part in changes
        ),
        progress=_progress_of(message),
    )


def _confirms_of(fields: Fields, rank: Rank) -> Confirms | None:
    step = fields.optional_integer("confirms")
    if step is None:
        return None
    return Confirms(rank, fields.integer("incarnation"), Step(step))


def _progress_of(message: Message) -> NDArray[np.uint8] | None:
    """Return what a change says of where its worker is; None if it says nothing.

    Raises:
        MalformedMessageError: if it isn't bytes, or has too many.
    """
    found = message.tensors.get(PROGRESS)
    if found is None:
        return None
    if found.dtype != np.uint8 or found.ndim != 1 or len(found) > MAX_PROGRESS_BYTES:
        rule = f"must be at most {MAX_PROGRESS_BYTES} bytes"
        raise MalformedMessageError(where="tensor 'progress'", rule=rule)
    return found


def _norms_of(message: Message) -> NDArray[np.float64] | None:
    """Return the norms that a push names; None if it names none.

    Raises:
        MalformedMessageError: if they aren't numbers, or are too many, or one is below 0.
    """
    found = message.tensors.get(NORMS)
    if found is None:
        return None
    if found.dtype != np.float64 or found.ndim != 1 or len(found) > MAX_NORMS:
        rule = f"must be float64 [n] of at most {MAX_NORMS}"
        raise MalformedMessageError(where=f"tensor {NORMS!r}", rule=rule)
    if (found < 0).any():  # NaN and infinity are norms: of gradients that a program then drops
        rule = "must hold norms, which aren't below 0"
        raise MalformedMessageError(where=f"tensor {NORMS!r}", rule=rule)
    return found


def _answer_bytes(before: int, table: Table, shape: tuple[int, ...], wire: WireDtype) -> int:
    """Return the length of an answer of so many bytes and one more part.

    Raises:
        AnswerTooLargeError: if no worker would take it.
    """
    return checked_answer_bytes(before + encoded_bytes(shape, wire), table, rows=shape[0])


def checked_answer_bytes(num_bytes: int, table: Table, *, rows: int) -> int:
    """Return the length of an answer with some rows of a table, if it isn't too long.

    Raises:
        AnswerTooLargeError: if no worker would take it.
    """
    if num_bytes > MAX_ANSWER_BYTES:
        raise AnswerTooLargeError(
            table=table.spec.name,
            rows=rows,
            num_bytes=num_bytes,
            limit_bytes=MAX_ANSWER_BYTES,
        )
    return num_bytes
