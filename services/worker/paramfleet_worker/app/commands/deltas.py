"""``paramfleet delta``: looks at the stream of a folder, and tidies it."""

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from paramfleet_shared.deltas.compaction import compact_folder, prune_folder
from paramfleet_shared.deltas.inspecting.listing import list_stream
from paramfleet_shared.deltas.inspecting.verifying import MOST_PROBLEMS, verify_stream
from paramfleet_shared.deltas.records import StreamHead
from paramfleet_shared.settings.cli import BoundedGroup
from paramfleet_shared.system.clock import SystemClock
from paramfleet_worker.app.commands.arguments import FOLDER, JSON, counted, show
from paramfleet_worker.app.commands.following import follow
from paramfleet_worker.app.commands.outcomes import exit_code_of
from paramfleet_worker.core.board import rows_of

__all__ = ["delta"]

_SHOWN = 20
"""Problems that are printed as text."""


@click.group("delta", cls=BoundedGroup)
def delta() -> None:
    """Write, show, check and clean up streams of changes."""


@delta.command("list")
@click.argument("folder", metavar="DIR", type=FOLDER)
@JSON
def _list(folder: Path, *, as_json: bool) -> None:
    """List the bases and changes in DIR, by number.

    Files aren't read; `delta verify` does that.
    """

    def run() -> int:
        found = list_stream(folder)
        parts = [part._asdict() for part in found.parts]
        lines = [_line(found.head), *rows_of(parts, ("kind", "number", "bytes"))]
        lines += [each.problem for each in found.parts if each.problem]
        lines += [f"former stream {name}" for name in found.former]
        answer = _facts(found.head) | {"parts": parts, "former": found.former}
        show(answer, lines, as_json=as_json)
        return 0

    sys.exit(exit_code_of("delta list", run))


@delta.command("verify")
@click.argument("folder", metavar="DIR", type=FOLDER)
@JSON
def _verify(folder: Path, *, as_json: bool) -> None:
    """Read the stream in DIR completely and report what is damaged.

    Each base and each change is proven by its SHA-256, and the changes between two bases,
    applied to the older one, must give exactly the newer one. Ends with 1 if anything is wrong.
    """

    def run() -> int:
        found = verify_stream(folder)
        count = counted(found.num_problems, "problem") if found.problems else "whole"
        sizes = ("base", found.bases), ("change", found.changes), ("row", found.rows)
        size = ", ".join(counted(number, what) for what, number in sizes)
        lines = [f"{folder}: {count}; {size}"]
        lines += [f"  {each}" for each in found.problems[:_SHOWN]]
        if (more := found.num_problems - _SHOWN) > 0:
            lines.append(f"  and {more:,} more: --json names up to {MOST_PROBLEMS:,}")
        answer = _facts(found.head) | {
            "bases": found.bases,
            "changes": found.changes,
            "rows": found.rows,
            "problems": found.problems,
            "num_problems": found.num_problems,
        }
        show(answer, lines, as_json=as_json)
        return int(bool(found.problems))

    sys.exit(exit_code_of("delta verify", run))


@delta.command("compact")
@click.argument("folder", metavar="DIR", type=FOLDER)
@click.option(
    "--keep",
    type=click.IntRange(1, 1000),
    help="Number of bases to keep; by default all.",
)
@JSON
def _compact(folder: Path, *, keep: int | None, as_json: bool) -> None:
    """Write a new base: the newest one in DIR with all changes.

    Readers can continue. The writer of the stream can continue if DIR is on a disk; at an
    address, such as s3://, no writer may publish while this runs.
    """

    def run() -> int:
        number = compact_folder(folder, SystemClock(), keep=keep)
        said = "the newest change has a base already" if number is None else f"base {number}"
        show({"path": str(folder), "base": number}, [f"{folder}: {said}"], as_json=as_json)
        return 0

    sys.exit(exit_code_of("delta compact", run))


@delta.command("prune")
@click.argument("folder", metavar="DIR", type=FOLDER)
@click.option(
    "--keep", required=True, type=click.IntRange(1, 1000), help="Number of bases to keep."
)
@JSON
def _prune(folder: Path, *, keep: int, as_json: bool) -> None:
    """Remove old bases from DIR, and changes no base needs.

    A reader that has not reached the oldest remaining base starts again from the newest. At an
    address, such as s3://, no writer may publish while this runs.
    """

    def run() -> int:
        head = prune_folder(folder, SystemClock(), keep=keep)
        numbers = ", ".join(map(str, head.bases))
        kept = f"1 base kept: number {numbers}"
        if len(head.bases) != 1:
            kept = f"{len(head.bases)} bases kept: numbers {numbers}"
        answer = {"path": str(folder), "bases": list(head.bases)}
        show(answer, [f"{folder}: {kept}"], as_json=as_json)
        return 0

    sys.exit(exit_code_of("delta prune", run))


delta.add_command(follow)


def _facts(head: StreamHead) -> dict[str, Any]:
    """Return what ``stream.json`` says, as plain values."""
    return {
        "stream": head.stream,
        "last": head.last,
        "base": head.base,
        "moment": head.moment,
        "writer": head.writer,
    }


def _line(head: StreamHead) -> str:
    moment = datetime.fromtimestamp(head.moment, UTC).isoformat(timespec="milliseconds")
    return f"stream {head.stream}: changes up to {head.last}, all until {moment}"
