"""``paramfleet checkpoint``: writes one of a running job, and looks at those on disk."""

import sys
from pathlib import Path
from typing import Any, get_args

import click

from paramfleet_shared.settings.cli import echo
from paramfleet_worker.app.commands.arguments import FOLDER, JSON, counted, show
from paramfleet_worker.app.commands.grouping import group_of
from paramfleet_worker.app.commands.loading import LOAD_CHECKPOINT
from paramfleet_worker.app.commands.operating import WRITE_CHECKPOINT
from paramfleet_worker.app.commands.outcomes import exit_code_of
from paramfleet_worker.config import ExportFormat, ImportFormat, PaddleAccessor, PaddleRule
from paramfleet_worker.core.board import rows_of

__all__ = ["checkpoint", "export"]

_LIST_COLUMNS = (
    "name", "written_at", "step", "servers", "tables", "dense", "rows", "bytes", "whole",
    "consistent", "base",
)  # fmt: skip


checkpoint = group_of(
    "checkpoint",
    WRITE_CHECKPOINT,
    "Write a checkpoint, or work with checkpoints on disk.\n\nWithout a "
    "command it writes one of a running job, as `checkpoint write` does, with the options "
    "below.",
)
checkpoint.add_command(WRITE_CHECKPOINT, "write")
checkpoint.add_command(LOAD_CHECKPOINT, "load")


@checkpoint.command("list")
@click.argument("folder", metavar="[DIR]", type=FOLDER, default="checkpoints")
@JSON
def _list(folder: Path, *, as_json: bool) -> None:
    """List the checkpoints in DIR, newest first.

    DIR is checkpoints by default. It may also be a checkpoint itself. Checkpoints of a training
    by days are found in the folders of the days. A checkpoint is complete if each of its files
    exists and has the right length; `checkpoint verify` also reads the files.
    """
    from paramfleet_worker.app.checkpoints.listing import list_checkpoints  # noqa: PLC0415 -- slow

    def run() -> int:
        found = [each.to_json() for each in list_checkpoints(folder)]
        lines = rows_of([each | _words(each) for each in found], _LIST_COLUMNS)
        lines = lines if found else [f"no checkpoint in {folder}"]
        lines += [f"{each['name']}: {each['problem']}" for each in found if each["problem"]]
        show(found, lines, as_json=as_json)
        return 0

    sys.exit(exit_code_of("checkpoint list", run))


@checkpoint.command("verify")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=FOLDER)
@JSON
def _verify(paths: tuple[Path, ...], *, as_json: bool) -> None:
    """Read checkpoints completely and report what is damaged.

    PATH is a checkpoint or a folder of checkpoints; those that are being written are left out.
    The exit code is 1 if anything is damaged.
    """
    from paramfleet_worker.app.checkpoints.verifying import verify_in  # noqa: PLC0415 -- slow

    def run() -> int:
        found, lines = [each for path in paths for each in verify_in(path)], []
        for each in found:
            count = counted(len(each.problems), "problem") if each.problems else "whole"
            sizes = ("file", each.files), ("row", each.rows), ("byte", each.bytes)
            size = ", ".join(counted(number, what) for what, number in sizes)
            lines.append(f"{each.path}: {count}; {size}")
            lines += [f"  {problem.to_line()}" for problem in each.problems]
            lines += [f"  note: {note}" for note in each.notes]
        show([each.to_json() for each in found], lines, as_json=as_json)
        return int(any(each.problems for each in found))

    sys.exit(exit_code_of("checkpoint verify", run))


@checkpoint.command("diff")
@click.argument("a", type=FOLDER)
@click.argument("b", type=FOLDER)
@JSON
def _diff(a: Path, b: Path, *, as_json: bool) -> None:
    """Compare the tables and buffers of two checkpoints.

    The checkpoints may be of different numbers of servers. The exit code is 0 if they are
    equal, 1 if not, and 2 if one of them can't be read. Different steps and registered states
    (learning-rate schedules, positions in the data) are shown, but don't count as a difference.
    """
    from paramfleet_worker.app.checkpoints.diffing import diff  # noqa: PLC0415 -- slow

    def run() -> int:
        found = diff(a, b)
        lines = [table.to_line() for table in found.tables]
        lines += [f"buffer {name} differs" for name in found.buffers]
        if found.steps[0] != found.steps[1]:
            lines.append(f"steps: {found.steps[0]} in A, {found.steps[1]} in B")
        lines += [
            f"registered state {name} differs (it isn't counted)" for name in found.schedules
        ]
        equal = "the tables and buffers of A and B are equal"
        lines.append(equal if found.equal else "A and B differ")
        show(found.to_json(), lines, as_json=as_json)
        return int(not found.equal)

    sys.exit(exit_code_of("checkpoint diff", run, failed=2))


@checkpoint.command("compact")
@click.argument("path", metavar="CHECKPOINT", type=FOLDER)
@click.option(
    "--output",
    type=FOLDER,
    help="Folder of the result; by default it replaces CHECKPOINT.",
)
@JSON
def _compact(path: Path, *, output: Path | None, as_json: bool) -> None:
    """Make a complete checkpoint from an incremental one.

    Its rows are merged with those of the checkpoints on which it is based; these are not
    changed. Later increments that are based on it remain valid.
    """
    from paramfleet_worker.app.checkpoints.compacting import compact  # noqa: PLC0415 -- slow

    def run() -> int:
        done = compact(path, output)
        size = f"{done.rows} rows, {done.bytes} bytes"
        was = f"merged from {done.layers} checkpoints" if done.layers > 1 else "whole already"
        show(done._asdict(), [f"{done.path}: {was}; {size}"], as_json=as_json)
        return 0

    sys.exit(exit_code_of("checkpoint compact", run))


@checkpoint.command("export")
@click.argument("checkpoint", type=FOLDER)
@click.option("--table", required=True, help="Name of the table.")
@click.option(
    "--format",
    type=click.Choice(get_args(ExportFormat)),
    help="Format of the file. By default it follows from the suffix of --output: .npy, "
    ".safetensors, or .txt and .vec for word2vec; without a suffix it is safetensors.",
)
@click.option(
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    help="File to write; npy also writes the ids, to a second file: u.ids.npy for u.npy. For "
    "paddle a folder, in which the table gets its own folder, such as 000.",
)
@click.option(
    "--words",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="For word2vec: file whose line i, counted from 0, is the word of id i.",
)
@click.option(
    "--shards",
    default=1,
    show_default=True,
    type=click.IntRange(1, 100_000),
    help="For paddle: number of files.",
)
@click.option("--gzip", "compress", is_flag=True, help="For paddle: compress the files.")
def export(checkpoint: Path, *, shards: int, compress: bool, **options: Any) -> None:
    """Write an embedding table of a checkpoint to a file.

    The formats are npy, safetensors, the text of word2vec, and that of Paddle.
    """
    from paramfleet_worker.app.export.paddle import PaddleFiles  # noqa: PLC0415 -- slow
    from paramfleet_worker.app.export.table import export_table  # noqa: PLC0415 -- slow

    def run() -> int:
        done = export_table(checkpoint, **options, paddle=PaddleFiles(shards, compress))
        echo(f"{counted(done.rows, 'row')} in {', '.join(map(str, done.files))}", err=True)
        return 0

    sys.exit(exit_code_of("export", run))


@checkpoint.command("apply")
@click.argument("base", type=click.Path(path_type=Path))
@click.argument(
    "deltas", metavar="DELTA...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@click.option(
    "--output", required=True, type=click.Path(path_type=Path), help="Folder of the new export."
)
@JSON
def _apply(base: Path, deltas: tuple[Path, ...], *, output: Path, as_json: bool) -> None:
    """Apply deltas, in their order, to an exported model.

    BASE was saved by `fleet.save_inference_model` with mode=2, the deltas with mode=1. The
    result is a complete model, to which later deltas can be applied.
    """
    from paramfleet.session.checkpoint.exports.applying import apply_deltas  # noqa: PLC0415 -- slow

    def run() -> int:
        done = apply_deltas(base, deltas, output)
        sizes = ("delta", done.deltas), ("table", done.tables), ("row", done.rows)
        size = ", ".join(counted(number, what) for what, number in sizes)
        show(done._asdict(), [f"{done.path}: {size}"], as_json=as_json)
        return 0

    sys.exit(exit_code_of("checkpoint apply", run))


@checkpoint.command("import")
@click.argument("source", type=click.Path(exists=True, path_type=Path))
@click.option("--table", required=True, help="Name of the table in the checkpoint.")
@click.option(
    "--into",
    required=True,
    type=FOLDER,
    help="A checkpoint of the model, which has everything except the rows of this table.",
)
@click.option("--output", required=True, type=FOLDER, help="Folder of the new checkpoint.")
@click.option(
    "--format",
    "form",
    required=True,
    type=click.Choice(get_args(ImportFormat)),
    help="Format of SOURCE. paddle: a folder with part-* files of text, with or without gzip. "
    "dcp: a folder of torch.distributed.checkpoint, as TorchRec's trainers write it.",
)
@click.option(
    "--accessor",
    default="SparseAccessor",
    show_default=True,
    type=click.Choice([*get_args(PaddleAccessor), "none"]),
    help="For paddle: accessor of the saved table; none if lines are keys and values.",
)
@click.option(
    "--rule",
    type=click.Choice(get_args(PaddleRule)),
    help="For paddle: rule of the saved table. By default that of the table's accessor, or "
    "SparseAdamSGDRule.",
)
@click.option(
    "--words",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="For word2vec: file whose line i, counted from 0, is the word of id i.",
)
@click.option(
    "--key",
    help="For dcp: name of the tensor, or its end, as embedding_bags.ads. By default --table.",
)
@JSON
def _import(source: Path, *, as_json: bool, **options: Any) -> None:
    """Write a new checkpoint in which one table has the rows of SOURCE.

    SOURCE is a file of `checkpoint export`, word2vec's text, a table that Paddle saved, or a
    checkpoint of torch.distributed.checkpoint, where the id of a row is its index. The
    optimizer states of these rows start from the beginning, except for a Paddle table with an
    accessor, which has them. The checkpoint of --into is not changed.
    """
    from paramfleet_worker.app.checkpoints.foreign import ForeignTable, PaddleText  # noqa: PLC0415
    from paramfleet_worker.app.checkpoints.importing import import_table  # noqa: PLC0415 -- slow

    def run() -> int:
        paddle = PaddleText(options["accessor"], options["rule"])
        key = options["key"] or options["table"]
        table = ForeignTable(source, options["form"], paddle, options["words"], key)
        done = import_table(
            table, into=options["into"], table=options["table"], output=options["output"]
        )
        imported = f"{counted(done.rows, 'row')} of table {done.table!r}"
        lines = [f"{done.path}: {imported} imported, instead of {done.replaced}"]
        show(done._asdict(), lines, as_json=as_json)
        return 0

    sys.exit(exit_code_of("checkpoint import", run))


def _words(listed: dict[str, Any]) -> dict[str, str]:
    """Return the truths of a listed checkpoint as words."""
    words = {True: "yes", False: "no", None: "-"}
    return {name: words[listed[name]] for name in ("whole", "consistent")}
