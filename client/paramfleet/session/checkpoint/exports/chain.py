"""A base and the deltas behind it: which one is next, and what changed since the last one."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paramfleet.serving.manifest import Release, read_export_manifest
from paramfleet.session.checkpoint.exports.modes import NoBaseError
from paramfleet_shared.checkpoint.manifest import FilePart, new_identity
from paramfleet_shared.tables.rows.choosing import Choice
from paramfleet_shared.tables.rows.routing import mixed
from paramfleet_shared.tables.spec import ExportKind, TableSpec

__all__ = ["ExportChain", "LocalChanges", "PickedHere"]

_STEP = np.uint64(0x9E3779B97F4A7C15)


class ExportChain:
    """The exports of one worker, each of which follows another one."""

    def __init__(self) -> None:
        self.latest: Release | None = None
        """The last one that was written."""
        self.changes = LocalChanges()
        """Of tables of this process, if it has them itself."""

    def next(self, kind: ExportKind, folder: Path, after: str | Path | None) -> Release:
        """Return what the next export is.

        Args:
            kind: Base or delta.
            folder: Its folder, for errors.
            after: The folder of the export that a delta follows; None for the latest.

        Raises:
            NoBaseError: if it follows none.
            ExportError: if ``after`` is no export.
        """
        identity = new_identity()
        if kind == "base":
            return Release(kind="base", export=identity, base=identity, after="", sequence=0)
        before = self.latest
        if after is not None:
            before = read_export_manifest(Path(after), deltas=True).release
        if before is None:
            reason = "a delta follows a base or a delta, and none is known"
            raise NoBaseError(path=str(folder), reason=reason)
        return Release(
            kind="delta",
            export=identity,
            base=before.base,
            after=before.export,
            sequence=before.sequence + 1,
        )


class LocalChanges:
    """What changed in this process's tables since its last export.

    n = rows.
    """

    def __init__(self) -> None:
        self._export = ""
        self._known: dict[str, tuple[NDArray[np.int64], NDArray[np.uint64]]] = {}
        """Of each table: ids, sorted, and a hash of each one's row."""

    def knows(self, export: str) -> bool:
        """Return whether it is known what changed since an export."""
        return bool(export) and self._export == export

    def forget(self) -> None:
        """Know nothing of any export: rows were replaced by others."""
        self._export, self._known = "", {}

    def changed(self, table: str, part: FilePart) -> NDArray[np.bool_]:
        """Return which rows changed, bool [n].

        Args:
            table: Its name.
            part: Some of the rows that there are now.
        """
        assert part.ids is not None, "rows have ids"
        nothing = np.empty(0, np.int64), np.empty(0, np.uint64)
        ids, hashes = self._known.get(table, nothing)
        changed = np.ones(len(part.ids), np.bool_)
        if len(ids):
            places = np.minimum(np.searchsorted(ids, part.ids), len(ids) - 1)
            same = (ids[places] == part.ids) & (hashes[places] == _hashes(part))
            changed = ~same
        return changed

    def gone(self, table: str, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the ids of rows that there are no more, int64 [m].

        Args:
            table: Its name.
            ids: Of all rows that there are now.
        """
        known, _ = self._known.get(table, (np.empty(0, np.int64), None))
        return np.setdiff1d(known, ids)

    def take(self, export: str, tables: Iterable[tuple[str, Iterable[FilePart]]]) -> None:
        """Remember what there is at an export.

        Args:
            export: Its identity.
            tables: All rows of each table, some at a time.
        """
        self._export, self._known = export, {}
        for table, parts in tables:
            ids, hashes = [np.empty(0, np.int64)], [np.empty(0, np.uint64)]
            for part in parts:
                assert part.ids is not None, "rows have ids"
                ids.append(part.ids.copy())
                hashes.append(_hashes(part))
            every = np.concatenate(ids)
            order = np.argsort(every)
            self._known[table] = every[order], np.concatenate(hashes)[order]


class PickedHere:
    """What an export holds of tables of this process.

    Args:
        choice: What it is, and which day it is.
        changes: What changed since the export before.
    """

    def __init__(self, choice: Choice, changes: LocalChanges) -> None:
        self._choice = choice
        self._changes = changes
        self._ids: dict[str, list[NDArray[np.int64]]] = {}
        self._left_out: Counter[str] = Counter()

    def rows(self, spec: TableSpec, part: FilePart) -> NDArray[np.bool_] | None:
        """Return which rows it holds: bool [n]; None for all."""
        assert part.ids is not None, "rows have ids"
        self._ids.setdefault(spec.name, []).append(part.ids)
        if spec.optimizer.num_counts:
            chosen = self._choice.rows(spec, part.values, part.states)
            self._left_out[spec.name] += int((~chosen).sum())
            return chosen
        if self._choice.kind == "delta":
            return self._changes.changed(spec.name, part)
        return None

    def left_out(self, spec: TableSpec) -> int:
        """Return how many rows of a table with an accessor it leaves out."""
        return self._left_out[spec.name]

    def removed(self, spec: TableSpec) -> NDArray[np.int64]:
        """Return the ids of rows that were removed since, of a delta: [m]."""
        ids = self._ids.pop(spec.name, [])
        if self._choice.kind != "delta":
            return np.empty(0, np.int64)
        return self._changes.gone(spec.name, np.concatenate([np.empty(0, np.int64), *ids]))


def _hashes(part: FilePart) -> NDArray[np.uint64]:
    """Return a hash of each row with its states: uint64 [n]."""
    found = np.zeros(part.num_rows, np.uint64)
    for numbers in (part.values, part.states):
        for column in np.ascontiguousarray(numbers.T):
            found = mixed((found + _STEP) ^ column.view(np.uint32))
    return found
