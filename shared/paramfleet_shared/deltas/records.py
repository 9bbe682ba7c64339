"""What a stream consists of, in memory.

State n of a model is state n-1 and change n. A base is the whole state behind a change. Neither
has states of an optimizer: a stream is for readers that look rows up.

Shape legend: n = rows, m = removed rows, D = row width.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.files.documents import whole
from paramfleet_shared.files.row_files import part_from_wire, part_of_row
from paramfleet_shared.tables.spec import InitializerSpec, Storage, TableSpec

__all__ = [
    "BaseTable",
    "Change",
    "NumberedChange",
    "OpenedBase",
    "StreamHead",
    "StreamTable",
    "TableChange",
]


class TableChange(NamedTuple):
    """What has changed in one sparse table. No id is in both lists."""

    ids: NDArray[np.int64]
    """int64 [n]; as a reader gives them: sorted, each once."""
    rows: NDArray[np.float32]
    """float32 [n, D]: row i is the new one of ``ids[i]``."""
    removed: NDArray[np.int64]
    """int64 [m]: ids that have no row any more; sorted, each once, as a reader gives them."""


@dataclass(frozen=True)
class Change:
    """One change of a model: rows that are new or changed, rows that ended, dense values."""

    moment: float
    """Seconds since 1970: everything that the pservers had applied until then is in it."""

    tables: Mapping[str, TableChange]
    """By name; tables without changes may be left out."""

    dense: Mapping[str, NDArray[np.float32]]
    """Dense parameters that have changed, by name, each whole and in its shape."""


@dataclass(frozen=True)
class NumberedChange:
    """A change of a stream, proven."""

    number: int
    change: Change


@dataclass(frozen=True, kw_only=True)
class StreamTable:
    """What a reader must know of a sparse table.

    Raises:
        TableSpecError: if a field breaks its rule.
    """

    name: str
    dim: int
    """D: the width of a row."""

    seed: int = 0
    initializer: InitializerSpec = field(default_factory=InitializerSpec)
    """What makes the job's first values, of seed, table and id."""

    storage: Storage = "float32"
    """How the job's pservers keep values; first values are rounded so."""

    zero_unknown: bool = False
    """Whether an id without a row reads zeros, as first values in the job are."""

    drawn: tuple[int, int] | None = None
    """Which of a row's first values the initializer makes, the first one and the end; the
    others are 0. None for all of them."""

    def __post_init__(self) -> None:
        TableSpec(
            name=self.name,
            kind="sparse",
            dim=self.dim,
            seed=self.seed,
            initializer=self.initializer,
            storage=self.storage,
        )

    @classmethod
    def of(cls, spec: TableSpec) -> "StreamTable":
        """Describe a sparse table of a job."""
        drawn = spec.drawn
        return cls(
            name=spec.name,
            dim=spec.dim,
            seed=spec.seed,
            initializer=spec.initializer,
            storage=spec.storage,
            zero_unknown=not drawn,
            drawn=part_of_row(drawn, spec.dim),
        )

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> "StreamTable":
        """Rebuild what ``to_wire`` returned.

        Raises:
            ValueError: if a value breaks its rule.
            KeyError: if a value is missing.
            TypeError: if a value is of another type.
            TableSpecError: if the table is described wrongly.
        """
        seed, zero_unknown = wire["seed"], wire["zero_unknown"]
        if type(seed) is not int or type(zero_unknown) is not bool:
            raise ValueError("seed must be a whole number, and zero_unknown true or false")
        dim = whole(wire["dim"], "dim")
        return cls(
            name=wire["name"],
            dim=dim,
            seed=seed,
            initializer=InitializerSpec(**dict(wire["initializer"])),
            storage=wire["storage"],
            zero_unknown=zero_unknown,
            drawn=part_from_wire(wire.get("drawn"), dim),
        )

    def to_wire(self) -> dict[str, Any]:
        """Return plain values for ``from_wire``; of what few tables have nothing else."""
        wire = asdict(self)
        if self.drawn is None:
            del wire["drawn"]
        return wire

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the description: JSON with sorted keys, without blanks."""
        text = json.dumps(self.to_wire(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class StreamHead:
    """What ``stream.json`` says: which stream there is, and how far it is."""

    stream: str
    """32 hexadecimal digits."""

    last: int
    """Number of the newest change; 0 if there is none yet."""

    digest: str
    """SHA-256 of the file of change ``last``; of the manifest of base 0 if ``last`` is 0."""

    moment: float
    """Seconds since 1970: everything that the pservers had applied until then is in it."""

    writer: str
    """Random name of the process that writes."""

    bases: Mapping[int, str]
    """The bases that are kept, oldest first: the SHA-256 of each one's manifest."""

    @property
    def base(self) -> int:
        """Return the number of the newest base."""
        return max(self.bases)


class BaseTable(NamedTuple):
    """A sparse table of a base: read-only views of a mapped file."""

    table: StreamTable
    ids: NDArray[np.int64]
    """int64 [n], sorted, each once."""
    rows: NDArray[np.float32]
    """float32 [n, D]: row i is that of ``ids[i]``."""


@dataclass(frozen=True, kw_only=True)
class OpenedBase:
    """A base, proven and mapped; its arrays stay valid when its files are removed."""

    stream: str
    number: int
    """Of the newest change that is in it; 0 if it is the stream's first base."""

    moment: float
    digest: str
    """SHA-256 of what change ``number + 1`` follows."""

    tables: Mapping[str, BaseTable]
    """By name."""

    dense: Mapping[str, NDArray[np.float32]]
    """Dense parameters by name, read-only."""
