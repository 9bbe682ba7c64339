"""Saving the tables to a folder and loading them from one.

A save writes this server's rows and ranges, a chunk at a time, into a folder that the
workers rename when all servers are done; the manifest is theirs too. Rows are copied
on their owners' threads and written on a storage thread, so that training goes on;
for one consistent cut, save between steps.

A load reads the files of any number of servers and keeps the rows of its own shards.
Tables are built beside those in use and take their place when all is read: a load
that fails has no effect.
"""

import asyncio
import hashlib
import re
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_pserver.owners import Job, Owners
from paramfleet_pserver.parts import SparsePart
from paramfleet_pserver.tablestore import Block, DenseTable, SparseTable, Table, TableStore
from paramfleet_shared.checkpoint import (
    MANIFEST,
    FilePart,
    ManifestError,
    SavedFile,
    SavedTable,
    read_manifest,
    read_part,
    sync_directory,
    write_part,
)
from paramfleet_shared.tables.encoding import Encoded
from paramfleet_shared.tables.routing import route
from paramfleet_shared.tables.spec import TableSpec

__all__ = ["load_tables", "plan_chunks", "save_tables"]

CHUNK_ROWS = 1_000_000
"""Most rows of one file."""

CHUNK_BYTES = 128 << 20
"""Most bytes of one file, and of memory that a save takes, about twice."""


class Segment(NamedTuple):
    """Neighbouring rows of one block."""

    block: int
    start: int
    num_rows: int


def plan_chunks(num_rows: Iterable[int], chunk_rows: int) -> list[list[Segment]]:
    """Divide the rows of each block into files of at most ``chunk_rows``.

    Returns:
        For each file the segments it holds; no file is empty.
    """
    chunks: list[list[Segment]] = []
    room = 0
    for block, rows in enumerate(num_rows):
        start = 0
        while start < rows:
            if room == 0:
                chunks.append([])
                room = chunk_rows
            count = min(room, rows - start)
            chunks[-1].append(Segment(block, start, count))
            start += count
            room -= count
    return chunks


async def save_tables(
    store: TableStore, owners: Owners, directory: Path, *, server: int
) -> list[SavedFile]:
    """Write every table's part of this server.

    Args:
        store: The tables.
        owners: Who copies the rows.
        directory: Where to; made if it is missing.
        server: This server's index, part of the files' names.

    Raises:
        CheckpointWriteError: if the system refuses; files may be left behind.
    """
    files: list[SavedFile] = []
    for table in list(store):
        stem = f"{_stem(table.spec.name)}.server{server}"
        if isinstance(table, SparseTable):
            row_bytes = 8 + 4 * table.spec.dim * (1 + table.spec.optimizer.num_state_columns)
            chunk_rows = max(1, min(CHUNK_ROWS, CHUNK_BYTES // row_bytes))
            counts = [block.rows.num_rows for block in table.blocks]
            for number, chunk in enumerate(plan_chunks(counts, chunk_rows)):
                part = await _export(table, chunk, owners)
                name = f"{stem}.{number:05d}.safetensors"
                files.append(await _write(directory, name, table.spec, part))
        elif isinstance(table, DenseTable) and table.num_rows:
            part = await _copy_range(table, owners)
            files.append(await _write(directory, f"{stem}.safetensors", table.spec, part))
    await asyncio.to_thread(sync_directory, directory)
    return files


async def load_tables(store: TableStore, owners: Owners, directory: Path) -> list[Table]:
    """Read this server's part of a checkpoint into new tables, not yet in the store.

    Raises:
        ManifestError: if the folder is no readable checkpoint, or lacks values.
        CheckpointDamagedError: if a file is not what was saved.
        TableMismatchError: if a table differs from the one of its name.
    """
    manifest = await asyncio.to_thread(read_manifest, directory)
    saved = [_for_this_job(table, store) for table in manifest.tables]
    store.check(table.spec for table in saved)
    loaded: list[Table] = []
    for each in saved:
        table = store.build(each.spec)
        table.num_updates = each.version
        table.is_loaded = True
        files = [file for file in manifest.files if file.table == each.spec.name]
        if isinstance(table, SparseTable):
            for file in files:
                part = await asyncio.to_thread(read_part, directory, file, each.spec)
                await _take_rows(table, part, store, owners)
        else:
            await _take_range(table, files, directory, owners)
        loaded.append(table)
    return loaded


def _for_this_job(table: SavedTable, store: TableStore) -> SavedTable:
    """A checkpoint may have been saved with another number of shards."""
    return replace(table, spec=replace(table.spec, num_shards=store.num_shards))


def _stem(table: str) -> str:
    """Return a file name's beginning: readable, harmless, and different for each table."""
    digest = hashlib.sha256(table.encode()).hexdigest()[:16]
    return f"{re.sub(r'[^A-Za-z0-9_-]+', '_', table)[:60]}-{digest}"


async def _export(table: SparseTable, chunk: list[Segment], owners: Owners) -> FilePart:
    found: dict[int, tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]] = {}

    def copy(segment: Segment) -> None:
        rows = table.blocks[segment.block].rows
        found[segment.block] = rows.export(segment.start, segment.num_rows)

    await owners.run(
        Job(table.blocks[segment.block].owner, segment.num_rows, partial(copy, segment))
        for segment in chunk
    )
    pieces = [found[segment.block] for segment in chunk]
    return await asyncio.to_thread(_joined, pieces)


def _joined(
    pieces: list[tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]],
) -> FilePart:
    ids, values, states = zip(*pieces, strict=True)
    return FilePart(
        ids=np.concatenate(ids), values=np.concatenate(values), states=np.concatenate(states)
    )


async def _copy_range(table: DenseTable, owners: Owners) -> FilePart:
    found: list[FilePart] = []

    def copy() -> None:
        held = table.range
        found.append(
            FilePart(values=held.values.copy(), states=held.states.copy(), start=table.start)
        )

    await owners.run([table.job(copy)])
    return found[0]


async def _write(directory: Path, name: str, spec: TableSpec, part: FilePart) -> SavedFile:
    return await asyncio.to_thread(write_part, directory, name, spec, part)


async def _take_rows(
    table: SparseTable, part: FilePart, store: TableStore, owners: Owners
) -> None:
    """Put those of a file's rows that belong to this server into its shards."""
    assert part.ids is not None, "a sparse file has ids"
    routed = await asyncio.to_thread(route, part.ids, store.num_shards)

    def assign(block: Block, where: slice) -> None:
        rows = routed.positions[where]
        block.rows.assign(routed.ids[where], part.values[rows], part.states[rows])

    offsets = routed.offsets[store.shards.start :]
    bounds = SparsePart(routed.ids, offsets, Encoded(part.values))
    jobs = []
    for block in table.blocks:
        where = bounds.within(block.shards)
        if count := where.stop - where.start:
            jobs.append(Job(block.owner, count, partial(assign, block, where)))
    await owners.run(jobs)


async def _take_range(
    table: DenseTable, files: list[SavedFile], directory: Path, owners: Owners
) -> None:
    """Gather a dense table's range from all files.

    Raises:
        ManifestError: if the files leave a part of the range open.
    """
    spec = table.spec
    values = np.empty(table.num_rows, np.float32)
    states = np.empty((spec.optimizer.num_state_columns, table.num_rows), np.float32)
    is_given = np.zeros(table.num_rows, np.bool_)
    for file in files:
        part = await asyncio.to_thread(read_part, directory, file, spec)
        first = max(part.start, table.start)
        last = max(first, min(part.start + part.num_rows, table.stop))
        to, source = (
            slice(first - table.start, last - table.start),
            slice(first - part.start, last - part.start),
        )
        values[to] = part.values[source]
        states[:, to] = part.states[:, source]
        is_given[to] = True
    if not is_given.all():
        rule = f"the files of table {spec.name!r} lack {int((~is_given).sum())} values"
        raise ManifestError(path=str(directory / MANIFEST), rule=rule)
    await owners.run([table.job(partial(table.range.assign, values, states))])
