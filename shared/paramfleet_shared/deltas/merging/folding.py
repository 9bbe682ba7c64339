"""A base and the changes behind it made to one state, in bounded memory and open files."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import IO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.deltas.merging.runs import (
    PIECE_BYTES,
    Run,
    merged,
    merged_ids,
)
from paramfleet_shared.deltas.records import Change, OpenedBase
from paramfleet_shared.files.tensorfile import (
    TensorFacts,
    Written,
    map_tensors,
    put_pieces,
)

__all__ = ["MOST_RUNS", "Folded", "PutRows", "fold", "put_rows"]

MOST_RUNS = 128
"""Of mapped files at once: a process may have some 1,000 open."""

Temporary = Callable[[], IO[bytes]]


class Folded(NamedTuple):
    """A state, as runs that are still to be merged."""

    tables: Mapping[str, Sequence[Run]]
    """By name, the older runs first."""
    dense: Mapping[str, NDArray[np.float32]]


class PutRows(NamedTuple):
    """A file of rows."""

    rows: int
    written: Written


def fold(
    base: OpenedBase,
    changes: Iterable[Change],
    temporary: Temporary,
    *,
    most_runs: int = MOST_RUNS,
) -> Folded:
    """Return the state behind some changes.

    Args:
        base: What they change.
        changes: Mapped, in their order.
        temporary: Opens a file without a name, for what many changes are merged to meanwhile.
        most_runs: How many changes are open at once.

    Raises:
        OSError: if the system refuses the file.
    """
    tables = {name: [Run(t.ids, t.rows)] for name, t in base.tables.items()}
    dims = {name: each.table.dim for name, each in base.tables.items()}
    dense = dict(base.dense)
    for number, change in enumerate(changes, 1):
        dense |= change.dense
        for name, table in change.tables.items():
            tables[name].append(Run(*table))
        if number % most_runs == 0:
            dense = {name: np.array(values) for name, values in dense.items()}
            for name, runs in tables.items():
                if len(runs) > 1:
                    tables[name] = [_settled(runs, dims[name], temporary)]
    return Folded(tables, dense)


def put_rows(
    file: IO[bytes],
    runs: Sequence[Run],
    table: tuple[str, int],
    temporary: Temporary,
    *,
    piece_bytes: int = PIECE_BYTES,
) -> PutRows:
    """Write merged runs as a file of rows.

    The ids are merged first and kept in a file: their number stands before them.

    Args:
        file: Open, and empty.
        runs: The older ones first.
        table: Its name, for the metadata, and D.
        temporary: Opens a file without a name.
        piece_bytes: How much is merged at a time.

    Raises:
        OSError: if the system refuses.
    """
    name, dim = table
    with temporary() as spool:
        count = 0
        for ids in merged_ids(runs, piece_bytes=piece_bytes):
            spool.write(np.ascontiguousarray(ids).data)
            count += len(ids)
        spool.seek(0)

        def pieces_of(tensor: str) -> Iterable[memoryview]:
            if tensor == "ids":
                while found := spool.read(piece_bytes):
                    yield memoryview(found)
                return
            for piece in merged(runs, dim, piece_bytes=piece_bytes):
                if piece.rows.nbytes:
                    yield np.ascontiguousarray(piece.rows).data.cast("B")

        facts = {
            "ids": TensorFacts(np.dtype(np.int64), (count,)),
            "rows": TensorFacts(np.dtype(np.float32), (count, dim)),
        }
        written = put_pieces(file, facts, pieces_of, {"table": name})
    return PutRows(count, written)


def _settled(runs: Sequence[Run], dim: int, temporary: Temporary) -> Run:
    """Return runs as one, which is in a file without a name.

    Raises:
        OSError: if the system refuses.
    """
    with temporary() as file:
        put_rows(file, runs, ("", dim), temporary)
        file.flush()
        tensors = map_tensors(file).tensors
    return Run(tensors["ids"], tensors["rows"])
