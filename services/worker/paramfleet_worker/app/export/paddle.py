"""Paddle's table text: rows by the shards of their keys, each shard a file.

Shape legend: n = rows, D = row width.
"""

import gzip
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate, groupby, pairwise
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.checkpoint.layers import Layers
from paramfleet_shared.checkpoint.manifest import (
    CheckpointWriteError,
    FilePart,
    sync_directory,
)
from paramfleet_shared.files.regular_files import replaced
from paramfleet_shared.tables.spec import TableSpec
from paramfleet_worker.app.checkpoints.paddle_text import CountedRows, day_of, lines_of
from paramfleet_worker.app.export.rows import SortedRows

__all__ = ["PaddleFiles", "ShardKeys", "write_paddle"]

_SIGN = np.uint64(1 << 63)

_MOST_NUMBERS = 1 << 16
"""Of rows that are Python's numbers at a time, which take eight times their memory."""


class PaddleFiles(NamedTuple):
    """How the files of Paddle's table text are written."""

    shards: int = 1
    """How many: rows are divided by their keys, as Paddle does with one server."""
    compress: bool = False
    """Whether with gzip."""


class ShardKeys:
    """Numbers of ids in the order of shards, and inside a shard in the order of the ids.

    An id's shard is the remainder of its key, which is the id without a sign. All ids together
    have all numbers of 64 bits, so that rows sorted by number need no file for each shard.

    Args:
        shards: How many there are.
    """

    def __init__(self, shards: int) -> None:
        self._shards = np.uint64(shards)
        sizes = [((1 << 64) - 1 - shard) // shards + 1 for shard in range(shards)]
        least = [((1 << 63) - shard - 1) // shards + 1 for shard in range(shards)]
        self._begins = np.array([0, *accumulate(sizes[:-1])], np.uint64)
        self._first_of_negative = np.array(least, np.uint64)
        """By shard: the least quotient of a negative id's key."""
        self._negative = np.array(sizes, object) - np.array(least, object)
        self._negative = self._negative.astype(np.uint64)
        """By shard: how many negative ids there are."""

    def numbers(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers of ids, int64 [n]."""
        keys = ids.view(np.uint64)
        quotients, shards = np.divmod(keys, self._shards)
        places = np.where(
            keys >= _SIGN,
            quotients - self._first_of_negative[shards],
            quotients + self._negative[shards],
        )
        return ((self._begins[shards] + places) ^ _SIGN).view(np.int64)

    def ids(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the shards and the ids of numbers, both int64 [n]."""
        unsigned = numbers.view(np.uint64) ^ _SIGN
        shards = np.searchsorted(self._begins, unsigned, side="right") - 1
        places = unsigned - self._begins[shards]
        negative = self._negative[shards]
        quotients = np.where(
            places < negative, places + self._first_of_negative[shards], places - negative
        )
        keys = quotients * self._shards + shards.astype(np.uint64)
        return shards, keys.view(np.int64)


def write_paddle(
    layers: Layers,
    spec: TableSpec,
    output: Path,
    temporary: Callable[[], IO[bytes]],
    written: PaddleFiles,
) -> tuple[int, tuple[Path, ...]]:
    """Write a table's folder, its name last; return how many rows it has, and its files.

    Raises:
        CheckpointDamagedError: if the checkpoint isn't what was saved.
        CheckpointWriteError: if the table's folder is there.
        OSError: if the system refuses.
    """
    tables = [each.spec.name for each in layers.top.manifest.tables if not each.is_dense]
    folder = output / f"{tables.index(spec.name):03d}"
    if folder.exists():
        raise CheckpointWriteError(
            path=str(folder),
            reason="is there already: remove it, or name another folder (--output)",
        )
    counted = None
    if spec.optimizer.num_counts:
        counted = CountedRows(spec, day_of(layers, spec.name))
    keys = ShardKeys(written.shards)
    rows = SortedRows(layers, spec, temporary, key_of=keys.numbers, with_states=True)
    parts = groupby(_parts(rows, keys, spec.dim), lambda each: each[0])
    suffix = ".gz" if written.compress else ""
    names = [f"part-000-{shard:05d}{suffix}" for shard in range(written.shards)]
    draft = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.tmp")
    try:
        draft.mkdir(parents=True)
        shard, own = next(parts, (-1, iter(())))
        for number, name in enumerate(names):
            with replaced(draft / name) as file:
                found = own if number == shard else ()
                lines = (line for _, part in found for line in lines_of(part, counted))
                _write_part(file, lines, compress=written.compress)
            if number == shard:
                shard, own = next(parts, (-1, iter(())))
        sync_directory(draft)
        draft.rename(folder)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    sync_directory(output)
    return rows.count, tuple(folder / name for name in names)


def _parts(rows: SortedRows, keys: ShardKeys, dim: int) -> Iterator[tuple[int, FilePart]]:
    """Yield all rows of one shard after the other, sorted by id."""
    most = max(1, _MOST_NUMBERS // rows.width)
    for piece in rows.pieces():
        shards, ids = keys.ids(piece.ids)
        begins = {*(np.flatnonzero(np.diff(shards)) + 1).tolist(), *range(0, len(ids), most)}
        for begin, end in pairwise([*sorted(begins), len(ids)]):
            values, states = np.split(piece.rows[begin:end], [dim], axis=1)
            yield int(shards[begin]), FilePart(ids=ids[begin:end], values=values, states=states)


def _write_part(file: IO[bytes], lines: Iterable[str], *, compress: bool) -> None:
    if compress:
        with gzip.GzipFile(fileobj=file, mode="wb", mtime=0) as packed:
            packed.writelines(line.encode() for line in lines)
    else:
        file.writelines(line.encode() for line in lines)
