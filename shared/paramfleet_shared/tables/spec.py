"""What a table is: plain facts that every process of a job must agree on."""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_args

from paramfleet_shared.errors import ContractError
from paramfleet_shared.texts import NAME_RULE, is_name, shown

__all__ = [
    "InitializerSpec",
    "OptimizerSpec",
    "Rounding",
    "Storage",
    "TableMismatchError",
    "TableSpec",
    "TableSpecError",
    "stream_of",
]

_InitializerKind = Literal["zeros", "constant", "uniform", "normal"]
_Rule = Literal["sgd", "momentum", "adagrad", "adam", "sum"]
_TableKind = Literal["dense", "sparse"]
Storage = Literal["float32", "float16", "bfloat16"]
Rounding = Literal["stochastic", "nearest"]

MAX_NUM_SHARDS = 65_536
"""``route`` takes a shard from 16 bits of the hash."""


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

    def __init__(self, *, table: str, field: str, have: Any, got: Any) -> None:
        super().__init__(
            f"table {table!r} is declared with {field} = {got!r}, but it exists with "
            f"{field} = {have!r}: every worker must declare the same model",
            table=table,
            field=field,
            have=have,
            got=got,
        )
        self.table = table
        self.field = field


def stream_of(seed: int, table: str) -> int:
    """Return the 64 bits that a table's first values are made from, with each id."""
    name = f"{seed}/{table}".encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little")


def _demand(*, true: bool, field: str, value: Any, rule: str) -> None:
    if not true:
        raise TableSpecError(field=field, value=value, rule=rule)


_LARGEST = 1e30
"""Of the numbers that first values and states are made of."""

_RANGES: dict[str, tuple[float, float]] = {
    "momentum": (0.0, 1.0),
    "dampening": (0.0, 1.0),
    "weight_decay": (0.0, 1e6),
    "lr_decay": (0.0, 1e6),
    "initial_accumulator_value": (0.0, _LARGEST),
    "eps": (1e-30, 1e6),
}
"""Of an optimizer's numbers: within them finite gradients leave every state finite."""

_SMALL_EPS = 1e-9
"""An eps that bounds Adam's step by itself is at least this."""


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
            _demand_number(f"initializer.{name}", getattr(self, name), -_LARGEST, _LARGEST)
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
class OptimizerSpec:
    """A rule and its constants, named and defaulted as in ``torch.optim``.

    The learning rate is not here: every push carries its own. ``sum`` adds the
    pushed numbers to the values.

    Raises:
        TableSpecError: if a field breaks its rule.
    """

    rule: _Rule = "sgd"
    momentum: float = 0.9
    dampening: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    lr_decay: float = 0.0
    initial_accumulator_value: float = 0.0
    eps: float = 1e-8
    beta1: float = 0.9
    beta2: float = 0.999

    def __post_init__(self) -> None:
        known = get_args(_Rule)
        _demand(
            true=self.rule in known,
            field="optimizer.rule",
            value=self.rule,
            rule=f"must be one of {', '.join(known)}",
        )
        for name, (least, most) in _RANGES.items():
            _demand_number(f"optimizer.{name}", getattr(self, name), least, most)
        for name in ("beta1", "beta2"):
            number = getattr(self, name)
            _demand_number(f"optimizer.{name}", number, 0.0, 1.0)
            _demand(
                true=number < 1.0,
                field=f"optimizer.{name}",
                value=number,
                rule="must be in [0, 1)",
            )
        _demand(
            true=self.rule != "adam" or self.eps >= _SMALL_EPS or self.beta1**2 < self.beta2,
            field="optimizer.eps",
            value=self.eps,
            rule=f"must be at least {_SMALL_EPS:g} where beta1 squared isn't below beta2",
        )
        _demand(
            true=not self.nesterov or (self.momentum > 0.0 and self.dampening == 0.0),
            field="optimizer.nesterov",
            value=self.nesterov,
            rule="needs a momentum above 0 and no dampening",
        )

    @property
    def num_state_columns(self) -> int:
        """Return how many numbers of state stand beside each value."""
        return {"sgd": 0, "sum": 0, "momentum": 1, "adagrad": 1, "adam": 2}[self.rule]

    @property
    def initial_state(self) -> float:
        """Return what every number of a new row's state is."""
        return self.initial_accumulator_value if self.rule == "adagrad" else 0.0


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
        self._demand_storage()
        if sparse:
            self._demand_lazy_rule()

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

    def _demand_lazy_rule(self) -> None:
        _demand(
            true=self.optimizer.weight_decay == 0.0,
            field="optimizer.weight_decay",
            value=self.optimizer.weight_decay,
            rule="must be 0 for a sparse table: rows that no batch touches can't decay",
        )
        _demand(
            true=self.optimizer.rule != "momentum" or self.optimizer.dampening == 0.0,
            field="optimizer.dampening",
            value=self.optimizer.dampening,
            rule="must be 0 for a sparse table: a row's first step is not marked",
        )

    def to_wire(self) -> dict[str, Any]:
        """Return plain values that ``from_wire`` takes."""
        return asdict(self)

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
            return cls(**plain, initializer=initializer, optimizer=optimizer)
        except (KeyError, TypeError, ValueError) as error:
            raise TableSpecError(
                field="table", value=str(wire.get("name")), rule=f"is malformed: {error}"
            ) from error

    def check_same_rows(self, got: "TableSpec") -> None:
        """Compare with a table whose rows this one is to take.

        How they are trained and kept may differ, and how many shards there are.

        Raises:
            TableMismatchError: if the name, shape or first values differ.
        """
        how = {
            name: getattr(self, name)
            for name in ("num_shards", "optimizer", "storage", "rounding")
        }
        self.check_same(replace(got, **how))

    def check_same(self, got: "TableSpec") -> None:
        """Compare with another process's description of the table.

        Raises:
            TableMismatchError: if a field differs; it names the first.
        """
        have_wire, got_wire = self.to_wire(), got.to_wire()
        for field in fields(self):
            have_value, got_value = have_wire[field.name], got_wire[field.name]
            if have_value != got_value:
                raise TableMismatchError(
                    table=self.name, field=field.name, have=have_value, got=got_value
                )
