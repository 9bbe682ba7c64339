"""Streams for tests: random changes, and the same kept in dicts as a reference."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from paramfleet_shared.deltas.reader import StreamReader
from paramfleet_shared.deltas.records import Change, OpenedBase, StreamTable, TableChange
from paramfleet_shared.deltas.stored.disk import StreamDisk
from paramfleet_shared.deltas.stored.head import base_number, change_number
from paramfleet_shared.deltas.writer import StreamWriter
from paramfleet_shared.tables.spec import InitializerSpec
from paramfleet_shared.testing.clock import FakeClock

KEPT = {"stream.json", "stream.lock", "bases.lock", "writer.lock"}
TABLES = (
    StreamTable(name="words", dim=3, seed=5, initializer=InitializerSpec(kind="uniform")),
    StreamTable(name="users/a b", dim=1, storage="float16", zero_unknown=True),
)
Rows = dict[int, tuple[float, ...]]


@dataclass
class Model:
    """Rows and parameters as plain values."""

    tables: dict[str, Rows] = field(default_factory=lambda: {t.name: {} for t in TABLES})
    dense: dict[str, list[float]] = field(default_factory=lambda: {"w": [0.0] * 6, "b": [1.0]})

    def copy(self) -> "Model":
        return Model({name: dict(rows) for name, rows in self.tables.items()}, dict(self.dense))

    def apply(self, change: Change) -> None:
        for name, (ids, rows, removed) in change.tables.items():
            for each, row in zip(ids.tolist(), rows.tolist(), strict=True):
                self.tables[name][each] = tuple(row)
            for each in removed.tolist():
                self.tables[name].pop(each, None)
        self.dense |= {name: v.reshape(-1).tolist() for name, v in change.dense.items()}


def arrays_of(dim: int, rows: Rows) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    values = np.array(list(rows.values()), np.float32).reshape(len(rows), dim)
    return np.array(list(rows), np.int64), values


def random_change(numbers: np.random.Generator, moment: float, *, span: int = 40) -> Change:
    """Return a change whose ids aren't sorted, of some tables, with negative ids, too."""
    tables = {}
    for table in TABLES:
        if numbers.random() < 0.2:
            continue
        ids = numbers.permutation(np.arange(-span // 2, span, dtype=np.int64))
        many, few = numbers.integers(0, span // 2, 2)
        rows = numbers.standard_normal((many, table.dim)).astype(np.float32)
        tables[table.name] = TableChange(ids[:many], rows, ids[many : many + few])
    dense = {}
    if numbers.random() < 0.7:
        dense["w"] = numbers.standard_normal((2, 3)).astype(np.float32)
    return Change(moment=moment, tables=tables, dense=dense)


def writer_at(
    folder: Path, disk: StreamDisk | None = None, keep_bases: int = 2
) -> StreamWriter:
    return StreamWriter(folder, clock=FakeClock(), keep_bases=keep_bases, disk=disk)


def begin(writer: StreamWriter, model: Model, moment: float = 1.0) -> None:
    """Begin a stream with a model's state, in two pieces a table."""
    pieces = []
    for table in TABLES:
        ids, rows = arrays_of(table.dim, model.tables[table.name])
        pieces += [(table.name, ids[:5], rows[:5]), (table.name, ids[5:], rows[5:])]
    dense = {
        name: np.array(values, np.float32).reshape(-1, 3 if len(values) > 1 else 1)
        for name, values in model.dense.items()
    }
    writer.begin(TABLES, pieces[::-1], dense, moment=moment)


def model_of(base: OpenedBase) -> Model:
    tables = {
        name: {each: tuple(row) for each, row in zip(ids.tolist(), rows.tolist(), strict=True)}
        for name, (_, ids, rows) in base.tables.items()
    }
    return Model(tables, {name: v.reshape(-1).tolist() for name, v in base.dense.items()})


def read_from(folder: Path, number: int | None = None) -> Model:
    """Return the newest state, read from a base, the newest if none is given."""
    reader = StreamReader(folder)
    base = reader.base(number)
    model = model_of(base)
    for each in reader.changes(base.number, reader.look().last):
        model.apply(each.change)
    return model


def leftovers(folder: Path) -> list[str]:
    """Return what is in a folder and belongs to no stream of two at most."""
    names = [each.name for each in folder.iterdir()]
    streams = [name for name in names if len(name) == 32]
    odd = [name for name in names if name not in {*streams, *KEPT}]
    odd += streams[2:]
    for stream in streams:
        inside = [each.name for each in (folder / stream).iterdir()]
        odd += [n for n in inside if base_number(n) is None and change_number(n) is None]
    return odd


class Crash(BaseException):
    """The process ends here."""


class FailingDisk(StreamDisk):
    """A real disk that fails at one of its calls, counted from 0; none if that is None.

    ``before``: the call has done nothing. ``after``: it has done all, and nobody knows.
    ``middle``: a file was half written under another name.
    """

    def __init__(self, kind: type[BaseException] = Crash) -> None:
        super().__init__()
        self.kind = kind
        self.at: int | None = None
        self.where = "before"
        self.count = 0

    def fail_at(self, at: int | None, where: str = "before") -> None:
        self.at, self.where, self.count = at, where, 0

    @override
    @contextmanager
    def creating(self, path: Path) -> Iterator[IO[bytes]]:
        with self._step(path, is_file=True), super().creating(path) as file:
            yield file

    @override
    def remove(self, path: Path) -> None:
        with self._step(path):
            super().remove(path)

    @override
    def remove_folder(self, path: Path) -> None:
        with self._step(path):
            super().remove_folder(path)

    @contextmanager
    def _step(self, path: Path, *, is_file: bool = False) -> Iterator[None]:
        now = self.count == self.at
        is_dead = self.kind is Crash and self.at is not None and self.count > self.at
        self.count += 1
        if is_dead or (now and self.where == "before"):
            raise self.kind
        if now and self.where == "middle" and is_file:
            path.parent.mkdir(parents=True, exist_ok=True)
            draft = path.with_name(f".{path.name}.0123456789abcdef.partial")
            draft.write_bytes(b"half")
            raise self.kind
        yield
        if now:
            raise self.kind
