"""Files of one table: npy, safetensors and word2vec's text.

Shape legend: n = rows, D = row width.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib.format import MAGIC_PREFIX, dtype_to_descr, write_array_header_1_0
from numpy.typing import NDArray

from paramfleet_shared.checkpoint.manifest import CheckpointWriteError
from paramfleet_shared.files.regular_files import open_regular, replaced
from paramfleet_shared.files.tensorfile import TensorFacts, put_pieces
from paramfleet_worker.app.checkpoints.foreign_rows import IDS_SUFFIX, ids_beside
from paramfleet_worker.app.export.rows import SortedRows
from paramfleet_worker.app.export.words import WordList

__all__ = ["check_arrays", "write_arrays", "write_tensors", "write_text"]

_IDS, _ROWS = np.dtype("<i8"), np.dtype("<f4")


def check_arrays(output: Path) -> None:
    """Check that no other export has the file of rows, or that of their ids.

    Raises:
        CheckpointWriteError: if one has.
    """
    ids = ids_beside(output)
    others = [(ids, each) for each in _rows_of(ids) if each != output]
    if output.name.endswith(IDS_SUFFIX):
        others += [(output, each) for each in _rows_of(output)]
    for taken, rows in others:
        if taken.exists() and _is_array(rows):
            reason = f"has the ids of {rows}; name another file, or remove both"
            raise CheckpointWriteError(path=str(taken), reason=reason)


def _rows_of(ids: Path) -> tuple[Path, Path]:
    """Return the files of rows whose ids have this name."""
    name = ids.name.removesuffix(IDS_SUFFIX)
    return ids.with_name(name), ids.with_name(f"{name}.npy")


def _is_array(path: Path) -> bool:
    try:
        with open_regular(path, may_be_link=True) as file:
            return file.read(len(MAGIC_PREFIX)) == MAGIC_PREFIX
    except (OSError, ValueError):
        return False


def write_arrays(output: Path, rows: SortedRows) -> Path:
    """Write rows float32 [n, D] to a file, and ids int64 [n] beside it; return where.

    Raises:
        OSError: if the system refuses.
    """
    ids = ids_beside(output)
    with replaced(output) as file, replaced(ids) as file_of_ids:
        _begin(file, _ROWS, (rows.count, rows.width))
        _begin(file_of_ids, _IDS, (rows.count,))
        for piece in rows.pieces():
            file.write(_bytes_of(piece.rows))
            file_of_ids.write(_bytes_of(piece.ids))
    return ids


def _begin(file: IO[bytes], dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> None:
    """Write what numpy.save writes before an array's numbers."""
    header = {"descr": dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    write_array_header_1_0(file, header)


def write_tensors(output: Path, rows: SortedRows, table: str) -> None:
    """Write a file of safetensors with ``ids`` int64 [n] and ``rows`` float32 [n, D].

    Raises:
        OSError: if the system refuses.
    """

    def pieces_of(name: str) -> Iterable[memoryview]:
        if name == "ids":
            return map(_bytes_of, rows.keys())
        return (_bytes_of(piece.rows) for piece in rows.pieces())

    facts = {
        "ids": TensorFacts(_IDS, (rows.count,)),
        "rows": TensorFacts(_ROWS, (rows.count, rows.width)),
    }
    with replaced(output) as file:
        put_pieces(file, facts, pieces_of, {"table": table})


def write_text(output: Path, rows: SortedRows, words: WordList | None) -> None:
    """Write word2vec's text: a line ``n D``, then a word and its numbers a line.

    Args:
        output: The file.
        rows: The table's.
        words: Of the ids; None for ids as words.

    Raises:
        OSError: if the system refuses.
        WordsError: if the words can't be read on.
    """
    with replaced(output) as file:
        file.write(b"%d %d\n" % (rows.count, rows.width))
        for piece in rows.pieces():
            names = _numbers(piece.ids) if words is None else words.names(piece.ids)
            for name, row in zip(names, piece.rows, strict=True):
                # nine digits are a float32 to the bit
                numbers = " ".join(f"{number:.9g}" for number in row.tolist())
                file.write(b"%b %b\n" % (name, numbers.encode()))


def _numbers(ids: NDArray[np.int64]) -> Iterator[bytes]:
    return (b"%d" % each for each in ids.tolist())


def _bytes_of(array: NDArray[np.generic]) -> memoryview:
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(np.uint8).data
