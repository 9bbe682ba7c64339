"""``paramfleet export``: one table of a checkpoint in a format that others read.

Shape legend: n = rows, D = row width.
"""

import gzip
import secrets
import shutil
from collections.abc import Iterator
from io import TextIOWrapper
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.checkpoint.layers import Layers, read_layers
from paramfleet_shared.checkpoint.manifest import (
    MANIFEST,
    CheckpointWriteError,
    FilePart,
    read_manifest,
    sync_directory,
)
from paramfleet_shared.checkpoint.saved_rows import load_rows, sparse_spec
from paramfleet_shared.errors import ContractError
from paramfleet_shared.files.documents import read_content, read_document
from paramfleet_shared.files.regular_files import replaced
from paramfleet_shared.files.tensorfile import put_tensors
from paramfleet_shared.tables.spec import TableSpec
from paramfleet_worker.app.checkpoints.paddle_text import CountedRows, day_of, lines_of
from paramfleet_worker.config import ExportFormat

__all__ = [
    "ExportFormatError",
    "Exported",
    "PaddleFiles",
    "UnknownSuffixError",
    "WordsError",
    "export_table",
]

_BY_SUFFIX: dict[str, ExportFormat] = {
    ".npy": "npy",
    ".safetensors": "safetensors",
    ".txt": "word2vec",
    ".vec": "word2vec",
}
"""Of files that say by their names what they hold."""

_USUAL: ExportFormat = "safetensors"
"""Of files without a suffix."""


class ExportFormatError(ContractError):
    """A table is to be exported in another format than its file's name says."""

    code = "contract.export_format"
    path: str
    by_name: str
    format: str
    sentence = (
        "{path}: a file of this name holds {by_name}, and --format says {format}: leave "
        "--format out, or name another file"
    )


class UnknownSuffixError(ContractError):
    """A file's name doesn't say what is to be in it, and nothing else does."""

    code = "contract.export_suffix"
    path: str
    suffixes: str
    sentence = (
        "{path}: no format has this suffix: name one by --format, or a file with {suffixes}"
    )


class PaddleFiles(NamedTuple):
    """How the files of Paddle's table text are written."""

    shards: int = 1
    """How many: rows are divided by their keys, as Paddle does with one server."""
    compress: bool = False
    """Whether with gzip."""


class Exported(NamedTuple):
    """What was written."""

    rows: int
    files: tuple[Path, ...]
    """The first one is that which was named."""


class WordsError(ContractError):
    """A list of words doesn't name the ids of a table."""

    code = "contract.words"
    path: str
    rule: str
    sentence = "{path}: {rule}"


def export_table(
    checkpoint: Path,
    *,
    table: str,
    format: ExportFormat | None = None,  # noqa: A002 - the option's name
    output: Path,
    words: Path | None = None,
    paddle: PaddleFiles = PaddleFiles(),  # noqa: B008 - a tuple
) -> Exported:
    """Write the rows of a sparse table, sorted by id, without optimizer state.

    ``npy`` writes rows float32 [n, D] to ``output`` and ids int64 [n] beside it, to
    ``.ids.npy``; ``safetensors`` both to one file, as ``rows`` and ``ids``; ``word2vec`` the
    text format of that tool: a line ``n D``, then a word and its numbers a line. ``paddle``
    writes the table text of Paddle to a folder, with counts, days and states of rows that have
    an accessor, in the order of ``CtrCommonAccessor``: ``<table>/part-000-<shard>``.

    Args:
        checkpoint: A folder that ``fleet.save_persistables`` wrote.
        table: The table's name.
        format: One of the above; what the suffix of ``output`` says if not given: ``.npy``,
            ``.safetensors``, or ``.txt`` and ``.vec`` for ``word2vec``; ``safetensors`` if it
            has none.
        output: The file; one of that name is replaced. Of ``paddle`` the folder, which must not
            have that table as yet.
        words: For ``word2vec``: a file whose line i, from 0, is the word of id i, perhaps
            with a blank and its count. Ids are words themselves without it.
        paddle: Of ``paddle``: its files.

    Returns:
        How many rows there are, and where.

    Raises:
        UnknownSuffixError: if ``output`` has a suffix of no format, and none is given.
        ExportFormatError: if the suffix of ``output`` is that of another format.
        ManifestError: if the folder isn't a checkpoint.
        CheckpointDamagedError: if a file isn't what was saved.
        NoSuchTableError: if it has no such table.
        WordsError: if there are too few words, or one has a space in it.
        CheckpointWriteError: if the output is a folder, or in that of a checkpoint or an
            export, or the system refuses.
    """
    if format != "paddle" and (not output.name or output.is_dir()):
        raise CheckpointWriteError(path=str(output), reason="is a folder; name a file in it")
    if _is_of_ours(output.parent) or (
        _is_of_ours(checkpoint) and _is_below(output, checkpoint)
    ):
        reason = "is in the folder of a checkpoint or an export; name a file elsewhere"
        raise CheckpointWriteError(path=str(output), reason=reason)
    if format == "paddle":
        return _write_paddle(checkpoint, table, output, paddle)
    by_name = _BY_SUFFIX.get(output.suffix.lower())
    if output.suffix and format is None and by_name is None:
        raise UnknownSuffixError(path=str(output), suffixes=", ".join(_BY_SUFFIX))
    kind = format or by_name or _USUAL
    if by_name not in {None, kind}:
        raise ExportFormatError(path=str(output), by_name=str(by_name), format=kind)
    whole = load_rows(checkpoint, table)
    names = _names(whole.ids, words) if kind == "word2vec" else iter(())
    files: tuple[Path, ...] = (output,)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        if kind == "safetensors":
            tensors: dict[str, NDArray[Any]] = {"ids": whole.ids, "rows": whole.rows}
            with replaced(output) as file:
                put_tensors(file, tensors, {"table": table})
        elif kind == "npy":
            files += (output.with_suffix(".ids.npy"),)
            _save_array(files[-1], whole.ids)
            _save_array(output, whole.rows)
        else:
            _save_text(output, names, whole.rows)
    except OSError as error:
        raise CheckpointWriteError(path=str(output), reason=str(error)) from error
    return Exported(len(whole.ids), files)


def _write_paddle(checkpoint: Path, table: str, output: Path, written: PaddleFiles) -> Exported:
    """Write Paddle's table text, the folder's name last.

    Raises:
        CheckpointWriteError: if the table's folder is there, or the system refuses.
    """
    manifest = read_manifest(checkpoint)
    layers = read_layers(checkpoint, manifest)
    spec = sparse_spec(checkpoint, manifest, table)
    sparse = [each.spec.name for each in manifest.tables if each.spec.kind == "sparse"]
    part = _whole_of(layers, spec)
    counted = None
    if spec.optimizer.num_counts:
        counted = CountedRows(spec, day_of(layers, table))
    folder = output / f"{sparse.index(table):03d}"
    if folder.exists():
        raise CheckpointWriteError(
            path=str(folder),
            reason="is there already: remove it, or name another folder (--output)",
        )
    temporary = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.tmp")
    suffix = ".gz" if written.compress else ""
    names = [f"part-000-{shard:05d}{suffix}" for shard in range(written.shards)]
    assert part.ids is not None, "rows have ids"
    shards = part.ids.view(np.uint64) % np.uint64(written.shards)
    try:
        temporary.mkdir(parents=True)
        for shard, name in enumerate(names):
            rows = shards == shard
            some = FilePart(
                ids=part.ids[rows], values=part.values[rows], states=part.states[rows]
            )
            with replaced(temporary / name) as file:
                _write_part(file, lines_of(some, counted), compress=written.compress)
        sync_directory(temporary)
        temporary.rename(folder)
        sync_directory(output)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise CheckpointWriteError(path=str(output), reason=str(error)) from error
    return Exported(len(part.ids), tuple(folder / name for name in names))


def _write_part(file: IO[bytes], lines: Iterator[str], *, compress: bool) -> None:
    if compress:
        with gzip.GzipFile(fileobj=file, mode="wb", mtime=0) as packed:
            packed.writelines(line.encode() for line in lines)
    else:
        file.writelines(line.encode() for line in lines)


def _whole_of(layers: Layers, spec: TableSpec) -> FilePart:
    """Return all rows of a table, sorted by id, with their states.

    Raises:
        CheckpointDamagedError: if a file isn't what was saved.
    """
    parts = [file.read() for file in layers.files(spec.name)]
    width = parts[0].states.shape[1] if parts else 0
    ids = np.concatenate([np.empty(0, np.int64), *(p.ids for p in parts if p.ids is not None)])
    values = [np.empty((0, spec.dim), np.float32), *(p.values for p in parts)]
    states = [np.empty((0, width), np.float32), *(p.states for p in parts)]
    order = np.argsort(ids, kind="stable")
    return FilePart(
        ids=ids[order],
        values=np.concatenate(values)[order],
        states=np.concatenate(states)[order],
    )


def _is_below(output: Path, checkpoint: Path) -> bool:
    """Return whether a file would be in the checkpoint's folder, or in one of that."""
    return (output.parent.resolve() / output.name).is_relative_to(checkpoint.resolve())


def _is_of_ours(folder: Path) -> bool:
    """Return whether a folder has the manifest of a checkpoint or an export."""
    try:
        document = read_document(read_content(folder / MANIFEST))
    except (OSError, ValueError):
        return False
    return type(document) is dict and str(document.get("format")).startswith("paramfleet-")


def _names(ids: NDArray[np.int64], words: Path | None) -> Iterator[str]:
    if words is None:
        return map(str, ids.tolist())
    try:
        known = words.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise WordsError(path=str(words), rule=f"can't be read ({error})") from error
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < len(known):
        rule = (
            f"has {len(known)} lines, and the table has ids from {ids.min()} to {ids.max()}: "
            "line i is the word of id i, from 0; give a longer list, or none (--words)"
        )
        raise WordsError(path=str(words), rule=rule)
    for number, line in enumerate(known, start=1):
        word, *count = line.split(" ")
        is_word = len(word.split()) == 1 and word == word.strip()
        if not is_word or len(count) > 1 or not all(each.isdecimal() for each in count):
            rule = f"line {number} must be one word, and perhaps its count, not {line!r}"
            raise WordsError(path=str(words), rule=rule)
    return (known[each].partition(" ")[0] for each in ids.tolist())


def _save_array(path: Path, array: NDArray[np.generic]) -> None:
    with replaced(path) as file:
        np.save(file, array, allow_pickle=False)


def _save_text(path: Path, names: Iterator[str], rows: NDArray[np.float32]) -> None:
    with replaced(path) as file:
        text = TextIOWrapper(file, encoding="utf-8", newline="\n")
        text.write(f"{rows.shape[0]} {rows.shape[1]}\n")
        _write_lines(text, names, rows)
        text.detach()  # has written all, and leaves the file open


def _write_lines(file: IO[str], names: Iterator[str], rows: NDArray[np.float32]) -> None:
    for name, row in zip(names, rows, strict=True):
        # nine digits are a float32 to the bit
        numbers = " ".join(f"{number:.9g}" for number in row.tolist())
        file.write(f"{name} {numbers}\n")
