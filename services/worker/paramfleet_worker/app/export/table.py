"""``paramfleet export``: one table of a checkpoint in a format that others read.

Shape legend: n = rows, D = row width.
"""

from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from paramfleet_shared.checkpoint.layers import Layers, read_layers
from paramfleet_shared.checkpoint.manifest import MANIFEST, CheckpointWriteError
from paramfleet_shared.checkpoint.one_manifest import one_manifest
from paramfleet_shared.checkpoint.saved_rows import sparse_spec
from paramfleet_shared.deltas.base_writing import temporary_near
from paramfleet_shared.errors import ContractError
from paramfleet_shared.files.documents import read_content, read_document
from paramfleet_shared.tables.spec import TableSpec
from paramfleet_worker.app.export.files import (
    check_arrays,
    write_arrays,
    write_tensors,
    write_text,
)
from paramfleet_worker.app.export.paddle import PaddleFiles, write_paddle
from paramfleet_worker.app.export.rows import SortedRows
from paramfleet_worker.app.export.words import WordList, opened_words
from paramfleet_worker.config import ExportFormat

__all__ = ["ExportFormatError", "Exported", "UnknownSuffixError", "export_table"]

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


class Exported(NamedTuple):
    """What was written."""

    rows: int
    files: tuple[Path, ...]
    """The first one is that which was named."""


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

    Rows are sorted in a temporary file without a name in the folder of the output, which needs
    as much of the disk as the rows do. Memory holds some of them at a time.

    ``npy`` writes rows float32 [n, D] to ``output`` and ids int64 [n] beside it: to
    ``u.ids.npy`` for ``u.npy``, and to ``u.v1.ids.npy`` for ``u.v1``. ``safetensors`` writes
    both to one file, as ``rows`` and ``ids``. ``word2vec`` writes the text format of that tool:
    a line ``n D``, then a word and its numbers a line. ``paddle`` writes the table text of
    Paddle to a folder, with counts, days and states of rows that have an accessor, in the
    order of ``CtrCommonAccessor``: ``<table>/part-000-<shard>``.

    Args:
        checkpoint: A folder that ``fleet.save_persistables`` wrote.
        table: The table's name.
        format: One of the above; what the suffix of ``output`` says if not given: ``.npy``,
            ``.safetensors``, or ``.txt`` and ``.vec`` for ``word2vec``; ``safetensors`` if it
            has none.
        output: The file; one of that name is replaced. Of ``paddle`` the folder, which must not
            have that table as yet.
        words: For ``word2vec``: a file whose line i, from 0, is the word of id i, perhaps
            with a blank and its count. Only a line feed ends a line, and only ASCII's blanks
            end a word. Ids are words themselves without it.
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
            export, or a file of it is that of other rows' ids, or the system refuses.
    """
    if format != "paddle" and (not output.name or output.is_dir()):
        raise CheckpointWriteError(path=str(output), reason="is a folder; name a file in it")
    if _is_of_ours(output.parent) or (
        _is_of_ours(checkpoint) and _is_below(output, checkpoint)
    ):
        reason = "is in the folder of a checkpoint or an export; name a file elsewhere"
        raise CheckpointWriteError(path=str(output), reason=reason)
    kind = _format_of(output, format)
    if kind == "npy":
        check_arrays(output)
    with ExitStack() as stack:
        manifest = stack.enter_context(one_manifest(checkpoint))
        spec = sparse_spec(checkpoint, manifest, table)
        layers = read_layers(checkpoint, manifest)
        listed = None
        if words is not None and kind == "word2vec":
            listed = stack.enter_context(opened_words(words))
        try:
            return _write(layers, spec, kind, output, listed, paddle)
        except OSError as error:
            raise CheckpointWriteError(path=str(output), reason=str(error)) from error


def _format_of(output: Path, given: ExportFormat | None) -> ExportFormat:
    """Return the format of a file.

    Raises:
        UnknownSuffixError: if its name has a suffix of no format, and none is given.
        ExportFormatError: if its suffix is that of another format.
    """
    if given == "paddle":  # a folder
        return given
    by_name = _BY_SUFFIX.get(output.suffix.lower())
    if output.suffix and given is None and by_name is None:
        raise UnknownSuffixError(path=str(output), suffixes=", ".join(_BY_SUFFIX))
    kind = given or by_name or _USUAL
    if by_name not in {None, kind}:
        raise ExportFormatError(path=str(output), by_name=str(by_name), format=kind)
    return kind


def _write(
    layers: Layers,
    spec: TableSpec,
    kind: ExportFormat,
    output: Path,
    words: WordList | None,
    paddle: PaddleFiles,
) -> Exported:
    """Write a table.

    Raises:
        OSError: if the system refuses.
    """
    folder = output if kind == "paddle" else output.parent
    folder.mkdir(parents=True, exist_ok=True)
    temporary = temporary_near(folder)
    if kind == "paddle":
        return Exported(*write_paddle(layers, spec, output, temporary, paddle))
    rows = SortedRows(layers, spec, temporary)
    files: tuple[Path, ...] = (output,)
    if kind == "safetensors":
        write_tensors(output, rows, spec.name)
    elif kind == "npy":
        files += (write_arrays(output, rows),)
    else:
        if words is not None:
            words.check(*rows.bounds)
        write_text(output, rows, words)
    return Exported(rows.count, files)


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
