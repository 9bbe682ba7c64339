"""The files of ``fleet.save_inference_model``: rows by table, and the manifest."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from paramfleet.serving.files import describe_file
from paramfleet.serving.manifest import (
    MODEL,
    ExportedTable,
    Release,
    write_export_manifest,
)
from paramfleet.serving.unknown import Policy
from paramfleet.session.checkpoint.exports.reading import sparse_tables, table_pieces
from paramfleet_shared.checkpoint.manifest import (
    CheckpointDamagedError,
    FilePart,
    Manifest,
    read_removed,
    sync_directory,
)
from paramfleet_shared.deltas.base_writing import temporary_near
from paramfleet_shared.deltas.merging.folding import put_rows
from paramfleet_shared.deltas.merging.row_spool import SPOOL_BYTES, RowSpool
from paramfleet_shared.deltas.merging.runs import Run, merged
from paramfleet_shared.files.listed import ListedFile
from paramfleet_shared.files.row_files import row_file_name
from paramfleet_shared.files.tensorfile import created, write_tensors
from paramfleet_shared.tables.rows.choosing import delta_scores
from paramfleet_shared.tables.spec import TableSpec

__all__ = ["Held", "Pick", "PickedByPservers", "finish_export", "warn_of_empty", "write_rows"]

log = logging.getLogger(__name__)

_LEAST_BYTES = 1 << 20
"""Of what is in memory of a table's rows, however many tables there are."""

# Shape legend: n and m are numbers of rows.


class Held(NamedTuple):
    """What an export has of the ``delta_score`` of a table's rows."""

    table: str
    runs: Sequence[Run]
    """Ids, and amounts float32 [n, 1]; mapped if they are many."""
    rows: int
    left_out: int
    """Rows that there are beside."""

    def pieces(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """Yield ids, int64 [n], and their amounts, float32 [n], some at a time."""
        for piece in merged(self.runs, 1):
            yield piece.ids, piece.rows[:, 0]


class Pick(Protocol):
    """Says what is exported of a table."""

    def rows(self, spec: TableSpec, part: FilePart) -> NDArray[np.bool_] | None:
        """Return which of some rows are: bool [n]; None for all.

        Args:
            spec: The table.
            part: Some of its rows, each of which comes once.
        """

    def left_out(self, spec: TableSpec) -> int:
        """Return how many rows of a table with an accessor aren't exported.

        Args:
            spec: The table; all its rows were asked about.
        """

    def removed(self, spec: TableSpec) -> NDArray[np.int64]:
        """Return the ids of rows that were removed since the export before, of a delta: [m].

        Args:
            spec: The table; all its rows were asked about.
        """


class PickedByPservers:
    """All rows of a checkpoint, and what it says was removed.

    Args:
        parts: Its folder.
        manifest: Its manifest.
        left_out: Rows of each table that pservers left out of it.
    """

    def __init__(
        self, parts: Path, manifest: Manifest, left_out: Mapping[str, int] | None = None
    ) -> None:
        self._parts = parts
        self._manifest = manifest
        self._left_out = left_out or {}

    def rows(self, spec: TableSpec, part: FilePart) -> None:
        """Choose all."""

    def left_out(self, spec: TableSpec) -> int:
        """Return how many rows of a table aren't in the checkpoint."""
        return self._left_out.get(spec.name, 0)

    def removed(self, spec: TableSpec) -> NDArray[np.int64]:
        """Return the ids of removed rows.

        Raises:
            CheckpointDamagedError: if the checkpoint isn't what was saved.
        """
        increment = self._manifest.increment
        files = () if increment is None else increment.removed
        removed = [read_removed(self._parts, file) for file in files if file.table == spec.name]
        return np.concatenate([np.empty(0, np.int64), *removed])


def write_rows(
    parts: Path,
    manifest: Manifest,
    target: Path,
    unknown: Mapping[str, Policy | list[float]],
    pick: Pick,
) -> tuple[list[ExportedTable], list[Held]]:
    """Write each sparse table's ids and rows as one file, sorted by id.

    Rows are sorted on the disk of the target, which needs room for the largest table once
    more; memory holds some of them at a time.

    Args:
        parts: A whole checkpoint, or the rows of it that are to be exported.
        manifest: Its manifest.
        target: The folder to write to.
        unknown: What ids without a row shall read, by table; ``"initial"`` in others.
        pick: Says what is exported of a table.

    Returns:
        The tables, and what they have of rows with an accessor.

    Raises:
        CheckpointDamagedError: if the checkpoint isn't what was saved.
        OSError: if the system refuses.
    """
    taken: set[str] = set()
    tables: list[ExportedTable] = []
    held: list[Held] = []
    specs = sparse_tables(manifest)
    counted = sum(1 for spec in specs if spec.optimizer.num_counts)
    temporary = temporary_near(target)
    for spec in specs:
        rows = RowSpool(spec.dim, temporary, most_bytes=SPOOL_BYTES)
        most = max(_LEAST_BYTES, SPOOL_BYTES // max(1, counted))
        amounts = RowSpool(1, temporary, most_bytes=most)
        count = _spool(parts, manifest, spec, pick, (rows, amounts))
        if spec.optimizer.num_counts:
            held.append(Held(spec.name, amounts.runs(), count, pick.left_out(spec)))
        name = row_file_name(spec.name, taken)
        with created(target / name) as opened:
            put = put_rows(opened, rows.runs(), (spec.name, spec.dim), temporary)
        if put.rows != count:
            reason = f"{count - put.rows} ids of table {spec.name!r} are there twice"
            raise CheckpointDamagedError(path=str(parts), reason=reason)
        file = ListedFile(name=name, bytes=put.written.num_bytes, sha256=put.written.sha256)
        gone, removed = None, pick.removed(spec)
        if len(removed):
            name = row_file_name(spec.name, taken, kind="removed")
            written = write_tensors(
                target / name, {"ids": np.sort(removed)}, {"table": spec.name}
            )
            gone = ListedFile(name=name, bytes=written.num_bytes, sha256=written.sha256)
        policy = unknown.get(spec.name, "initial")
        tables.append(
            ExportedTable.of(spec, rows=put.rows, unknown=policy, file=file, removed=gone)
        )
    return tables, held


def _spool(
    parts: Path,
    manifest: Manifest,
    spec: TableSpec,
    pick: Pick,
    spools: tuple[RowSpool, RowSpool],
) -> int:
    """Read a table's rows that are exported; return how many there are.

    Args:
        parts: As of ``write_rows``.
        manifest: The same.
        spec: The table.
        pick: As of ``write_rows``.
        spools: Get the rows, and their ``delta_score`` if the table has an accessor.

    Raises:
        CheckpointDamagedError: if the checkpoint isn't what was saved.
        OSError: if the system refuses.
    """
    count, (rows, amounts) = 0, spools
    for part in table_pieces(parts, manifest, spec):
        chosen = pick.rows(spec, part)
        some = slice(None) if chosen is None else chosen
        assert part.ids is not None, "rows have ids"
        ids = part.ids[some]
        rows.add(ids, part.values[some])
        if spec.optimizer.num_counts:
            amounts.add(ids, delta_scores(spec, part.states[some])[:, np.newaxis])
        count += len(ids)
    return count


def warn_of_empty(folder: Path, held: Iterable[Held], manifest: Manifest) -> None:
    """Log which tables have rows, and none in a base.

    Args:
        folder: The base's.
        held: What it has of tables with an accessor.
        manifest: Of the checkpoint that it was made of.
    """
    specs = {spec.name: spec for spec in sparse_tables(manifest)}
    for each in held:
        if each.rows or not each.left_out:
            continue
        constants = specs[each.table].optimizer.constants
        threshold, days = constants["base_threshold"], constants["delta_keep_days"]
        extra = {
            "folder": str(folder),
            "table": each.table,
            "left_out": each.left_out,
            "reason": (
                f"none of its {each.left_out:,} rows has a score of at least base_threshold = "
                f"{threshold:g} and was seen in the last delta_keep_days = {days:g}"
            ),
            "remedy": "give its CtrAccessor a lower base_threshold, or save all rows: mode=0",
        }
        log.warning("worker.base_without_rows", extra=extra)


def finish_export(
    folder: Path, tables: list[ExportedTable], release: Release | None = None
) -> None:
    """Write the manifest, when all other files are there.

    Args:
        folder: The export's.
        tables: What it has.
        release: What it is of a base and deltas; None for an export of all rows.

    Raises:
        OSError: if the system refuses.
        CheckpointWriteError: if it refuses the folder.
    """
    write_export_manifest(folder, describe_file(folder / MODEL), tables, release)
    sync_directory(folder)
