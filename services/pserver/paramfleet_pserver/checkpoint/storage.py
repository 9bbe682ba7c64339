"""Saving the tables to a folder and loading them from one.

A save takes an image of all tables at one moment, and then writes it, a chunk at a time, into
a folder that the workers rename when all servers are done; the manifest is theirs too. Rows are
copied on their owners' threads, in slices that nobody waits long for, and written on a storage
thread: training goes on meanwhile.

A load reads the files of any number of servers and keeps the rows of its own shards.
Tables are built beside those in use and take their place when all is read: a load
that fails has no effect.
"""

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from paramfleet_pserver.checkpoint.gathering import Gathering
from paramfleet_pserver.checkpoint.images import (
    DenseImage,
    SparseImage,
    StoreImage,
    plan_chunks,
    row_bytes_of,
)
from paramfleet_pserver.checkpoint.writing import FileWriter
from paramfleet_pserver.tables.blocks import Block
from paramfleet_pserver.tables.owners import Job, Owners
from paramfleet_pserver.tables.table import DenseTable, SparseTable, Table
from paramfleet_pserver.tables.table_store import TableStore
from paramfleet_shared.checkpoint.columns import ColumnsDiffer
from paramfleet_shared.checkpoint.increments import RemovedIds
from paramfleet_shared.checkpoint.layers import LayerFile, Layers, read_layers
from paramfleet_shared.checkpoint.manifest import (
    MANIFEST,
    FilePart,
    ManifestError,
    SavedFile,
    StatesLeftOut,
    read_manifest,
    sync_directory,
    write_removed,
)
from paramfleet_shared.checkpoint.one_manifest import of_one_manifest
from paramfleet_shared.checkpoint.saved_ids import check_not_negative, refuse_doubled
from paramfleet_shared.tables.rows.batch import RowIds
from paramfleet_shared.tables.rows.choosing import Choice
from paramfleet_shared.tables.rows.routing import route
from paramfleet_shared.tables.rows.states import have_other_states, states_for
from paramfleet_shared.tables.spec import TableSpec

__all__ = ["Loaded", "Saved", "load_tables", "save_tables", "trained_otherwise"]

CHUNK_ROWS = 1_000_000
"""Most rows of one file."""

_WEIGHED = 1 << 16
"""Rows that are weighed at a time, in a copy of them."""

CHUNK_BYTES = 128 << 20
"""Most bytes of one file. A save takes memory for two, beside rows that change meanwhile."""


class Loaded(NamedTuple):
    """What was read from a checkpoint."""

    tables: list[Table]
    left_out: list[StatesLeftOut]
    digest: str = ""
    """SHA-256 of the manifest; empty if nothing was read."""
    differing: Sequence[ColumnsDiffer] = ()
    """Tables whose files have other columns of state."""


class Saved(NamedTuple):
    """What this server has written of a checkpoint."""

    files: list[SavedFile]
    removed: list[RemovedIds]
    """Of an increment."""
    left_out: dict[str, int]
    """Rows that weren't chosen, of each table of which rows are."""


async def save_tables(
    image: StoreImage,
    directory: Path,
    *,
    server: int,
    gathering: Gathering,
    only_changed: bool = False,
    choice: Choice | None = None,
) -> Saved:
    """Write every table's part of this server.

    Args:
        image: The tables.
        directory: Where to; made if it is missing.
        server: This server's index, part of the files' names.
        gathering: Adds the states that workers hold.
        only_changed: Whether rows are left out that haven't changed since the earlier save.
        choice: Which rows of tables with an accessor are written; all if it isn't given.

    Raises:
        CheckpointWriteError: if the system refuses; files may be left behind.
        TableMemoryError: if there is no memory for rows that changed since the image.
    """
    files, removed, left_out = FileWriter(directory), list[RemovedIds](), dict[str, int]()
    try:
        await files.begin(_own_names(server))
        for table in image.tables:
            stem = f"{_stem(table.spec.name)}.server{server}"
            spec = gathering.spec(table.spec)
            if isinstance(table, SparseImage):
                number, chunk_rows = 0, _chunk_rows(spec)
                if choice is not None and table.spec.optimizer.num_counts:
                    parts = _chosen_rows(table, chunk_rows, files, choice, left_out)
                elif only_changed:
                    parts = table.changed_parts(chunk_rows)  # few: gathered as they come
                else:
                    parts = _all_rows(table, chunk_rows, files)
                async for exported in parts:
                    part = await gathering.with_states(table.spec, exported)
                    await files.write(f"{stem}.{number:05d}.safetensors", spec, part)
                    number += 1
                gone = await asyncio.to_thread(table.removed)
                if only_changed and len(gone):
                    name = f"{stem}.removed.safetensors"
                    write = partial(
                        write_removed, directory, name, spec.name, gone, makes=False
                    )
                    removed.append(await files.beside(write))
            else:
                ranges = _parts_of(table.num_rows, spec)
                for number, where in enumerate(ranges):
                    part = await gathering.with_states(table.spec, await table.read(where))
                    name = f"{stem}.{number:05d}" if len(ranges) > 1 else stem
                    await files.write(f"{name}.safetensors", spec, part)
        written = await files.end()
    except BaseException:
        await files.settle()  # who gives the save up is told when nothing is written any more
        raise
    await asyncio.to_thread(sync_directory, directory)
    return Saved(written, removed, left_out)


async def _all_rows(
    table: SparseImage, chunk_rows: int, files: FileWriter
) -> AsyncIterator[FilePart]:
    for chunk in plan_chunks(table.num_places(), chunk_rows):
        num_rows = sum(segment.num_rows for segment in chunk)
        part = await table.read(chunk, await files.memory(num_rows * table.row_bytes))
        if part.num_rows:  # else all were removed
            yield part


async def _chosen_rows(
    table: SparseImage,
    chunk_rows: int,
    files: FileWriter,
    choice: Choice,
    left_out: dict[str, int],
) -> AsyncIterator[FilePart]:
    """Yield rows that are chosen; they are weighed when their owner has copied them.

    ``left_out`` counts the others.
    """
    left_out[table.spec.name] = 0
    async for part in _all_rows(table, chunk_rows, files):
        chosen = await asyncio.to_thread(_chosen, table.spec, part, choice)
        left_out[table.spec.name] += part.num_rows - chosen.num_rows
        if chosen.num_rows:
            yield chosen


def _chosen(spec: TableSpec, part: FilePart, choice: Choice) -> FilePart:
    """Return copies of the rows that are chosen."""
    assert part.ids is not None, "rows have ids"
    starts = range(0, part.num_rows, _WEIGHED)
    wheres = (slice(start, start + _WEIGHED) for start in starts)
    found = [choice.rows(spec, part.values[where], part.states[where]) for where in wheres]
    rows = np.concatenate([np.empty(0, np.bool_), *found])
    return FilePart(ids=part.ids[rows], values=part.values[rows], states=part.states[rows])


async def load_tables(  # noqa: PLR0913 (all but the first three by keyword)
    store: TableStore,
    owners: Owners,
    directory: Path,
    *,
    digest: str = "",
    apart: bool = False,
    not_negative: Collection[str] = (),
    allow: Callable[[str], object] | None = None,
) -> Loaded:
    """Read this server's part of a checkpoint into new tables, not yet in the store.

    A table that another optimizer trains now takes the values, and its states begin anew.

    Args:
        store: Whose tables say which optimizer trains.
        owners: Who puts the rows in place.
        directory: The checkpoint's folder.
        digest: SHA-256 of its manifest; empty if any will do.
        apart: Whether each worker has states of its own: it takes the saved ones itself.
        not_negative: Tables that take no negative ids.
        allow: As of ``read_layers``; raises besides if a checkpoint below may not be read.

    Raises:
        ManifestError: if the folder is no readable checkpoint, is another or becomes one, or
            lacks values.
        TableLimitError: if there are too many tables, or one is too wide.
        TableMemoryError: if there is no memory for one, beside what is in use.
        CheckpointDamagedError: if a file is not what was saved, or has an id that another one
            has, or that the table doesn't take.
        SavedTableMismatchError: if a table has another shape, or other first values, than the
            one of its name.
    """
    manifest = await asyncio.to_thread(read_manifest, directory, digest=digest)
    with of_one_manifest(directory, manifest):
        read = partial(read_layers, directory, manifest, allow=allow)
        layers = await asyncio.to_thread(read)
        return await _load_tables(store, owners, layers, apart=apart, not_negative=not_negative)


async def _load_tables(
    store: TableStore,
    owners: Owners,
    layers: Layers,
    *,
    apart: bool,
    not_negative: Collection[str],
) -> Loaded:
    """Do as ``load_tables``, with the checkpoint's layers.

    Raises:
        ManifestError: if files of a table have the same id.
    """
    directory, manifest = layers.top
    saved = manifest.tables
    known = {table.spec.name: table.spec for table in store}
    named = [manifest.with_names(table.spec) for table in saved]
    specs = [_wanted(spec, known, store.num_shards) for spec in named]
    store.check_limits(specs, anew=True)
    loaded = Loaded([], [], manifest.digest, manifest.columns_that_differ())
    for each, spec in zip(saved, specs, strict=True):
        table = await asyncio.to_thread(store.build, spec)
        table.is_loaded = True
        if not apart and have_other_states(each.spec.optimizer, spec.optimizer):
            rules = each.spec.optimizer.rule, spec.optimizer.rule
            loaded.left_out.append(StatesLeftOut(spec.name, *rules))
        else:
            table.num_updates = each.version
            if isinstance(table, DenseTable):
                table.missed = each.missed.part((table.start, table.stop))
        files = layers.files(each.spec.name)
        if isinstance(table, SparseTable):
            while (file := await asyncio.to_thread(next, files, None)) is not None:
                part = await asyncio.to_thread(_read, file, spec)
                assert part.ids is not None, "a sparse file has ids"
                if spec.name in not_negative:
                    check_not_negative(file.folder, file.file, part.ids)
                doubled = await _take_rows(table, part, store, owners)
                if doubled:
                    refuse_doubled(file.folder, file.file, min(doubled))
            if num := await _count_doubled(table, owners):
                rule = f"the files of table {spec.name!r} have {num} ids twice"
                raise ManifestError(path=str(directory / MANIFEST), rule=rule)
        else:
            await _take_range(table, list(files), directory, owners)
        loaded.tables.append(table)
    return loaded


async def trained_otherwise(
    table: Table, spec: TableSpec, store: TableStore, owners: Owners, *, apart: bool
) -> Loaded:
    """Return a loaded table as another optimizer trains it, not yet in the store.

    Nothing is read again: rows are copied, some at a time, from the table as it was saved.

    Args:
        table: It, which nobody has trained yet.
        spec: How it is declared; its shape and first values are those.
        store: Where it is.
        owners: Who copies the rows.
        apart: Whether each worker has states of its own.

    Raises:
        TableLimitError: if it is too wide.
        TableMemoryError: if there is no memory for it, beside what is in use.
    """
    store.check_limits([spec], anew=True)
    saved, left_out = table.spec, []
    fresh = await asyncio.to_thread(store.build, spec)
    fresh.is_loaded = True
    if not apart and have_other_states(saved.optimizer, spec.optimizer):
        left_out.append(StatesLeftOut(spec.name, saved.optimizer.rule, spec.optimizer.rule))
    else:
        fresh.num_updates = table.num_updates
        if isinstance(table, DenseTable) and isinstance(fresh, DenseTable):
            fresh.missed = table.missed
    if isinstance(table, SparseTable) and isinstance(fresh, SparseTable):
        chunk_rows = _chunk_rows(saved)
        for old, new in zip(table.blocks, fresh.blocks, strict=True):
            place, copy = [0], partial(_copy_rows, old, new, chunk_rows)
            while place[0] < old.rows.num_places:
                await owners.run([Job(old.owner, chunk_rows, partial(copy, place))])
    elif isinstance(table, DenseTable) and isinstance(fresh, DenseTable):
        for where in _parts_of(table.num_rows, saved):
            part = await DenseImage(table, owners, copies=False).read(where)
            states = states_for(spec.optimizer, saved.optimizer, part.values, part.states)
            put = partial(fresh.range.assign_part, where.start, part.values, states)
            await owners.run([fresh.job(put, num_values=part.num_rows)])
    return Loaded([fresh], left_out)


def _copy_rows(old: Block, new: Block, num: int, place: list[int]) -> None:
    """Copy some rows from a place on, and put the place behind them into ``place``."""
    start, place[0] = place[0], old.rows.place_after(place[0], num)
    ids, values, states = old.rows.export(start, place[0] - start)
    rules = new.rows.spec.optimizer, old.rows.spec.optimizer
    new.rows.load(ids, values, states_for(*rules, values, states))


def _chunk_rows(spec: TableSpec) -> int:
    """Return how many rows of a table go into one file."""
    return max(1, min(CHUNK_ROWS, CHUNK_BYTES // row_bytes_of(spec)))


def _wanted(saved: TableSpec, known: Mapping[str, TableSpec], num_shards: int) -> TableSpec:
    """Return how a saved table is to be kept here.

    Raises:
        SavedTableMismatchError: if the table of its name can't take its rows.
    """
    here = known.get(saved.name)
    if here is None:  # nobody has said yet how it is trained
        return replace(saved, num_shards=num_shards)
    here.check_same_rows(saved)
    return here


def _read(file: LayerFile, spec: TableSpec) -> FilePart:
    """Read a file, with the states that its values have here."""
    part = file.read()
    states = states_for(spec.optimizer, file.spec.optimizer, part.values, part.states)
    return replace(part, states=states)


def _stem(table: str) -> str:
    """Return a file name's beginning: readable, harmless, and different for each table."""
    digest = hashlib.sha256(table.encode()).hexdigest()[:16]
    return f"{re.sub(r'[^A-Za-z0-9_-]+', '_', table)[:60]}-{digest}"


def _own_names(server: int) -> re.Pattern[str]:
    """Return what matches the names of all files that a server may write in a save."""
    return re.compile(rf".+-[0-9a-f]{{16}}\.server{server}(\.\d+|\.removed)?\.safetensors")


def _parts_of(num_values: int, spec: TableSpec) -> list[slice]:
    """Return which values of a range go into each file, as it is described there."""
    most = CHUNK_BYTES // (4 * (1 + spec.optimizer.num_state_columns))
    starts = range(0, num_values, most)
    return [slice(start, min(start + most, num_values)) for start in starts]


async def _take_rows(
    table: SparseTable, part: FilePart, store: TableStore, owners: Owners
) -> list[int]:
    """Put those of a file's rows that belong to this server into its shards.

    Returns:
        Ids that had a row already, which another file brought.
    """
    assert part.ids is not None, "a sparse file has ids"
    doubled: list[int] = []
    routed = await asyncio.to_thread(route, part.ids, store.num_shards)

    def assign(block: Block, where: slice) -> None:
        ids, rows = routed.ids[where], routed.positions[where]
        doubled.extend(block.rows.load(ids, part.values[rows], part.states[rows]).tolist())

    own = RowIds(routed.ids, routed.offsets[store.shards.start :])
    jobs = []
    for block in table.blocks:
        where = own.within(block.shards)
        if count := where.stop - where.start:
            jobs.append(Job(block.owner, count, partial(assign, block, where)))
    await owners.run(jobs)
    return doubled


async def _count_doubled(table: SparseTable, owners: Owners) -> int:
    """Return how many ids came twice without being seen, when all rows are there."""
    counts: list[int] = []

    def count(block: Block) -> None:
        counts.append(block.rows.count_doubled())

    await owners.run(
        [Job(each.owner, each.work(1), partial(count, each)) for each in table.blocks]
    )
    return sum(counts)


async def _take_range(
    table: DenseTable,
    files: list[LayerFile],
    directory: Path,
    owners: Owners,
) -> None:
    """Gather a dense table's range from all files.

    Raises:
        ManifestError: if the files leave a part of the range open.
    """
    given: list[tuple[int, int]] = []
    for file in files:
        part = await asyncio.to_thread(_read, file, table.spec)
        first = max(part.start, table.start)
        last = min(part.start + part.num_rows, table.stop)
        if first < last:
            source = slice(first - part.start, last - part.start)
            values, states = part.values[source], part.states[:, source]
            put = partial(table.range.assign_part, first - table.start, values, states)
            await owners.run([table.job(put, num_values=last - first)])
            given.append((first, last))
    lacking = _num_lacking(given, table.start, table.stop)
    if lacking:
        rule = f"the files of table {table.spec.name!r} lack {lacking} values"
        raise ManifestError(path=str(directory / MANIFEST), rule=rule)


def _num_lacking(given: list[tuple[int, int]], start: int, stop: int) -> int:
    """Return how many of the values [start, stop) are in none of some ranges of them."""
    lacking = 0
    for first, last in sorted(given):
        lacking += max(0, first - start)
        start = max(start, last)
    return lacking + stop - start
