"""How two checkpoints differ, table by table, in bounded memory."""

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.checkpoint.layers import Layers, read_layers
from paramfleet_shared.checkpoint.manifest import (
    MANIFEST,
    CheckpointDamagedError,
    FilePart,
    Manifest,
    map_arrays,
)
from paramfleet_shared.checkpoint.one_manifest import one_manifest
from paramfleet_shared.tables.spec import TableSpec
from paramfleet_worker.app.checkpoints.mapped import (
    MappedFile,
    MappedTable,
    row_bytes,
    slices_for,
)
from paramfleet_worker.core.checkpoints.comparing import (
    NO_CHANGES,
    Changes,
    Rows,
    changes_of_rows,
    changes_of_values,
    options_that_differ,
)
from paramfleet_worker.core.checkpoints.integrity import range_problems

__all__ = ["Difference", "TableDifference", "diff"]

_SLICE_BYTES = 64 << 20
"""Of rows of each checkpoint in memory."""

_VALUES = 1 << 20
"""Of a dense table, compared at a time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TableDifference:
    """How one table differs."""

    table: str
    kind: str
    rows_a: int = 0
    """Rows in A; of a dense table, its values. 0 if A lacks the table."""

    rows_b: int = 0
    missing_in: str = ""
    """``A`` or ``B``, if that lacks the table."""

    changes: Changes = NO_CHANGES
    options: Mapping[str, list[Any]] = field(default_factory=dict)
    """Options that differ, each with the value in A and in B."""

    not_compared: str = ""
    """What could not be compared, and why."""

    @property
    def equal(self) -> bool:
        """Return whether nothing differs."""
        return not (self.missing_in or self.changes.any or self.options)

    def to_json(self) -> dict[str, Any]:
        """Return plain values; a difference that isn't finite is None."""
        plain = asdict(self)
        changes = plain["changes"]
        for name in ("largest", "largest_state"):
            changes[name] = changes[name] if math.isfinite(changes[name]) else None
        return {**plain, "equal": self.equal}

    def to_line(self) -> str:
        """Return it as a sentence."""
        if self.missing_in:
            return f"{self.table}: {self.missing_in} has no such {self.kind} table"
        if self.equal:
            return f"{self.table}: equal, {_unit(self.kind, self.rows_a)}"
        told = [*_sentences(self.changes, self.kind), *filter(None, [self.not_compared])]
        told += [f"{name} is {a!r} in A, {b!r} in B" for name, (a, b) in self.options.items()]
        return f"{self.table}: {'; '.join(told)}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """How two checkpoints differ."""

    tables: tuple[TableDifference, ...]
    buffers: tuple[str, ...]
    """Buffers of the model that differ, or that one of them lacks."""

    steps: tuple[int | None, int | None]
    """Worker 0's steps, which make no difference."""

    schedules: tuple[str, ...] = ()
    """What is registered and isn't a position, and differs or is in one only. It makes no
    difference either: it follows from the steps."""

    @property
    def equal(self) -> bool:
        """Return whether tables and buffers are equal."""
        return not self.buffers and all(table.equal for table in self.tables)

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "equal": self.equal,
            "tables": [table.to_json() for table in self.tables],
            "buffers": list(self.buffers),
            "steps": list(self.steps),
            "schedules": list(self.schedules),
        }


def diff(folder_a: Path, folder_b: Path) -> Difference:
    """Compare the tables and buffers of two checkpoints, of any numbers of servers.

    Raises:
        ManifestError: if one isn't a checkpoint, or its files lack values of a dense table.
        CheckpointDamagedError: if a file isn't what was saved.
    """
    with ExitStack() as stack:
        a, b = (stack.enter_context(one_manifest(folder)) for folder in (folder_a, folder_b))
        of_a, of_b = ({table.spec.name: table.spec for table in each.tables} for each in (a, b))
        layers_a, layers_b = read_layers(folder_a, a), read_layers(folder_b, b)
        tables = tuple(
            _of_tables(_mapped(layers_a, of_a.get(name)), _mapped(layers_b, of_b.get(name)))
            for name in dict.fromkeys([*of_a, *of_b])
        )
        buffers = tuple(_buffers_that_differ((folder_a, a), (folder_b, b)))
        return Difference(
            tables=tables,
            buffers=buffers,
            steps=(_steps(a), _steps(b)),
            schedules=tuple(_schedules_that_differ(a, b)),
        )


def _sentences(found: Changes, kind: str) -> Iterator[str]:
    if found.only_in_a:
        yield f"{found.only_in_a} rows only in A"
    if found.only_in_b:
        yield f"{found.only_in_b} rows only in B"
    if found.changed_values:
        changed = _unit(kind, found.changed_values)
        yield f"{changed} changed, by {found.largest:.6g} at most"
    if found.changed_states:
        changed = _unit(kind, found.changed_states)
        yield f"states of {changed} changed, by {found.largest_state:.6g} at most"


def _unit(kind: str, count: int) -> str:
    return f"{count} {'rows' if kind == 'sparse' else 'values'}"


def _steps(manifest: Manifest) -> int | None:
    steps = None if manifest.progress is None else manifest.progress.extra.get("steps")
    return steps if type(steps) is int else None


def _schedules_that_differ(a: Manifest, b: Manifest) -> Iterator[str]:
    """Yield the names of registered states, such as schedules, that aren't the same."""
    of_a, of_b = _states(a), _states(b)
    for name in sorted({*of_a, *of_b}):
        if name not in of_a or name not in of_b or of_a[name] != of_b[name]:
            yield name


def _states(manifest: Manifest) -> dict[str, Any]:
    """Return the documents of registered states by name, and whether their step is to come."""
    if manifest.progress is None:
        return {}
    prefix, extra = "states/", manifest.progress.extra
    pending = extra.get("pending")
    waiting = pending if type(pending) is list else []
    return {
        name: [document, name in waiting]
        for path, document in extra.items()
        if path.startswith(prefix) and (name := path.removeprefix(prefix))
    }


def _mapped(layers: Layers, spec: TableSpec | None) -> MappedTable | None:
    """Return a table with its files; None if the checkpoint lacks it.

    Raises:
        CheckpointDamagedError: if a file isn't what was saved, or values of a dense table are
            in no file, or in several.
    """
    if spec is None:
        return None
    files = [MappedFile(file) for file in layers.files(spec.name)]
    if spec.kind == "dense":
        ranges = [(file.start, file.stop, file.file.name) for file in files]
        for name, problem in range_problems(ranges, spec.size):
            path = str(layers.top.folder / (name or MANIFEST))
            raise CheckpointDamagedError(path=path, reason=f"table {spec.name!r}: {problem}")
    return MappedTable(spec, files)


def _of_tables(a: MappedTable | None, b: MappedTable | None) -> TableDifference:
    if a is None or b is None:
        there = a or b
        assert there is not None, "one of them has it"
        return TableDifference(
            table=there.spec.name,
            kind=there.spec.kind,
            rows_a=0 if a is None else a.num_rows,
            rows_b=0 if b is None else b.num_rows,
            missing_in="A" if a is None else "B",
        )
    shapes = [(each.spec.kind, each.spec.dim, each.spec.size) for each in (a, b)]
    changes, not_compared = NO_CHANGES, ""
    if shapes[0] != shapes[1]:
        not_compared = "values of another shape are not compared"
    else:
        pieces = _sparse(a, b) if a.spec.kind == "sparse" else _dense(a, b)
        for piece in pieces:
            changes = changes.plus(piece)
    return TableDifference(
        table=a.spec.name,
        kind=a.spec.kind,
        rows_a=a.num_rows,
        rows_b=b.num_rows,
        changes=changes,
        options=options_that_differ(a.spec.to_wire(), b.spec.to_wire()),
        not_compared=not_compared,
    )


def _sparse(a: MappedTable, b: MappedTable) -> Iterator[Changes]:
    most = max(each.num_rows * row_bytes(each.spec) for each in (a, b))
    count = slices_for(most, 1, budget=_SLICE_BYTES)
    slices = a.slices(count), b.slices(count)
    for number in range(count):
        rows_a, rows_b = (
            _rows(table.rows_of(own, number)) for table, own in zip((a, b), slices, strict=True)
        )
        yield changes_of_rows(rows_a, rows_b)


def _rows(part: FilePart) -> Rows:
    assert part.ids is not None, "a sparse table has ids"
    return Rows(part.ids, part.values, part.states)


def _dense(a: MappedTable, b: MappedTable) -> Iterator[Changes]:
    for start in range(0, a.spec.size, _VALUES):
        stop = min(start + _VALUES, a.spec.size)
        yield changes_of_values(_range_of(a, start, stop), _range_of(b, start, stop))


def _range_of(
    table: MappedTable, start: int, stop: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return values float32 [n] and states float32 [S, n] of a range of a dense table."""
    parts = []
    for file in sorted(table.files, key=lambda each: each.start):
        first, last = max(start, file.start), min(stop, file.stop)
        if first < last:
            parts.append(file.part(slice(first - file.start, last - file.start)))
    values = np.concatenate([part.values for part in parts])
    return values, np.concatenate([part.states for part in parts], axis=1)


def _buffers_that_differ(a: tuple[Path, Manifest], b: tuple[Path, Manifest]) -> Iterator[str]:
    """Yield the names of buffers that differ in dtype, shape or numbers, or are in one only.

    Raises:
        CheckpointDamagedError: if a file isn't what was saved.
    """
    of_a, of_b = _buffers(*a), _buffers(*b)
    for name in sorted({*of_a, *of_b}):
        if name not in of_a or name not in of_b:
            yield name
            continue
        (kind_a, array_a), (kind_b, array_b) = of_a[name], of_b[name]
        if kind_a != kind_b or array_a.tobytes() != array_b.tobytes():
            yield name


def _buffers(folder: Path, manifest: Manifest) -> dict[str, tuple[Any, NDArray[Any]]]:
    """Return each buffer by name, with its dtype and shape.

    Raises:
        CheckpointDamagedError: if the file isn't what was saved, or lacks one.
    """
    saved = manifest.module
    if saved is None or not saved.file:
        return {}
    arrays = map_arrays(folder, saved)
    try:
        return {
            each.name: ((each.dtype, each.shape), arrays[f"buffers/{each.name}"])
            for each in saved.buffers
        }
    except KeyError as error:
        reason = f"it lacks {error}"
        raise CheckpointDamagedError(path=str(folder / saved.file), reason=reason) from error
