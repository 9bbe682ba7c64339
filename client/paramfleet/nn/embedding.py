"""``Embedding`` and ``EmbeddingBag`` over sparse tables.

They keep torch's call signatures. What differs: ids are any 64-bit integers, negative
ones if that is said, ``num_embeddings`` is only a hint of how many there will be, a row
comes to life when its id is first trained, and ``padding_idx`` is an id taken
literally (so -1 may be padding), never counted from the end.
"""

import itertools
import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, get_args, overload

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from paramfleet.config.accessor import CtrAccessor
from paramfleet.config.entries import Entry
from paramfleet.nn.counting import use_by_gradient, use_of
from paramfleet.nn.initializers import constant, normal, uniform
from paramfleet.nn.lookups import bags_of_rows, rows_of_ids
from paramfleet.nn.weighted import WeightedModule
from paramfleet.serving.modules import ServedEmbedding, ServedEmbeddingBag, demand_own_forward
from paramfleet.serving.rows import TableRows
from paramfleet.tables.devices import to_device, to_host
from paramfleet.tables.embedding_errors import (
    EmbeddingOptionError,
    IdError,
    UntraceableError,
    id_type_error,
    negative_id_error,
)
from paramfleet.tables.row_store import RowStore
from paramfleet.tables.sparse import KeptAs, RowUse, SparseTable
from paramfleet.telemetry.eager import runs_eagerly
from paramfleet_shared.tables.partition import Partitioned
from paramfleet_shared.tables.spec import EntrySpec, InitializerSpec, Rounding, Storage
from paramfleet_shared.values.texts import shown

__all__ = [
    "Embedding",
    "EmbeddingBag",
    "EmbeddingOptionError",
    "IdError",
    "constant",
    "normal",
    "uniform",
]

_NAMES = itertools.count()
"""Numbers the tables that got no name: the same script gives the same names everywhere."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _TableOptions:
    """What torch's signature doesn't have."""

    name: str | None
    initializer: InitializerSpec | None
    seed: int
    kept_as: KeptAs
    negative_ids: bool
    accessor: Any
    """A ``CtrAccessor`` or None, once it was checked."""
    entry: Any
    """An ``Entry`` or None, once it was checked."""

    def check(self) -> None:
        """Pass if the table can have its accessor and its entry.

        Raises:
            EmbeddingOptionError: if one is none, or the rows are kept in 16 bits.
        """
        if self.entry is not None and not isinstance(self.entry, Entry):
            rule = "must be fleet.nn.CountFilterEntry(...) or fleet.nn.ProbabilityEntry(...)"
            value = shown(self.entry)
            raise EmbeddingOptionError(option="entry", value=value, rule=rule)
        if self.accessor is None:
            return
        if not isinstance(self.accessor, CtrAccessor):
            rule = "must be made by fleet.nn.CtrAccessor(...)"
            value = shown(self.accessor)
            raise EmbeddingOptionError(option="accessor", value=value, rule=rule)
        if self.kept_as.storage != "float32":
            rule = "must be float32 where rows have an accessor: 16 bits count to 256"
            value = repr(self.kept_as.storage)
            raise EmbeddingOptionError(option="storage", value=value, rule=rule)

    @property
    def entry_spec(self) -> EntrySpec:
        """Return which ids get a row."""
        return EntrySpec() if self.entry is None else self.entry.spec

    def first_values(self) -> InitializerSpec:
        """Return what makes first values: what is given, else the accessor's, else torch's.

        Raises:
            EmbeddingOptionError: if it is something else.
        """
        if self.initializer is None and self.accessor is not None:
            own: InitializerSpec = self.accessor.initializer
            return own
        return _initializer(self.initializer)


class _Counting(NamedTuple):
    """What a forward knows of shows and clicks."""

    instances: int
    """B."""
    instance_of: Callable[[], NDArray[np.int64]]
    """Returns the instance that each id is of, int64 [n]."""
    show: torch.Tensor | None
    click: torch.Tensor | None


Different = tuple[Partitioned, NDArray[np.bool_] | None]
"""The different ids of a batch without padding, and where the padding is."""


def _kept_as(storage: Storage, rounding: Rounding) -> KeptAs:
    """Return both as one.

    Raises:
        EmbeddingOptionError: if one is none of those there are.
    """
    for option, value, known in (
        ("storage", storage, get_args(Storage)),
        ("rounding", rounding, get_args(Rounding)),
    ):
        if value not in known:
            rule = f"must be one of {', '.join(known)}"
            raise EmbeddingOptionError(option=option, value=repr(value), rule=rule)
    return KeptAs(storage, rounding)


def _whole(option: str, value: Any) -> int:
    """Return a whole number as an int.

    Raises:
        EmbeddingOptionError: if it is none.
    """
    try:
        return operator.index(value)
    except TypeError as error:
        rule = "must be a whole number"
        raise EmbeddingOptionError(option=option, value=shown(value), rule=rule) from error


def _initializer(given: Any) -> InitializerSpec:
    """Return what makes first values; torch's default if nothing is given.

    Raises:
        EmbeddingOptionError: if it is something else.
    """
    made = normal() if given is None else given
    if isinstance(made, InitializerSpec):
        return made
    rule = (
        "must be made by fleet.nn.normal(...), fleet.nn.uniform(...) or fleet.nn.constant(...)"
    )
    raise EmbeddingOptionError(option="initializer", value=shown(given), rule=rule)


def _check_tensor(table: SparseTable, ids: Any) -> None:
    """Check that ids are a tensor.

    Raises:
        UntraceableError: if they stand for one, as in a trace of the model's Python code.
        IdError: if they are anything else.
    """
    if isinstance(ids, torch.Tensor):
        return
    if type(ids).__module__.startswith("torch.fx"):
        raise UntraceableError(table=table.name, where="torch.fx.symbolic_trace")
    rule = "ids must be a tensor of int64 or int32"
    raise IdError(table=table.name, found=shown(ids), rule=rule)


def _counting_of(
    ids: torch.Tensor, show: torch.Tensor | None, click: torch.Tensor | None
) -> _Counting:
    """Return what is known of a batch whose first dimension is that of its instances."""
    instances = ids.shape[0] if ids.dim() else 1
    each = ids.numel() // max(1, instances)
    return _Counting(
        instances, lambda: np.arange(ids.numel(), dtype=np.int64) // max(1, each), show, click
    )


def _bags_of(ids: torch.Tensor, offsets: torch.Tensor) -> NDArray[np.int64]:
    """Return the bag of each id, int64 [n], where bags begin at ``offsets``."""
    starts = to_host(offsets, dtype=torch.int64).numpy()
    return np.searchsorted(starts, np.arange(ids.numel()), side="right").astype(np.int64) - 1


class SparseModule(WeightedModule):
    """What the two modules share: the table, and ids to rows."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        padding_idx: int | None,
        table: _TableOptions,
        unsupported: dict[str, Any],
    ) -> None:
        torch.nn.Module.__init__(self)
        for option, value in unsupported.items():
            if value:
                rule = "sparse tables don't do this; leave it out"
                raise EmbeddingOptionError(option=option, value=repr(value), rule=rule)
        embedding_dim = _whole("embedding_dim", embedding_dim)
        if embedding_dim < 1:
            value, rule = repr(embedding_dim), "must be at least 1"
            raise EmbeddingOptionError(option="embedding_dim", value=value, rule=rule)
        if padding_idx is not None:
            padding_idx = _whole("padding_idx", padding_idx)
        table.check()
        hidden = 0 if table.accessor is None else table.accessor.num_hidden
        least = 0 if table.accessor is None else table.accessor.num_counts
        if embedding_dim + hidden <= least:
            rule = f"must be more than {least}: with cvm=True show and click are two of them"
            raise EmbeddingOptionError(
                option="embedding_dim", value=repr(embedding_dim), rule=rule
            )
        self.num_embeddings = _whole("num_embeddings", num_embeddings)
        if not 0 <= self.num_embeddings < 1 << 63:
            value, rule = repr(num_embeddings), "must be from 0, for any id, to below 2**63"
            raise EmbeddingOptionError(option="num_embeddings", value=value, rule=rule)
        self.max_norm, self.norm_type, self.scale_grad_by_freq, self.sparse = (
            None,
            2.0,
            False,
            True,
        )
        self.embedding_dim = embedding_dim
        self.padding_idx = padding_idx
        self.negative_ids = table.negative_ids
        self.named = table.name is not None
        self.table = SparseTable(
            name=table.name or f"embedding_{next(_NAMES)}",
            dim=embedding_dim + hidden,
            initializer=table.first_values(),
            seed=_whole("seed", table.seed),
            kept_as=table.kept_as._replace(accessor=table.accessor, entry=table.entry_spec),
            make_source=RowStore.of,
        )
        self.table.has_default_values = table.initializer is None
        self.table.num_embeddings = self.num_embeddings
        self.table.padding_idx = padding_idx
        self._parameters["weight"] = self.table.weight
        if padding_idx is not None and padding_idx < 0 < self.num_embeddings:
            reason = (
                f"padding_idx={padding_idx} is that id here, not counted from the end as "
                f"in torch; give padding_idx={self.num_embeddings + padding_idx} for that row"
            )
            self.table.note_once("worker.padding_is_an_id", reason)
        self._known: list[tuple[bytes, Different]] = []
        """Ids that are about to be looked up, int64 [n], with what ``different`` returns."""

    def expect(self, ids: torch.Tensor, found: Different | None = None) -> Different:
        """Return what ``different`` does, and keep it for the lookup that will follow.

        Args:
            ids: Those of the lookup.
            found: What ``different`` returned for them before, if it did.

        Raises:
            IdError: as ``different``.
        """
        found = self.different(ids) if found is None else found
        self._known.append((to_host(ids, dtype=torch.int64).numpy().tobytes(), found))
        return found

    def expect_nothing(self) -> None:
        """Forget what was kept for lookups that didn't follow."""
        self._known.clear()

    @property
    def row_width(self) -> int:
        """Return how many columns the table has, those included that the module hides."""
        return self.table.dim

    @property
    def _hidden(self) -> int:
        accessor = self.table.accessor
        return 0 if accessor is None else accessor.num_hidden

    @property
    def learns(self) -> bool:
        """Whether rows that are looked up now learn."""
        return self.table.learns

    @property
    def creates(self) -> bool:
        """Whether ids without a row get one when they are looked up now."""
        return self.training and self.table.learns

    def table_at(self, path: str) -> str:
        """Return the table's name, if the module stands at ``path`` in a model."""
        return self.table.name if self.named or not path else path

    def different(self, ids: torch.Tensor) -> Different:
        """Return the ids that a forward looks up, and which of ``ids`` are padding.

        Returns:
            The different ids without padding, with the way back to those that aren't; and
            bool [n], or None if there is no padding.

        Raises:
            IdError: on a dtype that isn't an id's, or a negative id.
        """
        flat = self._flat(ids)
        if self._known:
            looked_up = flat.tobytes()
            for place, (expected, found) in enumerate(self._known):
                if expected == looked_up:  # and was checked then
                    del self._known[place]
                    return found
        self._check(flat)
        padding = flat == self.padding_idx if self.padding_idx is not None else None
        if padding is not None and not padding.any():
            padding = None
        batch = flat if padding is None else flat[~padding]
        return self.table.partition(batch), padding

    def _rows(
        self, ids: torch.Tensor, counting: _Counting
    ) -> tuple[torch.Tensor, torch.Tensor, int | None]:
        """Return rows float [R, D], each id's row int64 [n], and the row of padding.

        Where there is padding, the last row is its zeros; else that is None.
        """
        if self._parameters.get("weight") is not self.table.weight:
            self._check_weight()
        found = self.different(ids)
        (unique, index, offsets), padding = found
        use = self._use(found, counting)
        rows = self.table.rows(unique, offsets, creates=self.training, use=use)
        if padding is None:
            return rows, to_device(torch.from_numpy(index), rows.device), None
        whole = np.full(len(padding), len(unique), np.int64)
        whole[~padding] = index
        rows = torch.cat([rows, rows.new_zeros((1, self.embedding_dim))])
        return rows, to_device(torch.from_numpy(whole), rows.device), len(unique)

    def _use(self, found: Different, counting: _Counting) -> RowUse | None:
        """Return how a forward uses rows; None where nothing is counted.

        Raises:
            EmbeddingOptionError: if a count is given, and the table has no accessor.
            AccessorOptionError: as ``use_of`` and ``use_by_gradient``.
        """
        accessor = self.table.accessor
        if accessor is None:
            for option, value in (("show", counting.show), ("click", counting.click)):
                if value is not None:
                    rule = "needs a table with an accessor: fleet.nn.CtrAccessor(...)"
                    raise EmbeddingOptionError(option=option, value="a tensor", rule=rule)
            return None
        if not self.learns:
            return None
        instances, instance_of, show, click = counting
        if accessor.cvm:
            return use_by_gradient(instances=instances, show=show, click=click)
        (unique, index, _), padding = found
        of = instance_of() if padding is None else instance_of()[~padding]
        return use_of(of, index, len(unique), instances=instances, show=show, click=click)

    def _flat(self, ids: torch.Tensor) -> NDArray[np.int64]:
        """Return ids as int64 [n].

        Raises:
            IdError: on a dtype that isn't an id's.
            UntraceableError: where ids have no values.
        """
        if ids.dtype not in {torch.int64, torch.int32}:
            error = id_type_error(self.table.name, str(ids.dtype))
            raise error
        if torch._C._get_tracing_state() is not None:  # noqa: SLF001 - torch.jit.is_tracing warns
            raise UntraceableError(table=self.table.name, where="torch.jit.trace")
        try:
            flat: NDArray[np.int64] = to_host(ids.reshape(-1), dtype=torch.int64).numpy()
        except (RuntimeError, NotImplementedError) as error:
            where = "torch.vmap, torch.export or on a meta device"
            raise UntraceableError(table=self.table.name, where=where) from error
        return flat

    def _check(self, flat: NDArray[np.int64]) -> None:
        """Pass if these are ids, int64 [n], that the table takes.

        Raises:
            IdError: if one is negative.
        """
        if not flat.size:
            return
        least = flat.min()
        if self.num_embeddings > 0 and (least < 0 or flat.max() >= self.num_embeddings):
            self._note_other_ids(flat)
        if self.negative_ids or least >= 0:
            return
        negative = flat < 0
        if self.padding_idx is not None:
            negative &= flat != self.padding_idx
        if negative.any():
            error = negative_id_error(self.table.name, flat, negative)
            raise error

    def _note_other_ids(self, flat: NDArray[np.int64]) -> None:
        """Note ids, beside padding, that the weight has no row for."""
        own = flat if self.padding_idx is None else flat[flat != self.padding_idx]
        others = own[(own < 0) | (own >= self.num_embeddings)]
        if len(others):
            self.table.has_other_ids = True
            reason = (
                f"id {others[0]} is outside of num_embeddings={self.num_embeddings}: it gets a "
                "row of its own, where torch raises an IndexError; give num_embeddings=0 for a "
                "table that takes any id"
            )
            self.table.note_once("worker.id_outside_num_embeddings", reason)

    def extra_repr(self) -> str:
        """Say which table the rows live in."""
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return (
            f"{self.num_embeddings}, {self.embedding_dim}, table={self.table.name!r}{padding}"
        )


class Embedding(SparseModule, torch.nn.Embedding):  # type: ignore[misc]  # max_norm is None
    """``torch.nn.Embedding`` over a sparse table.

    Args:
        num_embeddings: The expected number of ids; only a hint.
        embedding_dim: Row width D.
        padding_idx: The id whose row is always zeros and is not trained. A negative value is
            an id, too; it does not count from the end.
        max_norm: Not supported.
        norm_type: Not used without ``max_norm``.
        scale_grad_by_freq: Not supported.
        sparse: Without effect: gradients are always sparse.
        name: The table's name; modules with the same name share a table. By default the
            module's path in the model given to ``fleet.distributed_model``.
        initializer: First values of a row: ``fleet.nn.normal`` (torch's default),
            ``uniform`` or ``constant``.
        seed: Seed of the initializer.
        storage: How the pservers store the values: ``float32``, or ``float16`` or
            ``bfloat16``, which take half the memory. Optimizer states and computations are
            float32, and so is every row in a worker: in one process, and in GEO's copies.
        rounding: How an updated value is rounded to 16 bits: ``stochastic``, correct on
            average, or ``nearest``, which loses changes below half of a rounding step.
        negative_ids: Accept negative ids, for example 64-bit hashes, which are negative from
            2**63 on; convert a uint64 tensor with ``ids.view(torch.int64)``. Without it a
            negative id is an error.
        accessor: Counts shows and clicks of rows, and trains rows by Fleet's rules instead of
            the optimizer's: ``fleet.nn.CtrAccessor(...)``.
        entry: Which ids get a row: ``fleet.nn.CountFilterEntry(n)``, or
            ``fleet.nn.ProbabilityEntry(p)``; by default all.

    Raises:
        EmbeddingOptionError: if sparse tables do not support an option or its value.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - torch's signature
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,  # noqa: ARG002 - torch's signature
        scale_grad_by_freq: bool = False,  # noqa: FBT001, FBT002 - torch's signature
        sparse: bool = True,  # noqa: ARG002, FBT001, FBT002 - torch's signature
        *,
        name: str | None = None,
        initializer: InitializerSpec | None = None,
        seed: int = 0,
        storage: Storage = "float32",
        rounding: Rounding = "stochastic",
        negative_ids: bool = False,
        accessor: CtrAccessor | None = None,
        entry: Entry | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        SparseModule.__init__(
            self,
            num_embeddings,
            embedding_dim,
            padding_idx=padding_idx,
            table=_TableOptions(
                name=name,
                initializer=initializer,
                seed=seed,
                kept_as=_kept_as(storage, rounding),
                negative_ids=negative_ids,
                accessor=accessor,
                entry=entry,
            ),
            unsupported={"max_norm": max_norm, "scale_grad_by_freq": scale_grad_by_freq},
        )
        if device is not None or dtype is not None:
            self.to(device=device, dtype=dtype)

    @classmethod
    @override
    def from_pretrained(
        cls,
        embeddings: torch.Tensor,
        freeze: bool = True,
        padding_idx: int | None = None,
        *unsupported: Any,
        **options: Any,
    ) -> "Embedding":
        """Return an embedding whose rows 0, 1, ... begin with ``embeddings``, float [N, D].

        Args:
            embeddings: The rows.
            freeze: Whether they keep these values.
            padding_idx: As of ``Embedding``.
            unsupported: ``max_norm``, ``norm_type``, ``scale_grad_by_freq`` and ``sparse``.
            options: Others of ``Embedding``.
        """
        count, dim = embeddings.shape
        made = cls(count, dim, padding_idx, *unsupported, **options)
        made._begin_with(embeddings, freeze=freeze)
        return made

    @overload
    def forward(
        self,
        input: torch.Tensor,
        *,
        show: torch.Tensor | None = None,
        click: torch.Tensor | None = None,
    ) -> torch.Tensor: ...
    @overload
    def forward(
        self,
        input: torch.Tensor,
        *,
        show: torch.Tensor | None = None,
        click: torch.Tensor | None = None,
        different: bool,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]: ...
    @runs_eagerly
    def forward(
        self,
        input: torch.Tensor,  # noqa: A002 - torch's name
        *,
        show: torch.Tensor | None = None,
        click: torch.Tensor | None = None,
        different: bool = False,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Return the rows of ids of any shape ``[...]`` as ``[..., D]``.

        Args:
            input: The ids; the first dimension is that of the batch's instances.
            show: float [B], how often each instance was shown, for a table with an accessor;
                1 by default.
            click: float [B], how often it was clicked; 0 by default.
            different: Return each distinct row once, float [U, D], and for each id the index
                of its row, int64 [...]. Use it for computations that need no copy of the row
                for each id.

        Raises:
            IdError: if the dtype is not int64 or int32, or an id is negative.
            UntraceableError: where ids have no values.
        """
        if type(input) is not torch.Tensor:
            _check_tensor(self.table, input)
        rows, index, _ = self._rows(input, _counting_of(input, show, click))
        if different:
            return rows, index.view(input.shape)
        return rows_of_ids(rows, index).view(*input.shape, self.embedding_dim)

    def served_from(self, rows: TableRows) -> ServedEmbedding:
        """Return a module that does the same with exported rows.

        Raises:
            EmbeddingOptionError: in a subclass that computes something else.
        """
        demand_own_forward(self, Embedding)
        return ServedEmbedding(
            rows, self.padding_idx, negative_ids=self.negative_ids, hidden=self._hidden
        )


class EmbeddingBag(SparseModule, torch.nn.EmbeddingBag):  # type: ignore[misc]  # the same
    """``torch.nn.EmbeddingBag`` over a sparse table.

    Args:
        num_embeddings: The expected number of ids; only a hint.
        embedding_dim: Row width D.
        max_norm: Not supported.
        norm_type: Not used without ``max_norm``.
        scale_grad_by_freq: Not supported.
        mode: ``sum``, ``mean`` or ``max`` over a bag.
        sparse: Without effect: gradients are always sparse.
        include_last_offset: The last of ``offsets`` is the number of ids, as in torch.
        padding_idx: The id that is left out of its bag. A negative value is an id, too; it
            does not count from the end.
        name: See ``Embedding``.
        initializer: See ``Embedding``.
        seed: See ``Embedding``.
        storage: See ``Embedding``.
        rounding: See ``Embedding``.
        negative_ids: See ``Embedding``.
        accessor: See ``Embedding``.
        entry: See ``Embedding``.

    Raises:
        EmbeddingOptionError: if sparse tables do not support an option or its value.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - torch's signature
        self,
        num_embeddings: int,
        embedding_dim: int,
        max_norm: float | None = None,
        norm_type: float = 2.0,  # noqa: ARG002 - torch's signature
        scale_grad_by_freq: bool = False,  # noqa: FBT001, FBT002 - torch's signature
        mode: str = "mean",
        sparse: bool = True,  # noqa: ARG002, FBT001, FBT002 - torch's signature
        include_last_offset: bool = False,  # noqa: FBT001, FBT002 - torch's signature
        padding_idx: int | None = None,
        *,
        name: str | None = None,
        initializer: InitializerSpec | None = None,
        seed: int = 0,
        storage: Storage = "float32",
        rounding: Rounding = "stochastic",
        negative_ids: bool = False,
        accessor: CtrAccessor | None = None,
        entry: Entry | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        SparseModule.__init__(
            self,
            num_embeddings,
            embedding_dim,
            padding_idx=padding_idx,
            table=_TableOptions(
                name=name,
                initializer=initializer,
                seed=seed,
                kept_as=_kept_as(storage, rounding),
                negative_ids=negative_ids,
                accessor=accessor,
                entry=entry,
            ),
            unsupported={"max_norm": max_norm, "scale_grad_by_freq": scale_grad_by_freq},
        )
        if device is not None or dtype is not None:
            self.to(device=device, dtype=dtype)
        if mode not in {"sum", "mean", "max"}:
            raise EmbeddingOptionError(option="mode", value=repr(mode), rule="sum, mean or max")
        self.mode = mode
        self.include_last_offset = include_last_offset

    @classmethod
    @override
    def from_pretrained(
        cls,
        embeddings: torch.Tensor,
        freeze: bool = True,
        *unsupported: Any,
        **options: Any,
    ) -> "EmbeddingBag":
        """Return bags of an embedding whose rows begin with ``embeddings``, float [N, D].

        Args:
            embeddings: The rows.
            freeze: Whether they keep these values.
            unsupported: ``max_norm``, ``norm_type`` and ``scale_grad_by_freq``.
            options: Others of ``EmbeddingBag``.
        """
        count, dim = embeddings.shape
        made = cls(count, dim, *unsupported, **options)
        made._begin_with(embeddings, freeze=freeze)
        return made

    @runs_eagerly
    def forward(
        self,
        input: torch.Tensor,  # noqa: A002 - torch's name
        offsets: torch.Tensor | None = None,
        per_sample_weights: torch.Tensor | None = None,
        *,
        show: torch.Tensor | None = None,
        click: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return one reduced row for each bag, [B, D].

        Args:
            input: Ids [B, n], where each row is a bag, or [n] with ``offsets``.
            offsets: The start of each bag in a 1-d ``input``.
            per_sample_weights: One factor for each id, in the shape of ``input``; only with
                ``mode="sum"``.
            show: float [B], how often each bag was shown, for a table with an accessor; 1 by
                default.
            click: float [B], how often it was clicked; 0 by default.

        Raises:
            IdError: if the dtype is not int64 or int32, or an id is negative.
            UntraceableError: where ids have no values.
        """
        if type(input) is not torch.Tensor:
            _check_tensor(self.table, input)
        counting = _counting_of(input, show, click)
        if offsets is not None:
            num = len(offsets) - int(self.include_last_offset)
            of = partial(_bags_of, input, offsets[:num])
            counting = counting._replace(instances=num, instance_of=of)
        rows, index, padding = self._rows(input, counting)
        return bags_of_rows(
            rows,
            index.view(input.shape),
            offsets,
            mode=self.mode,
            per_sample_weights=per_sample_weights,
            include_last_offset=self.include_last_offset,
            padding_idx=padding,
        )

    def served_from(self, rows: TableRows) -> ServedEmbeddingBag:
        """Return a module that does the same with exported rows.

        Raises:
            EmbeddingOptionError: in a subclass that computes something else.
        """
        demand_own_forward(self, EmbeddingBag)
        return ServedEmbeddingBag(
            rows,
            padding_idx=self.padding_idx,
            mode=self.mode,
            include_last_offset=self.include_last_offset,
            negative_ids=self.negative_ids,
            hidden=self._hidden,
        )
