"""Rows of an embedding table as other programs write them.

Shape legend: n = rows, D = row width, m = D - 1.
"""

import gzip
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from tokenize import TokenError
from typing import IO, Literal, NamedTuple, cast

import numpy as np
from numpy.lib.format import MAGIC_PREFIX
from numpy.typing import NDArray

from paramfleet_shared.files.regular_files import open_regular
from paramfleet_shared.files.tensorfile import map_tensors
from paramfleet_worker.app.checkpoints.foreign_rows import (
    OTHER_TABLE,
    ForeignRows,
    ids_beside,
    numbers_of,
    refuse,
    whole_of,
)
from paramfleet_worker.app.checkpoints.paddle_text import (
    ACCESSORS,
    PADDLE_RULES,
    USUAL_RULE,
    CountedRows,
    lengths_of,
)
from paramfleet_worker.app.checkpoints.torch_dcp import read_dcp
from paramfleet_worker.config import ImportFormat, PaddleAccessor, PaddleRule

__all__ = ["ForeignTable", "PaddleText"]

_PIECE_LINES = 1 << 16
"""Lines of text whose numbers are made an array at a time."""

_COUNT = re.compile(rb"[0-9]{1,18}")
"""How many rows or numbers there are."""

_LONGEST_LINE = 1 << 20
"""Bytes; a row of 65,536 numbers has fewer."""


class PaddleText(NamedTuple):
    """What Paddle's table text doesn't say of itself."""

    accessor: PaddleAccessor | Literal["none"] = "SparseAccessor"
    """This is what Paddle takes where nothing is set; none where lines are keys and values."""
    rule: PaddleRule | None = None
    """Of both parts of a row; None for those of the table, or, if it has no accessor, for what
    Paddle takes."""


class ForeignTable(NamedTuple):
    """A table that another program has written."""

    path: Path
    """Of ``npy`` the file of rows, with the ids in ``ids_beside`` it; of ``safetensors`` a
    file with ``ids`` and ``rows``; of ``word2vec`` its text; of ``paddle`` the folder of a
    table, ``000``, with its ``part-*`` files; of ``dcp`` a folder that
    torch.distributed.checkpoint has written, as TorchRec's trainers do."""
    form: ImportFormat
    paddle: PaddleText = PaddleText()
    """Of ``paddle``: how the rows are laid out."""
    words: Path | None = None
    """Of ``word2vec``: a file whose line i, from 0, is the word of id i."""
    key: str = ""
    """Of ``dcp``: which tensor."""

    def read(self, *, dim: int) -> Iterator[ForeignRows]:
        """Yield the rows, in the order in which they are written.

        Args:
            dim: D of the table that they are for.

        Raises:
            ForeignTableError: naming the file, and what of it is wrong.
        """
        if self.form == "npy":
            yield _read_arrays(self.path)
        elif self.form == "safetensors":
            yield _read_tensors(self.path)
        elif self.form == "word2vec":
            yield from _read_words(self.path, dim, _ids_of(self.words))
        elif self.form == "dcp":
            yield from read_dcp(self.path, self.key, dim=dim)
        elif self.paddle.accessor == "none":
            yield from _read_values(self.path, dim)
        else:
            yield from _read_paddle(self.path, dim, self.paddle)

    def read_counted(self, counted: CountedRows) -> Iterator[ForeignRows]:
        """Yield the rows of ``paddle`` with all that an accessor keeps of them.

        Args:
            counted: The table that they are for.

        Raises:
            ForeignTableError: naming the file, and what of it is wrong.
        """
        given, dim = self.paddle.rule, counted.spec.dim
        rules = counted.rules if given is None else (given, given)
        accessor = ACCESSORS[_accessor_of(self)]
        layout = _Layout(_accessor_of(self), rules, counted.num_more)

        def row_of(numbers: list[float], _start: int) -> list[float]:
            return counted.row_of(numbers, accessor, rules)

        for path in _parts_of(self.path):
            for piece in _read_laid_out(path, layout, row_of, counted.width):
                values, states = np.split(piece.values, [dim], axis=1)
                yield ForeignRows(path, piece.ids, np.ascontiguousarray(values), states)


def _read_arrays(path: Path) -> ForeignRows:
    rows, ids = (_read_array(each) for each in (path, ids_beside(path)))
    return _checked(path, ids, rows)


def _read_array(path: Path) -> NDArray[np.generic]:
    """Return the array of a file, mapped.

    Raises:
        ForeignTableError: if it has none.
    """
    try:
        with open_regular(path, may_be_link=True) as file:
            beginning = file.read(len(MAGIC_PREFIX))
        if beginning != MAGIC_PREFIX:  # of other files, such as .npz, it makes no array
            refuse(
                path,
                "isn't a file of numpy.save: give the file itself, and its format by --format",
            )
        found: NDArray[np.generic] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError, SyntaxError, TokenError, OverflowError) as error:
        refuse(path, f"can't be read: {error}")
    return found


def _read_tensors(path: Path) -> ForeignRows:
    try:
        with open_regular(path, may_be_link=True) as file:
            tensors = map_tensors(file).tensors
    except (OSError, ValueError) as error:
        refuse(path, f"can't be read: {error}")
    if not {"ids", "rows"} <= tensors.keys():
        held = ", ".join(tensors) or "none"
        rule = (
            f"its tensors must be `ids` and `rows`, as `paramfleet export` writes them: {held}"
        )
        refuse(path, rule)
    return _checked(path, tensors["ids"], tensors["rows"])


def _checked(path: Path, ids: NDArray[np.generic], rows: NDArray[np.generic]) -> ForeignRows:
    """Return arrays as rows.

    Raises:
        ForeignTableError: if they aren't.
    """
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        refuse(path, f"its ids must be whole numbers [n], not {ids.dtype} {list(ids.shape)}")
    if rows.ndim != 2 or rows.dtype.kind != "f" or len(rows) != len(ids):
        shape = f"{rows.dtype} {list(rows.shape)} of {len(ids)} ids"
        refuse(path, f"its rows must be floats [n, D], one for each id, not {shape}")
    return ForeignRows(path, ids.astype(np.int64), rows.astype(np.float32))


def _ids_of(words: Path | None) -> Callable[[bytes], int]:
    """Return what gives a word's id: the line that it has in a list, or the number it is.

    Raises:
        ForeignTableError: if the list can't be read, or has a word twice.
    """
    if words is None:
        return whole_of
    try:
        with open_regular(words, may_be_link=True) as file:
            lines = file.read().removesuffix(b"\n").split(b"\n")
    except (OSError, ValueError) as error:
        refuse(words, f"can't be read: {error}")
    known: dict[bytes, int] = {}
    for number, line in enumerate(lines):
        word = line.rstrip(b"\r").partition(b" ")[0]
        if known.setdefault(word, number) != number:
            rule = f"line {number + 1}: {_shown(word)} is in line {known[word] + 1}, too"
            refuse(words, f"{rule}: keep the word only in the line of its id")
    return known.__getitem__


def _read_words(path: Path, dim: int, id_of: Callable[[bytes], int]) -> Iterator[ForeignRows]:
    """Yield the rows of word2vec's text: a line ``n D``, then a word and D numbers a line."""
    lines = _lines(path)
    head = next(lines, (1, b""))[1].split()
    if len(head) != 2 or not all(_COUNT.fullmatch(each) for each in head):
        refuse(path, "line 1 must say how many rows and numbers there are, as `71290 200`")
    if int(head[1]) != dim:
        rule = f"its rows have {int(head[1])} numbers, and those of the table {dim}"
        refuse(path, f"{rule}: {OTHER_TABLE}")
    num_rows = 0

    def parsed(number: int, line: bytes) -> tuple[int, list[float]]:
        word, *numbers = line.split()
        if len(numbers) != dim:
            rule = f"line {number} has {len(numbers)} numbers, and a row of the table {dim}"
            refuse(path, f"{rule}: mend the line", number)
        try:
            return id_of(word), numbers_of(numbers)
        except (KeyError, ValueError):
            first = (
                "an id, a whole number: where it has words, give the list of them by --words"
                if id_of is whole_of
                else "a word of the list that --words names"
            )
            rule = f"must have numbers after its first word, which must be {first}"
            refuse(path, f"line {number} ({_shown(word)} ...) {rule}", number)

    for rows in _pieces(path, lines, parsed, dim):
        num_rows += len(rows.ids)
        yield rows
    if num_rows != int(head[0]):
        refuse(
            path,
            f"has {num_rows} rows, and its first line says {int(head[0])}: the file was cut "
            "off, or that line is wrong",
        )


class _Layout(NamedTuple):
    """Who has laid out the rows of a text."""

    accessor: PaddleAccessor
    rules: tuple[PaddleRule, PaddleRule]
    num_more: int
    """m."""

    def lengths(self) -> dict[int, int]:
        """Return what ``lengths_of`` does."""
        return lengths_of(self.num_more, ACCESSORS[self.accessor], self.rules)


def _accessor_of(table: ForeignTable) -> PaddleAccessor:
    """Return how rows with an accessor are laid out.

    Raises:
        ForeignTableError: if they can't be rows of one.
    """
    if table.paddle.accessor == "none":
        refuse(table.path, "the table has an accessor, and lines without one lack its counts")
    return table.paddle.accessor


def _parts_of(folder: Path) -> list[Path]:
    """Return the files of Paddle's table text.

    Raises:
        ForeignTableError: if there are none.
    """
    try:
        paths = sorted(path for path in folder.iterdir() if path.name.startswith("part-"))
    except OSError as error:
        refuse(folder, f"can't be read: {error}")
    if not paths:
        refuse(folder, "has no files part-*: name the folder of one table, such as 000")
    return paths


def _read_values(folder: Path, dim: int) -> Iterator[ForeignRows]:
    """Yield the rows of a text of keys and values."""
    for path in _parts_of(folder):

        def parsed(number: int, line: bytes, path: Path = path) -> tuple[int, list[float]]:
            id_, row = _parsed(path, number, line)
            if len(row) != dim:
                rule = f"line {number} has {len(row)} numbers after its key, and a row of the "
                refuse(path, f"{rule}table {dim}: {OTHER_TABLE}", number)
            return id_, row

        yield from _pieces(path, _lines(path), parsed, dim)


def _read_paddle(folder: Path, dim: int, text: PaddleText) -> Iterator[ForeignRows]:
    """Yield the rows of Paddle's table text, a file after the other, for a plain table.

    A row that wasn't extended has no embedx: its other values are 0.
    """
    assert text.accessor != "none", "of such text _read_values"
    rule = text.rule or USUAL_RULE
    layout, before = _Layout(text.accessor, (rule, rule), dim - 1), ACCESSORS[text.accessor]

    def row_of(row: list[float], start: int) -> list[float]:
        more = row[start : start + dim - 1] if start else [0.0] * (dim - 1)
        return [row[before.before], *more]

    for path in _parts_of(folder):
        yield from _read_laid_out(path, layout, row_of, dim)


def _read_laid_out(
    path: Path,
    layout: _Layout,
    row_of: Callable[[list[float], int], list[float]],
    width: int,
) -> Iterator[ForeignRows]:
    """Yield the rows of a file of Paddle's table text, each as ``row_of`` makes it.

    Args:
        path: The file.
        layout: Who has laid it out.
        row_of: Is given the numbers of a line, and where the other values begin, 0 for none;
            a ValueError says what is wrong with them.
        width: Numbers that it returns.
    """
    lengths = layout.lengths()

    def parsed(number: int, line: bytes) -> tuple[int, list[float]]:
        id_, row = _parsed(path, number, line)
        start = lengths.get(len(row))
        if start is None:
            known = " or ".join(map(str, sorted(lengths)))
            rules = " and ".join(dict.fromkeys(layout.rules))
            rule = (
                f"line {number} has {len(row)} numbers after its key: {layout.accessor} "
                f"with {rules} writes {known} for {layout.num_more + 1} values. Name the right "
                f"ones with --accessor and --rule{_fitting(len(row), layout.num_more)}"
            )
            refuse(path, rule, number)
        try:
            return id_, row_of(row, start)
        except ValueError as error:
            refuse(path, f"line {number}: {error}", number)

    yield from _pieces(path, _lines(path), parsed, width)


def _parsed(path: Path, number: int, line: bytes) -> tuple[int, list[float]]:
    """Return the id and the numbers of a line.

    Raises:
        ForeignTableError: if it is none.
    """
    key, *numbers = line.split()
    try:
        unsigned, row = whole_of(key), numbers_of(numbers)
    except ValueError:
        refuse(path, f"line {number} must be a whole number, the key, and numbers", number)
    if not 0 <= unsigned < 1 << 64:
        rule = f"line {number}: its key must be from 0 to 2^64 - 1, as Paddle writes it"
        refuse(path, rule, number)
    return unsigned - (1 << 64) if unsigned >= 1 << 63 else unsigned, row


def _fitting(length: int, num_more: int) -> str:
    """Return what would have written rows of a length."""
    found = [
        f"{name} with {rule}"
        for name, accessor in ACCESSORS.items()
        for rule in PADDLE_RULES
        if length in lengths_of(num_more, accessor, (rule, rule))
    ]
    return f" (it may be {', or '.join(found)})" if found else ""


def _shown(word: bytes) -> str:
    return repr(word[:40].decode(errors="replace"))


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a text, gzip or not, with their numbers from 1; blank ones aren't.

    They are bytes, as only a line feed ends a line, and only ASCII's blanks end a word.

    Raises:
        ForeignTableError: if it isn't text.
    """
    try:
        with ExitStack() as stack:
            raw: IO[bytes] = stack.enter_context(open_regular(path, may_be_link=True))
            if path.suffix == ".gz":
                raw = cast("IO[bytes]", stack.enter_context(gzip.open(raw)))
            number = 0
            while line := raw.readline(_LONGEST_LINE):
                number += 1
                if len(line) == _LONGEST_LINE:
                    refuse(path, f"line {number} is too long", number)
                if line.strip():
                    yield number, line
    except (OSError, EOFError, ValueError, zlib.error) as error:
        refuse(path, f"can't be read: {error}")


def _pieces(
    path: Path,
    lines: Iterator[tuple[int, bytes]],
    parsed: Callable[[int, bytes], tuple[int, list[float]]],
    dim: int,
) -> Iterator[ForeignRows]:
    ids: list[int] = []
    rows: list[list[float]] = []
    for number, line in lines:
        found, row = parsed(number, line)
        if not -(1 << 63) <= found < 1 << 63:
            refuse(path, f"line {number}: {found} is no id of 64 bits", number)
        ids.append(found)
        rows.append(row)
        if len(ids) == _PIECE_LINES:
            yield _piece(path, ids, rows, dim)
            ids, rows = [], []
    if ids:
        yield _piece(path, ids, rows, dim)


def _piece(path: Path, ids: list[int], rows: list[list[float]], dim: int) -> ForeignRows:
    values = np.array(rows, np.float64).reshape(-1, dim)
    with np.errstate(over="ignore"):  # too large a number becomes infinite, which is refused
        return ForeignRows(path, np.array(ids, np.int64), values.astype(np.float32))
