"""What a table is: plain facts that every process of a job must agree on."""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_args

from typing_extensions import override

from paramfleet_shared.errors import ContractError
from paramfleet_shared.tables.rules.catalog import RULES
from paramfleet_shared.tables.rules.first_wire import LARGEST
from paramfleet_shared.tables.rules.record import Broken, Column, Rule
from paramfleet_shared.values.texts import NAME_RULE, is_name, shown

__all__ = [
    "GROUPS",
    "MAX_ENTRY_COUNT",
    "MOST_DIMENSIONS",
    "SEEN",
    "EntrySpec",
    "ExportKind",
    "InitializerSpec",
    "NamedShape",
    "OptimizerSpec",
    "Rounding",
    "SavedTableMismatchError",
    "Storage",
    "TableMismatchError",
    "TableSpec",
    "TableSpecError",
    "Tracks",
    "stream_of",
]

_InitializerKind = Literal["zeros", "constant", "uniform", "normal"]
_TableKind = Literal["dense", "sparse"]
_EntryKind = Literal["none", "count_filter", "probability"]
Tracks = Literal["none", "step", "hour"]
Storage = Literal["float32", "float16", "bfloat16"]
Rounding = Literal["stochastic", "nearest"]
ExportKind = Literal["base", "delta"]
"""What rows are chosen for (``rows.choosing``)."""

GROUPS = "dense_N holds parameter group N of the optimizer, or fragment N of LocalSGD"
"""What the names of dense tables say."""

NamedShape = tuple[str, tuple[int, ...]]
"""A parameter: its name in the model, and its shape."""

MOST_DIMENSIONS = 64
"""Of one parameter: as many as torch's tensors have."""

MAX_NUM_SHARDS = 65_536
"""``route`` takes a shard from 16 bits of the hash."""


MAX_ENTRY_COUNT = 255
"""Counters of ids without a row are bytes."""

MAX_TABLE_ROWS = 1 << 40
"""Of the cap of a table."""

SEEN = Column(name="seen", per_row=True, first=0.0, not_negative=True)
"""When a row was pushed last, where that is tracked: a step, or an hour from 1970. 0: never.
Where pushes fade, it is later the oftener the row was pushed (``rows.evicting.seen_after``)."""

MAX_HALF_LIFE = 1 << 40
"""Of pushes, in steps."""


class TableSpecError(ContractError):
    """A table, its initializer or its optimizer is described wrongly."""

    code = "contract.table_spec"

    def __init__(self, *, field: str, value: Any, rule: str) -> None:
        super().__init__(
            f"{field} = {shown(value)}: {rule}",
            field=field,
            value=value if isinstance(value, int | float | str | bool) else shown(value),
            rule=rule,
        )
        self.field = field
        self.rule = rule


class TableMismatchError(ContractError):
    """Two processes describe one table differently."""

    code = "contract.table_mismatch"
    table: str
    field: str
    have: Any
    got: Any
    sentence = (
        "table {table!r} is declared with {field} = {got!r}, but it exists with "
        "{field} = {have!r}: every worker must declare the same model"
    )


class SavedTableMismatchError(TableMismatchError):
    """A checkpoint's table has other rows than the model's table of its name."""

    code = "contract.saved_table_mismatch"
    difference: str = ""
    """The first parameter that differs and how, where both say which ones they hold."""
    sentence = (
        "the checkpoint's table {table!r} has {field} = {got!r}, and the model's has {have!r}: "
        "load a checkpoint of this model, or begin without one"
    )

    @override
    def describe(self) -> str:
        said = super().describe()
        if self.difference:
            said = (
                f"{self.difference} (in table {self.table!r}): load a checkpoint of this "
                "model, or begin without one"
            )
        if self.field != "size":  # which tables of rows don't have; or one shape is another
            return said
        return (
            f"{said}; {GROUPS}: give the optimizer its parameters in the order and groups of "
            "the checkpoint, or, if its manifest names them, load it in one process with this "
            "optimizer and save it again"
        )


def stream_of(seed: int, table: str) -> int:
    """Return the 64 bits that a table's first values are made from, with each id."""
    name = f"{seed}/{table}".encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little")


def _named_shape(wire: Any) -> NamedShape:
    """Return a parameter's name and shape.

    Raises:
        ValueError: if it is something else.
    """
    name, shape = wire
    if type(name) is not str or not name:
        rule = f"{shown(name)} is no name of a parameter"
        raise ValueError(rule)
    if len(shape) > MOST_DIMENSIONS or any(type(n) is not int or n < 0 for n in shape):
        rule = f"{shown(shape)} is no shape of a parameter"
        raise ValueError(rule)
    return name, tuple(shape)


def _demand(*, true: bool, field: str, value: Any, rule: str) -> None:
    if not true:
        raise TableSpecError(field=field, value=value, rule=rule)


def _demand_number(field: str, value: Any, least: float, most: float) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    rule = f"must be a number from {least:g} to {most:g}"
    _demand(true=is_number and least <= value <= most, field=field, value=value, rule=rule)


@dataclass(frozen=True, kw_only=True, slots=True)
class InitializerSpec:
    """How a row's first value is made: from (seed, table, id, column) alone.

    Raises:
        TableSpecError: if a field breaks its rule.
    """

    kind: _InitializerKind = "zeros"
    value: float = 0.0
    """Of ``constant``."""

    low: float = 0.0
    """Of ``uniform``: the least value."""

    high: float = 1.0
    """Of ``uniform``: what every value stays below, but for rounding."""

    mean: float = 0.0
    """Of ``normal``."""

    std: float = 1.0
    """Of ``normal``: the standard deviation."""

    def __post_init__(self) -> None:
        known = get_args(_InitializerKind)
        _demand(
            true=self.kind in known,
            field="initializer.kind",
            value=self.kind,
            rule=f"must be one of {', '.join(known)}",
        )
        for name in ("value", "low", "high", "mean", "std"):
            number = getattr(self, name)
            _demand_number(f"initializer.{name}", number, -LARGEST, LARGEST)
            object.__setattr__(self, name, float(number))  # torch takes its dtype from it
        _demand(
            true=self.low <= self.high,
            field="initializer.low",
            value=self.low,
            rule=f"must not exceed high = {self.high!r}",
        )
        _demand(
            true=self.std >= 0.0,
            field="initializer.std",
            value=self.std,
            rule="must not be negative",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class EntrySpec:
    """Which ids get a row when they are pushed.

    Raises:
        TableSpecError: if a field breaks its rule.
    """

    kind: _EntryKind = "none"
    value: float = 0.0
    """Of ``count_filter``: the steps that must have used an id, a whole number; of
    ``probability``: the share of ids that are admitted."""

    max_rows: int = 0
    """Rows of the table, on all pservers, beyond which no id gets one; 0 for no such limit."""

    @property
    def admits_all(self) -> bool:
        """Return whether every id gets a row."""
        return self.kind == "none" and not self.max_rows

    def __post_init__(self) -> None:
        rule = f"must be a whole number from 0 to {MAX_TABLE_ROWS}"
        is_whole = type(self.max_rows) is int and 0 <= self.max_rows <= MAX_TABLE_ROWS
        _demand(true=is_whole, field="entry.max_rows", value=self.max_rows, rule=rule)
        known = get_args(_EntryKind)
        _demand(
            true=self.kind in known,
            field="entry.kind",
            value=self.kind,
            rule=f"must be one of {', '.join(known)}",
        )
        if self.kind == "count_filter":
            _demand_number("entry.value", self.value, 1, MAX_ENTRY_COUNT)
            is_whole = float(self.value).is_integer()
            rule = "must be a whole number"
            _demand(true=is_whole, field="entry.value", value=self.value, rule=rule)
        elif self.kind == "probability":
            _demand_number("entry.value", self.value, 0.0, 1.0)
            rule = "must be between 0 and 1"
            _demand(
                true=0.0 < self.value < 1.0, field="entry.value", value=self.value, rule=rule
            )
        object.__setattr__(self, "value", float(self.value))


@dataclass(frozen=True, init=False, repr=False, slots=True)
class OptimizerSpec:
    """A rule and its constants, named and defaulted as in ``torch.optim``.

    The learning rate is not here: every push carries its own. What a rule is, its record
    says (``tables.rules``).

    Args:
        rule: The rule's name.
        tracks: What a row keeps of when it was pushed last: its ``step``, the ``hour``, or
            ``none``.
        half_life: Steps after which a push counts for half in what a row keeps of them; 0 keeps
            the last one alone.
        constants: Those of its constants that don't have their defaults.

    Raises:
        TableSpecError: if the rule isn't known, or a constant breaks its own rule.
        TypeError: if the rule has no such constant.
    """

    rule: str
    tracks: Tracks
    half_life: float
    _settings: tuple[tuple[str, float | bool | str], ...]
    """All constants, in the order of the rule's record."""

    def __init__(
        self,
        *,
        rule: str = "sgd",
        tracks: Tracks = "none",
        half_life: float = 0.0,
        **constants: float | bool | str,
    ) -> None:
        known = tuple(RULES)
        _demand(
            true=rule in known,
            field="optimizer.rule",
            value=rule,
            rule=f"must be one of {', '.join(known)}",
        )
        record = RULES[rule]
        settings = {each.name: each.default for each in record.constants}
        for name in constants:
            if name not in settings:
                message = (
                    f"OptimizerSpec.__init__() got an unexpected keyword argument {name!r}"
                )
                raise TypeError(message)
        settings |= constants
        _demand_constants(record, settings)
        known = get_args(Tracks)
        _demand(
            true=tracks in known,
            field="optimizer.tracks",
            value=tracks,
            rule=f"must be one of {', '.join(known)}",
        )
        object.__setattr__(self, "rule", rule)
        _demand_number("optimizer.half_life", half_life, 0.0, MAX_HALF_LIFE)
        _demand(
            true=not half_life or tracks == "step",
            field="optimizer.half_life",
            value=half_life,
            rule="is of rows that keep the step",
        )
        object.__setattr__(self, "tracks", tracks)
        object.__setattr__(self, "half_life", float(half_life))
        object.__setattr__(self, "_settings", tuple(settings.items()))

    def __repr__(self) -> str:
        said = dict(self._settings)
        if self.tracks != "none":
            said["tracks"] = self.tracks
        if self.half_life:
            said["half_life"] = self.half_life
        settings = "".join(f", {name}={value!r}" for name, value in said.items())
        return f"OptimizerSpec(rule={self.rule!r}{settings})"

    @property
    def record(self) -> Rule:
        """Return what is known of the rule."""
        return RULES[self.rule]

    @property
    def constants(self) -> dict[str, Any]:
        """Return all constants by name."""
        return dict(self._settings)

    @property
    def columns(self) -> tuple[Column, ...]:
        """Return the columns of state that it keeps beside the values."""
        own = self.record.columns_of(self.constants)
        return own if self.tracks == "none" else (*own, SEEN)

    @property
    def num_state_columns(self) -> int:
        """Return how many columns of state there are."""
        return len(self.columns)

    @property
    def num_counts(self) -> int:
        """Return how many of a row's first values are counts, which no rate scales."""
        statistics = self.record.statistics
        return 0 if statistics is None else statistics.num_counts

    @property
    def initial_state(self) -> float:
        """Return what every number of a new row's state is."""
        return self.record.initial(self.constants)

    def to_wire(self) -> dict[str, Any]:
        """Return plain values that the constructor takes by name."""
        own = {"rule": self.rule, **self.constants}
        if self.tracks != "none":  # which rules of before don't have
            own["tracks"] = self.tracks
        if self.half_life:
            own["half_life"] = self.half_life
        return own


def _demand_constants(record: Rule, settings: Mapping[str, Any]) -> None:
    for each in record.constants:
        field, value = f"optimizer.{each.name}", settings[each.name]
        if isinstance(each.default, bool):
            _demand(
                true=type(value) is bool, field=field, value=value, rule="must be a boolean"
            )
            continue
        if each.choices:
            rule = f"must be one of {', '.join(each.choices)}"
            _demand(true=value in each.choices, field=field, value=value, rule=rule)
            continue
        _demand_number(field, value, each.least, each.most)
        _demand(
            true=not each.below_most or value < each.most,
            field=field,
            value=value,
            rule=f"must be in [{each.least:g}, {each.most:g})",
        )
    _demand_whole(record.check(settings), settings)


def _demand_whole(broken: Broken | None, settings: Mapping[str, Any]) -> None:
    if broken is not None:
        field, value = f"optimizer.{broken.name}", settings[broken.name]
        raise TableSpecError(field=field, value=value, rule=broken.rule)


@dataclass(frozen=True, kw_only=True, slots=True)
class TableSpec:
    """A table of a job: its name, shape, first values and optimizer.

    Raises:
        TableSpecError: if a field breaks its rule.
    """

    name: str
    kind: _TableKind
    dim: int = 1
    """Width of a sparse table's row; 1 for a dense table."""

    size: int = 0
    """Number of values of a dense table; 0 for a sparse one, which has no bound."""

    num_shards: int = 8
    """Slices of the table, the same for all tables of a job."""

    seed: int = 0
    """With the name it makes the first values."""

    initializer: InitializerSpec = InitializerSpec()
    optimizer: OptimizerSpec = OptimizerSpec()

    storage: Storage = "float32"
    """How the pservers keep a sparse table's values; the optimizer's state is float32."""

    rounding: Rounding = "stochastic"
    """How an updated value is rounded to less than float32. Rounded to nearest, updates
    below half a step of the value are lost; stochastically, none is on average."""

    entry: EntrySpec = EntrySpec()
    """Which ids of a sparse table get a row."""

    parameters: tuple[NamedShape, ...] = ()
    """What a dense table's values are, in their order; empty where they have no names."""

    def __post_init__(self) -> None:
        sparse = self.kind == "sparse"
        known = get_args(_TableKind)
        _demand(
            true=self.kind in known,
            field="kind",
            value=self.kind,
            rule=f"must be one of {', '.join(known)}",
        )
        rule = f"must be {NAME_RULE}"
        _demand(true=is_name(self.name), field="name", value=self.name, rule=rule)
        _demand(true=self.dim >= 1, field="dim", value=self.dim, rule="must be at least 1")
        _demand(
            true=sparse or self.dim == 1,
            field="dim",
            value=self.dim,
            rule="is 1 in a dense table, which is flat",
        )
        _demand(
            true=self.size == 0 if sparse else self.size >= 0,
            field="size",
            value=self.size,
            rule="is 0 in a sparse table, and not negative in a dense one",
        )
        _demand(
            true=1 <= self.num_shards <= MAX_NUM_SHARDS,
            field="num_shards",
            value=self.num_shards,
            rule=f"must be in 1..{MAX_NUM_SHARDS}",
        )
        self._demand_parameters()
        self._demand_storage()
        self._demand_admission()
        self._demand_statistics()
        if sparse:
            constants = self.optimizer.constants
            _demand_whole(self.optimizer.record.lazy_check(constants), constants)

    def _demand_parameters(self) -> None:
        sizes = sum(math.prod(shape) for _, shape in self.parameters)
        _demand(
            true=not self.parameters or sizes == self.size,
            field="parameters",
            value=sizes,
            rule=f"must have the table's {self.size} values together",
        )

    def _demand_storage(self) -> None:
        for field, known in (
            ("storage", get_args(Storage)),
            ("rounding", get_args(Rounding)),
        ):
            value = getattr(self, field)
            rule = f"must be one of {', '.join(known)}"
            _demand(true=value in known, field=field, value=value, rule=rule)
        _demand(
            true=self.kind == "sparse" or self.storage == "float32",
            field="storage",
            value=self.storage,
            rule="is float32 in a dense table",
        )

    @property
    def num_unscaled(self) -> int:
        """Return how many of the first numbers pushed for a row no share of a worker scales."""
        optimizer = self.optimizer
        statistics = optimizer.record.statistics
        return 0 if statistics is None else statistics.unscaled(optimizer.constants, self.dim)

    @property
    def creates_at_push(self) -> bool:
        """Return whether a row is made by a push alone, not when its id is first read."""
        counts = self.optimizer.record.statistics is not None
        return counts or self.optimizer.tracks != "none" or not self.entry.admits_all

    @property
    def drawn(self) -> range:
        """Return which of a row's first values the initializer makes; the others are 0.

        Those of ids without a row are the same.
        """
        statistics, counts = self.optimizer.record.statistics, self.optimizer.num_counts
        if statistics is None:
            return range(self.dim)
        return range(counts, counts + statistics.drawn(self.optimizer.constants, self.dim))

    def _demand_admission(self) -> None:
        """Pass if the table can have its entry, and what its rows keep of their use."""
        sparse = self.kind == "sparse"
        rule = "is of sparse tables"
        entry, tracks = self.entry, self.optimizer.tracks
        _demand(true=sparse or entry.admits_all, field="entry", value=entry.kind, rule=rule)
        _demand(
            true=sparse or tracks == "none", field="optimizer.tracks", value=tracks, rule=rule
        )
        _demand(
            true=tracks == "none" or not self.optimizer.num_counts,
            field="optimizer.tracks",
            value=tracks,
            rule=f"has no use: rows of {self.optimizer.rule!r} keep the day",
        )
        _demand(
            true=not entry.max_rows or entry.max_rows >= self.num_shards,
            field="entry.max_rows",
            value=entry.max_rows,
            rule=f"must be at least num_shards = {self.num_shards}, or 0",
        )

    def _demand_statistics(self) -> None:
        counts = self.optimizer.num_counts
        if not counts:
            return
        rule = f"is of sparse tables: {self.optimizer.rule!r} counts how rows are used"
        _demand(
            true=self.kind == "sparse",
            field="optimizer.rule",
            value=self.optimizer.rule,
            rule=rule,
        )
        rule = f"must be more than {counts}: a row begins with as many counts"
        _demand(true=self.dim > counts, field="dim", value=self.dim, rule=rule)
        rule = "must be float32 where rows count how they are used: 16 bits count to 256"
        _demand(true=self.storage == "float32", field="storage", value=self.storage, rule=rule)

    def to_wire(self) -> dict[str, Any]:
        """Return plain values that ``from_wire`` takes."""
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        nested: dict[str, Any] = {
            "initializer": asdict(self.initializer),
            "optimizer": self.optimizer.to_wire(),
        }
        del plain["entry"]  # which tables of before don't have
        if not self.entry.admits_all:
            nested["entry"] = asdict(self.entry)
        del plain["parameters"]  # the same
        if self.parameters:
            nested["parameters"] = [[name, list(shape)] for name, shape in self.parameters]
        return plain | nested

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> "TableSpec":
        """Rebuild a spec from ``to_wire``'s values.

        Raises:
            TableSpecError: if a value is missing, unknown, of a wrong type, or breaks its rule.
        """
        plain = dict(wire)
        for field in ("dim", "size", "num_shards", "seed"):
            value = plain.get(field, 0)
            _demand(
                true=type(value) is int, field=field, value=value, rule="must be a whole number"
            )
        try:
            initializer = InitializerSpec(**dict(plain.pop("initializer")))
            optimizer = OptimizerSpec(**dict(plain.pop("optimizer")))
            entry = EntrySpec(**dict(plain.pop("entry", {})))
            plain["parameters"] = tuple(map(_named_shape, plain.pop("parameters", [])))
            return cls(**plain, initializer=initializer, optimizer=optimizer, entry=entry)
        except (KeyError, TypeError, ValueError) as error:
            raise TableSpecError(
                field="table", value=str(wire.get("name")), rule=f"is malformed: {error}"
            ) from error

    def check_same_rows(self, got: "TableSpec") -> None:
        """Compare with a table whose rows this one is to take.

        How they are trained and kept may differ, and how many shards there are.

        Raises:
            SavedTableMismatchError: if the name, shape or first values differ.
        """
        how = {
            name: getattr(self, name)
            for name in ("num_shards", "optimizer", "storage", "rounding", "entry")
        }
        if self.size != got.size and self.parameters and got.parameters:
            field, difference = _first_difference(self.parameters, got.parameters)
            raise SavedTableMismatchError(
                table=self.name, field=field, have=self.size, got=got.size,
                difference=difference,
            )  # fmt: skip
        bare = replace(self, parameters=())  # sizes may differ, and then are named
        _check_same(bare, replace(got, parameters=(), **how), SavedTableMismatchError)

    def check_same(self, got: "TableSpec") -> None:
        """Compare with another process's description of the table.

        Raises:
            TableMismatchError: if a field differs; it names the first.
        """
        _check_same(self, got, TableMismatchError)


def _first_difference(
    have: tuple[NamedShape, ...], saved: tuple[NamedShape, ...]
) -> tuple[str, str]:
    """Return what differs between a model's table and a saved one of another size.

    Returns:
        ``shape`` or ``size``, and the first parameter that differs, in words.
    """
    had, has = dict(saved), dict(have)
    for name, shape in have:
        if name in had and had[name] != shape:
            words = f"has shape {shape} in the model, and {had[name]} in the checkpoint"
            return "shape", f"parameter {shown(name)} {words}"
    for name, _ in have:
        if name not in had:
            return "size", f"parameter {shown(name)} of the model isn't in the checkpoint"
    name = next((name for name, _ in saved if name not in has), saved[0][0])
    return "size", f"parameter {shown(name)} of the checkpoint isn't in the model"


def _check_same(have: TableSpec, got: TableSpec, error: type[TableMismatchError]) -> None:
    have_wire, got_wire = have.to_wire(), got.to_wire()
    for field in fields(have):
        have_value, got_value = have_wire.get(field.name), got_wire.get(field.name)
        if have_value != got_value:
            raise error(table=have.name, field=field.name, have=have_value, got=got_value)
