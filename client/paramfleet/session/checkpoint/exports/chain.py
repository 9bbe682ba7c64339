"""A base and the deltas behind it: which one is next, and what changed since the last one."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paramfleet.serving.manifest import Release, read_export_manifest
from paramfleet.session.checkpoint.exports.modes import NoBaseError
from paramfleet_shared.checkpoint.manifest import FilePart, new_identity
from paramfleet_shared.tables.rows.routing import mixed
from paramfleet_shared.tables.spec import ExportKind

__all__ = ["ExportChain", "LocalChanges"]

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

    def changed(
        self, table: str, part: FilePart
    ) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Return which rows changed, bool [n], and the ids of those that there are no more.

        Args:
            table: Its name.
            part: All rows that there are now.
        """
        assert part.ids is not None, "rows have ids"
        nothing = np.empty(0, np.int64), np.empty(0, np.uint64)
        ids, hashes = self._known.get(table, nothing)
        changed = np.ones(len(part.ids), np.bool_)
        if len(ids):
            places = np.minimum(np.searchsorted(ids, part.ids), len(ids) - 1)
            same = (ids[places] == part.ids) & (hashes[places] == _hashes(part))
            changed = ~same
        return changed, np.setdiff1d(ids, part.ids)

    def take(self, export: str, parts: Iterable[tuple[str, FilePart]]) -> None:
        """Remember what there is at an export.

        Args:
            export: Its identity.
            parts: All rows of each table.
        """
        self._export, self._known = export, {}
        for table, part in parts:
            assert part.ids is not None, "rows have ids"
            order = np.argsort(part.ids)
            self._known[table] = part.ids[order], _hashes(part)[order]


def _hashes(part: FilePart) -> NDArray[np.uint64]:
    """Return a hash of each row with its states: uint64 [n]."""
    found = np.zeros(part.num_rows, np.uint64)
    for numbers in (part.values, part.states):
        for column in np.ascontiguousarray(numbers.T):
            found = mixed((found + _STEP) ^ column.view(np.uint32))
    return found
