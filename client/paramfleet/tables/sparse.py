"""A worker's view of one sparse table: which rows the current step uses.

The rows of a batch enter autograd as a small leaf tensor ``rows_UD``; its gradient has one row
for each unique id. The table's ``weight`` is the parameter that an optimizer, a scheduler and
``clip_grad_norm_`` see: its gradient is that of the rows of the step.

Shape legend: U = unique ids, D = row width, S = shards of the table, N = ``num_embeddings``.
"""

import copy
import datetime as dt
import logging
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from paramfleet.config.accessor import CtrAccessor
from paramfleet.config.eviction import NO_EVICTION
from paramfleet.tables.devices import to_device, to_host
from paramfleet.tables.weight.parameter import TableWeight
from paramfleet.tables.weight.rows import LocalRows, WeightError
from paramfleet.tables.weight.views import RowGradient
from paramfleet_shared.errors import ContractError
from paramfleet_shared.tables.partition import Partitioned, partition
from paramfleet_shared.tables.rows.batch import RowBatch
from paramfleet_shared.tables.rows.ctr import num_miscounted
from paramfleet_shared.tables.rows.routing import merge_by_inverse
from paramfleet_shared.tables.spec import (
    EntrySpec,
    InitializerSpec,
    Rounding,
    Storage,
    Tracks,
)

__all__ = [
    "KeptAs",
    "RowSource",
    "RowUse",
    "SparseTable",
    "TableInUseError",
    "merge_pending",
    "nothing_pending",
    "table_of",
    "tables_of",
]

log = logging.getLogger(__name__)

_LOOKUPS = 16
"""Lookups of a step after which those are forgotten whose graph is gone."""
_NO_OPTIMIZER = (
    "its rows have gradients, and no optimizer that fleet.distributed_optimizer made trains "
    "them: give it the model's parameters, and step by what it returns"
)


class TableInUseError(ContractError):
    """A table that already handed out rows was asked to become another one."""

    code = "contract.table_in_use"
    table: str
    sentence = (
        "table {table!r} already has rows: call fleet.init_worker() before the first forward"
    )


class RowSource(Protocol):
    """Where a table's rows come from: this process, or the pservers."""

    @property
    def num_shards(self) -> int:
        """Return the shards that ids must be sorted by; 1 for any order."""
        ...

    @property
    def by_id(self) -> bool:
        """Return whether ids are to be sorted by value inside their shard."""
        ...

    def lookup(
        self,
        table: "SparseTable",
        ids_U: NDArray[np.int64],
        offsets: NDArray[np.int64],
        *,
        create: bool,
    ) -> NDArray[np.float32] | torch.Tensor:
        """Return the rows of unique ids as float32 [U, D] in their order, the caller's own.

        They are an array in the host's memory, or a tensor on the device that holds them.

        Args:
            table: Which table.
            ids_U: int64 [U], each id once, sorted by shard as ``partition`` does; in
                any order inside a shard, though ``by_id`` is the one to come in.
            offsets: int64 [S + 1], the shards' bounds in ``ids_U``.
            create: Whether ids without a row get one; otherwise they only read
                as the value that they would start from.
        """
        ...


def nothing_pending(dim: int, num_shards: int) -> RowBatch:
    """Return the gradients of a step that didn't use a table."""
    return RowBatch(
        np.empty(0, np.int64),
        np.empty((0, dim), np.float32),
        np.zeros(num_shards + 1, np.int64),
    )


def merge_pending(parts: Sequence[RowBatch], *, by_id: bool = False) -> RowBatch:
    """Sum gradients in the order of ``parts``; ids that several have become one row.

    With ``by_id`` they are sorted by value inside their shard.
    """
    num_shards = len(parts[0].offsets) - 1
    both = np.concatenate([p.ids for p in parts])
    ids, inverse, offsets = partition(both, num_shards, by_id=by_id)
    grads = merge_by_inverse(np.concatenate([p.values for p in parts]), inverse, len(ids))
    return RowBatch(ids, grads, offsets)


class KeptAs(NamedTuple):
    """How pservers keep a table's values; what a worker holds itself is float32."""

    storage: Storage = "float32"
    rounding: Rounding = "stochastic"
    accessor: CtrAccessor | None = None
    """How rows count their use; None where they don't."""
    entry: EntrySpec = EntrySpec()
    """Which ids get a row."""
    tracks: Tracks = "none"
    """What a row keeps of when it was pushed last."""
    half_life: float = 0.0
    """Steps after which a push counts for half in that; 0 keeps the last one alone."""


class RowUse(NamedTuple):
    """How a forward uses the rows of a table that has an accessor."""

    instances: int
    """Instances of the batch, at least 1."""
    counts: NDArray[np.float32] | None
    """What is counted for each row, [U, counts]; None if it comes with the gradients."""


class SparseTable:
    """One table, shared by every module that names it.

    Args:
        name: The table's name in the job.
        dim: Row width D.
        initializer: First value of a row.
        seed: Seeds the initializer; a row's first value depends on seed, name and id alone.
        make_source: Makes where the rows come from until ``fleet.init_worker`` binds another.
        kept_as: How the pservers keep the values. Of rows with an accessor the first columns
            are counts, which come apart from the gradients: nothing clips or scales them.
    """

    num_embeddings = 0
    """N: the ids of a model's weight are 0 to N - 1; 0 if the model gave no number."""
    padding_idx: int | None = None
    """Id whose row reads as zeros; None for none."""
    is_trainable = True
    """Whether the weight requires a gradient."""
    has_other_ids = False
    """Whether ids outside 0 to N - 1 were looked up."""
    write: Callable[["SparseTable", NDArray[np.int64], NDArray[np.float32]], None] | None = None
    """Writes rows of a table that an optimizer trains; None before."""
    preview: Any = None
    """Rows of this process as they begin, where some were read before there are any."""
    gradient: torch.Tensor | None = None
    """Of the rows of the step in progress, [U, D]; None without any."""
    is_stepped = True
    """Whether a step has taken the gradients that are pending, if any are."""
    _source: RowSource | None = None
    _rows_UD: torch.Tensor | None = None
    """Rows of the step in progress, as they were looked up, [U, D]."""

    def __init__(
        self,
        *,
        name: str,
        dim: int,
        initializer: InitializerSpec,
        seed: int,
        make_source: Callable[["SparseTable"], RowSource],
        kept_as: KeptAs = KeptAs(),  # noqa: B008 - a tuple
    ) -> None:
        self.name = name
        self.accessor = kept_as.accessor
        self.num_counts = 0 if self.accessor is None else self.accessor.num_counts
        self.day = 0 if self.accessor is None else self.accessor.first_day
        """Of rows with an accessor: today, from 1970, or counted by saves; 0 for none."""
        self.step = 0
        """Which step of this worker is being taken, from 1, or was taken last."""
        self.hour = 0
        """Of rows that keep the hour: it, from 1970, where ``fleet.set_date`` said so; 0 takes
        this machine's."""
        self.dim = dim
        self.initializer = initializer
        self.has_default_values = False
        """Whether the model said nothing of first values."""
        self.seed = seed
        self.first_rows: list[tuple[NDArray[np.int64], NDArray[np.float32]]] = []
        """Rows that were written before the table had a source, in this order: ids, int64 [n],
        each once, and values, float32 [n, D]. Where the table is new, it begins with them."""
        self.kept_as = kept_as
        self.eviction = NO_EVICTION
        """Which of its rows go; ``retain`` says so."""
        like = torch.empty(0, dim - self.num_counts)
        self.device, self.dtype = like.device, like.dtype
        """Of rows, as the model gets them."""
        memory = torch.empty_like(like, device="cpu") if like.is_meta else like
        self.weight = TableWeight.of(self, memory, learns=True)
        self._make_source = make_source
        self._counts: NDArray[np.float32] | None = None
        """What is pushed for the columns that are counts, [U, counts]."""
        self._instances = 1.0
        """What gradients are multiplied by where they are to be sums over instances."""
        self._ids_U: NDArray[np.int64] = np.empty(0, np.int64)
        self._offsets: NDArray[np.int64] = np.zeros(2, np.int64)
        self._lookups: list[tuple[NDArray[np.int64], weakref.ref[torch.Tensor]]] = []
        """Of the step in progress: ids, and the leaf that has no gradient yet."""
        self._noted: set[str] = set()
        """Differences from torch that were logged."""

    def take_accessor(self, accessor: CtrAccessor) -> None:
        """Have rows count their use, which nobody has looked up as yet.

        They get as many more columns as the model doesn't see. Where the model said nothing of
        first values, they are the accessor's.
        """
        assert not self.in_use, "rows have their width"
        self.accessor = accessor
        self.num_counts = accessor.num_counts
        self.day = accessor.first_day
        self.dim += accessor.num_hidden
        self.weight.set_memory(self.weight.memory.new_empty((0, self.dim - self.num_counts)))
        if self.has_default_values:
            self.initializer = accessor.initializer
        self.kept_as = self.kept_as._replace(accessor=accessor)

    @property
    def counts_days(self) -> bool:
        """Whether each save of a batch model ends a day of its rows."""
        return self.accessor is not None and self.accessor.days_by == "saves"

    @property
    def now(self) -> int:
        """Return when it is, as rows keep it: a day, an hour or a step; 0 if they don't."""
        if self.kept_as.tracks == "step":
            return self.step
        if self.kept_as.tracks == "hour":
            return self.hour or int(dt.datetime.now(dt.UTC).timestamp()) // 3600
        return self.day

    @property
    def in_use(self) -> bool:
        """Whether rows were handed out already."""
        return self._source is not None

    @property
    def source(self) -> RowSource:
        """Where the rows come from; made now if nothing was bound."""
        if self._source is None:
            self._source = self._make_source(self)
        return self._source

    @property
    def local(self) -> LocalRows | None:
        """The rows, where they are in this process's memory; None elsewhere or before."""
        source: object = self._source
        return source if isinstance(source, LocalRows) else None

    def make_local(self) -> RowSource:
        """Return rows of this process as they are before any was trained."""
        return self._make_source(self)

    def read(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the values of rows, float32 [n, D], and create none; ids int64 [n]."""
        unique, inverse, offsets = self.partition(ids)
        found = self.source.lookup(self, unique, offsets, create=False)
        if isinstance(found, torch.Tensor):
            found = to_host(found, dtype=torch.float32).numpy()
        return found[inverse]

    def bind(self, source: RowSource) -> None:
        """Take rows from ``source`` from now on."""
        self._source, self.preview = source, None

    def begin_anew(self, source: RowSource | None, *, learns: bool) -> None:
        """Be a table of its own, as a copy of another one: with a weight, and without a step.

        Args:
            source: Where its rows come from; None as before there are any.
            learns: Whether they are trained.
        """
        like = self.weight.memory.new_empty((0, self.dim - self.num_counts))
        self._source, self.write, self.is_trainable = source, None, learns
        self.weight = TableWeight.of(self, like, learns=learns)
        self.end_step()
        self.gradient, self._ids_U = None, np.empty(0, np.int64)

    def __deepcopy__(self, memo: dict[int, Any]) -> "SparseTable":
        copied: SparseTable = copy.deepcopy(self.weight, memo).table
        return copied

    def note_type(self, memory: torch.Tensor) -> None:
        """Take dtype and device of the weight's memory for rows."""
        self.device, self.dtype = memory.device, memory.dtype

    def set_gradient(self, gradient: torch.Tensor | None) -> None:
        """Replace the gradient of the step in progress.

        Raises:
            WeightError: if it has not one row for each row of the step.
        """
        if isinstance(gradient, RowGradient):
            gradient = gradient.rows
        if gradient is not None and len(gradient) != len(self._ids_U):
            if gradient.shape != self.weight.shape:
                reason = (
                    f"it has shape {list(gradient.shape)}, and must have that of the weight, "
                    f"{list(self.weight.shape)}, or one row for each of the {len(self._ids_U)} "
                    "rows of the step"
                )
                raise WeightError(table=self.name, operation="a write of grad", reason=reason)
            self.take_whole_gradient(gradient)
            return
        self.gradient = gradient

    @property
    def stepping_ids(self) -> NDArray[np.int64]:
        """Ids of the rows of the step in progress, int64 [U]."""
        return self._ids_U

    @property
    def stepping_rows(self) -> torch.Tensor:
        """Rows of the step in progress as they were looked up, beside their gradient."""
        assert self._rows_UD is not None, "they have a gradient"
        return self._rows_UD

    def take_whole_gradient(self, gradient: torch.Tensor) -> torch.Tensor:
        """Replace the gradient by one of all rows, [N, D]: rows beside the step's join it.

        Rows of the step whose gradient is 0 stay in it.

        Returns:
            The gradient of the step's rows, [U, D].
        """
        ids = torch.from_numpy(self._ids_U).to(gradient.device)
        is_part = (gradient != 0).any(1)
        is_part[ids] = True
        unique, _, offsets = self.partition(is_part.nonzero().flatten().cpu().numpy())
        place = torch.from_numpy(unique).to(gradient.device)
        with torch.no_grad():
            rows = to_device(torch.from_numpy(self.read(unique)), self.device, dtype=self.dtype)
        taken = gradient[place]
        self._hold(unique, offsets, rows, taken)
        return taken

    def lookups_of_the_step(self) -> list[tuple[NDArray[np.int64], torch.Tensor]]:
        """Return ids int64 [U] and rows [U, D] of each lookup that waits for its gradient."""
        found = [(ids, leaf()) for ids, leaf in self._lookups]
        return [(ids, leaf) for ids, leaf in found if leaf is not None]

    def end_step(self) -> None:
        """Forget the lookups of the step that was taken."""
        self.is_stepped = True
        if self._lookups:
            self._lookups = []

    def note_once(self, event: str, reason: str) -> None:
        """Log a difference from torch, once a table."""
        if event not in self._noted:
            self._noted.add(event)
            log.warning(event, extra={"table": self.name, "reason": reason})

    def rename(self, name: str) -> None:
        """Change the name, which changes the rows' first values.

        Raises:
            TableInUseError: if rows were handed out already.
        """
        if self.in_use:
            raise TableInUseError(table=self.name)
        self.name, self.preview = name, None

    def partition(self, ids: NDArray[np.int64]) -> Partitioned:
        """Return a batch's ids as ``source`` takes them."""
        return partition(ids, self.source.num_shards, by_id=self.source.by_id)

    @property
    def learns(self) -> bool:
        """Whether rows that are looked up now learn."""
        return self.is_trainable and torch.is_grad_enabled()

    def rows(
        self,
        ids_U: NDArray[np.int64],
        offsets: NDArray[np.int64],
        *,
        creates: bool = True,
        use: RowUse | None = None,
    ) -> torch.Tensor:
        """Return the rows of unique ids as a tensor of the weight's type, [U, D].

        Of a table with an accessor, without the columns that the model doesn't see.

        Where they learn it is a leaf whose gradient, once complete, is added to
        this step's pending gradients.

        Args:
            ids_U: int64 [U], sorted by the shards of ``source``.
            offsets: int64 [S + 1], the shards' bounds in ``ids_U``.
            creates: Whether rows that learn are created now, and not with their first gradient.
            use: Of a table with an accessor.
        """
        learns = self.learns
        found = self.source.lookup(self, ids_U, offsets, create=learns and creates)
        values = found if isinstance(found, torch.Tensor) else torch.from_numpy(found)
        if self.accessor is not None and self.accessor.num_hidden:
            values = values[:, self.accessor.num_hidden :].contiguous()
        rows_UD = to_device(values, self.device, dtype=self.dtype)
        if learns:
            rows_UD.requires_grad_()
            rows_UD.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]  # torch leaves it untyped
                lambda leaf: self._collect(ids_U, offsets, leaf, use)
            )
            if len(self._lookups) > _LOOKUPS:  # of forwards without a step
                self._lookups = [each for each in self._lookups if each[1]() is not None]
            self._lookups.append((ids_U, weakref.ref(rows_UD)))
        return rows_UD

    @property
    def has_gradient(self) -> bool:
        """Whether a gradient is pending, which may be one without rows: it counts as a step."""
        return self.gradient is not None

    def zero_gradient(self) -> None:
        """Keep a gradient without rows in place of one that is pending: it counts as a step."""
        if self.gradient is None:
            return
        rows = self.gradient.new_empty((0, self.gradient.shape[1]))
        self._hold(np.empty(0, np.int64), np.zeros_like(self._offsets), rows, rows.clone())
        self.is_stepped = True

    @property
    def pending_ids(self) -> NDArray[np.int64]:
        """Return the ids of the rows whose gradients are pending, int64 [U]."""
        return self._ids_U

    def held(self) -> tuple[NDArray[np.int64], torch.Tensor] | None:
        """Return this step's ids, int64 [U], and what is pushed for them [U, D].

        Gradients stay where they were computed; counts, if there are any, stand before them.
        """
        if self.gradient is None or not len(self._ids_U):
            return None
        grads = self.gradient.detach()
        if self._counts is None:
            return self._ids_U, grads
        counts = to_device(torch.from_numpy(self._counts), grads.device)
        summed = grads.to(torch.float32) * self._instances
        return self._ids_U, torch.cat([counts, summed], dim=1)

    def pending(self) -> RowBatch | None:
        """Return this step's gradients; None without any."""
        if self.gradient is None or not len(self._ids_U):
            return None
        held = RowBatch(self._ids_U, self._pushed(self.gradient), self._offsets)
        if len(held.offsets) - 1 == self.source.num_shards:
            return held
        ids, inverse, offsets = self.partition(held.ids)
        return RowBatch(ids, merge_by_inverse(held.values, inverse, len(ids)), offsets)

    def pending_gradients(self) -> RowBatch | None:
        """Return this step's gradients as the model has them, without counts; None without any.

        They are sorted as ``pending`` returns them.
        """
        batch = self.pending()
        if batch is None or self._counts is None:
            return batch
        grads = batch.values[:, self.num_counts :] / np.float32(self._instances)
        return RowBatch(batch.ids, grads, batch.offsets)

    def num_miscounted(self) -> int:
        """Return how many rows of this step have no show, or fewer than 0 clicks."""
        if self.gradient is None or self._counts is None:
            return 0
        return num_miscounted(self._counts)

    def _pushed(self, grads: torch.Tensor) -> NDArray[np.float32]:
        """Return what is pushed for each row, [U, D]: counts, if any, and gradients."""
        rows = _host_rows(grads)
        if self._counts is None:
            return rows
        return np.concatenate([self._counts, rows * np.float32(self._instances)], axis=1)

    def _collect(
        self,
        ids_U: NDArray[np.int64],
        offsets: NDArray[np.int64],
        leaf: torch.Tensor,
        use: RowUse | None,
    ) -> None:
        """Add the gradients of one forward pass to the step's."""
        grads, leaf.grad = leaf.grad, None
        assert grads is not None, "the hook runs after accumulation"
        self._lookups = [each for each in self._lookups if each[1]() is not leaf]
        if self.write is None:
            self.note_once("worker.rows_without_optimizer", _NO_OPTIMIZER)
        is_first, rows = self.gradient is None or not len(self._ids_U), leaf.detach()
        counts: NDArray[np.float32] | None = None
        if use is not None:
            rows, grads, counts = self._parted(rows, grads, use)
            grads = self._as_of_the_step(grads, use.instances, is_first=is_first)
        if is_first:
            self._counts = counts
            self._hold(ids_U, offsets, rows, grads)
            return
        num_shards, ids = len(offsets) - 1, np.concatenate([self._ids_U, ids_U])
        union, inverse, bounds = partition(ids, num_shards, by_id=self.source.by_id)
        index = to_device(torch.from_numpy(inverse), grads.device)
        assert self.gradient is not None, "it isn't the first"
        both = torch.cat([self.gradient, grads])
        shape = (len(union), grads.shape[1])
        if both.device.type == "cpu" and both.dtype == torch.float32:
            total = torch.from_numpy(merge_by_inverse(both.numpy(), inverse, len(union)))
        else:
            total = both.new_zeros(shape).index_add_(0, index, both)
        if counts is not None and self._counts is not None:
            all_counts = np.concatenate([self._counts, counts])
            self._counts = merge_by_inverse(all_counts, inverse, len(union))
        merged = rows.new_empty(shape)
        held = len(self._ids_U)
        merged[index[:held]] = self.stepping_rows
        merged[index[held:]] = rows
        self._hold(union, bounds, merged, total)

    def _parted(
        self, rows: torch.Tensor, grads: torch.Tensor, use: RowUse
    ) -> tuple[torch.Tensor, torch.Tensor, NDArray[np.float32]]:
        """Return rows and gradients without counts, [U, D - counts], and what is counted."""
        if use.counts is not None:
            return rows, grads, use.counts
        num = self.num_counts
        counts = _host_rows(grads[:, :num].contiguous())
        return rows[:, num:].contiguous(), grads[:, num:].contiguous(), counts

    def _as_of_the_step(
        self, grads: torch.Tensor, instances: int, *, is_first: bool
    ) -> torch.Tensor:
        """Return gradients as those of a batch as large as the step's first one."""
        assert self.accessor is not None, "only its rows are used so"
        if not self.accessor.sums_gradients:
            return grads
        if is_first:
            self._instances = float(instances)
            return grads
        return grads if instances == self._instances else grads * (instances / self._instances)

    def _hold(
        self,
        ids_U: NDArray[np.int64],
        offsets: NDArray[np.int64],
        rows_UD: torch.Tensor,
        grads_UD: torch.Tensor,
    ) -> None:
        self._rows_UD, self.gradient = rows_UD, grads_UD
        self._ids_U = ids_U
        self._offsets = offsets
        self.is_stepped = False


def _host_rows(tensor: torch.Tensor) -> NDArray[np.float32]:
    """Return rows as float32 [U, D] in the host's memory, contiguous; a view if they are."""
    rows: NDArray[np.float32] = to_host(tensor, dtype=torch.float32).numpy()
    return rows


def table_of(parameter: torch.Tensor) -> SparseTable | None:
    """Return the sparse table whose weight this parameter is; None for any other tensor."""
    if isinstance(parameter, TableWeight) and parameter.is_trained:
        table: SparseTable = parameter.table
        return table
    return None


def tables_of(model: torch.nn.Module) -> dict[str, SparseTable]:
    """Return a model's sparse tables by the path of the module that holds each."""
    return {
        path.rpartition(".")[0]: table
        for path, parameter in model.named_parameters()
        if (table := table_of(parameter)) is not None
    }
