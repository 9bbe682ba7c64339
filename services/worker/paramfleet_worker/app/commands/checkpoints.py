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
    "name", "written_at", "step", "servers", "tables", "rows", "bytes", "whole", "consistent",
    "base",
)  # fmt: skip


checkpoint = group_of(
    "checkpoint",
    WRITE_CHECKPOINT,
    "Write a checkpoint of a running job, or look at those on disk.\n\nWithout a command it "
    "writes one, with the options below, as `checkpoint write` does.",
)
checkpoint.add_command(WRITE_CHECKPOINT, "write")
checkpoint.add_command(LOAD_CHECKPOINT, "load")


@checkpoint.command("list")
@click.argument("folder", metavar="DIR", type=FOLDER)
@JSON
def _list(folder: Path, *, as_json: bool) -> None:
    """List the checkpoints in DIR, newest first, or the one that DIR is.

    Those of a training by days are found below the folders of days. A checkpoint is whole if
    each of its files is there with its length; `checkpoint verify` reads them.
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
    """Read everything of the checkpoints PATH... and name what is wrong.

    Of a folder that has checkpoints in it, each is read that isn't being written. Ends with 1
    if anything is wrong.
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
    """Compare the tables and buffers of the checkpoints A and B, of any numbers of servers.

    Ends with 0 if they are equal, with 1 if not, with 2 if one of them can't be read. Steps and
    registered states (schedules, places in the data) are named where they differ, and aren't
    counted: they say where a training is.
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
@click.option("--output", type=FOLDER, help="The whole one's folder, instead of its own place.")
@JSON
def _compact(path: Path, *, output: Path | None, as_json: bool) -> None:
    """Make an increment whole, so that it needs no other checkpoint.

    Its rows are merged with those of the checkpoints that it builds on, which stay. Later
    increments of it stay increments of it.
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
@click.option("--table", required=True, help="The table's name.")
@click.option(
    "--format",
    type=click.Choice(get_args(ExportFormat)),
    help="Default: what the suffix of --output says: .npy, .safetensors, or .txt and .vec for "
    "word2vec; safetensors without a suffix.",
)
@click.option(
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    help="The file; npy writes the ids beside it, to .ids.npy. Of paddle a folder, in which "
    "the table gets one of its own, such as 000.",
)
@click.option(
    "--words",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="word2vec: a file whose line i, from 0, is the word of id i.",
)
@click.option(
    "--shards",
    default=1,
    show_default=True,
    type=click.IntRange(1, 100_000),
    help="paddle: how many files there are.",
)
@click.option("--gzip", "compress", is_flag=True, help="paddle: compress them.")
def export(checkpoint: Path, *, shards: int, compress: bool, **options: Any) -> None:
    """Write one embedding table of CHECKPOINT in a format that others read."""
    from paramfleet_worker.app.exporting import PaddleFiles, export_table  # noqa: PLC0415 -- slow

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
    "--output", required=True, type=click.Path(path_type=Path), help="The new export's folder."
)
@JSON
def _apply(base: Path, deltas: tuple[Path, ...], *, output: Path, as_json: bool) -> None:
    """Write an export that has BASE with the deltas DELTA..., in their order.

    BASE was saved by `fleet.save_inference_model` with mode=2, the deltas with mode=1. What is
    written is a model by itself, and a base that later deltas follow.
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
@click.option("--table", required=True, help="The table's name in the checkpoint.")
@click.option(
    "--into",
    required=True,
    type=FOLDER,
    help="A checkpoint of the model: it says what the table is, and has all else.",
)
@click.option("--output", required=True, type=FOLDER, help="The new checkpoint's folder.")
@click.option(
    "--format",
    "form",
    required=True,
    type=click.Choice(get_args(ImportFormat)),
    help="paddle is the text of a table: SOURCE is its folder of part-* files, gzip or not. "
    "dcp is a folder of torch.distributed.checkpoint, as TorchRec's trainers write it.",
)
@click.option(
    "--accessor",
    default="SparseAccessor",
    show_default=True,
    type=click.Choice([*get_args(PaddleAccessor), "none"]),
    help="paddle: what the table was saved with; none where lines are keys and values.",
)
@click.option(
    "--rule",
    type=click.Choice(get_args(PaddleRule)),
    help="paddle: the same. Default: those of the table's accessor, or SparseAdamSGDRule.",
)
@click.option(
    "--words",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="word2vec: a file whose line i, from 0, is the word of id i.",
)
@click.option(
    "--key",
    help="dcp: the tensor's name, or its end, as embedding_bags.ads; else that of --table.",
)
@JSON
def _import(source: Path, *, as_json: bool, **options: Any) -> None:
    """Write a checkpoint with the rows of SOURCE as one table.

    SOURCE is what `checkpoint export` writes, word2vec's text, a table that Paddle saved, or a
    checkpoint of torch.distributed.checkpoint, where a row's id is its number. The optimizer
    begins anew on these rows, but on those that Paddle saved for a table with an accessor.
    `--into` stays as it is.
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
