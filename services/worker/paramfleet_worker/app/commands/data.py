"""``paramfleet data``: what pservers have left below a data folder, and its end."""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from paramfleet_pserver.durability.kept_runs import KeptRun, kept_runs, remove_run
from paramfleet_shared.errors import ContractError
from paramfleet_shared.settings.cli import BoundedCommand, BoundedGroup, echo
from paramfleet_shared.values.texts import printable
from paramfleet_worker.app.commands.arguments import FiniteRange
from paramfleet_worker.app.commands.outcomes import exit_code_of

__all__ = ["NothingNamedError", "data"]

DAY_S = 86_400.0


class NothingNamedError(ContractError):
    """It isn't said what is to be removed."""

    code = "contract.nothing_named"
    sentence = "say what is to be removed: --job NAME, --older-than DAYS, or both"


_FOLDER = click.Argument(
    ["folder"], type=click.Path(exists=True, file_okay=False, path_type=Path)
)
_JOB = click.Option(["--job"], help="Only runs of this job.")
_OLDER = click.Option(
    ["--older-than"],
    type=FiniteRange(0.0, 1e6),
    help="Only runs that have not been changed for this many days.",
)
_JSON = click.Option(["--json"], is_flag=True, help="Print the answer as JSON.")


@click.group("data", cls=BoundedGroup)
def data() -> None:
    """Show and remove what pservers wrote into a data folder (--data_dir).

    A job that finishes removes its data. The data of a job that failed stays until its next run
    starts.
    """


def _list(**options: Any) -> None:
    """Show the runs in FOLDER.

    For each run: its size, the days since a change, and if a process uses it.
    """

    def run() -> int:
        found = list(_chosen(options))
        if options["json"]:
            echo(json.dumps([_facts(each) for each in found]))
            return 0
        for each in found:
            echo(_line(each))
        total = sum(each.num_bytes for each in found)
        echo(f"{len(found)} runs, {total / 1e6:.1f} MB")
        return 0

    sys.exit(exit_code_of("data list", run))


def _remove(**options: Any) -> None:
    """Remove data of ended runs from FOLDER. Data that a process uses is kept.

    No later job continues from a run that has failed: continue from a checkpoint (--resume).
    """

    def run() -> int:
        if options["job"] is None and options["older_than"] is None:
            raise NothingNamedError
        chosen = list(_chosen(options))
        removed = [each for each in chosen if not each.in_use]
        for each in removed:
            remove_run(options["folder"], each)
        if options["json"]:
            echo(json.dumps([_facts(each) for each in removed]))
            return 0
        for each in removed:
            echo(f"removed {_line(each)}")
        num_used = len(chosen) - len(removed)
        stay = f"; {num_used} in use stay" if num_used else ""
        echo(f"{len(removed)} runs removed{stay}")
        return 0

    sys.exit(exit_code_of("data remove", run))


data.add_command(
    BoundedCommand(
        "list", params=[_FOLDER, _JOB, _OLDER, _JSON], callback=_list, help=_list.__doc__
    )
)
data.add_command(
    BoundedCommand(
        "remove", params=[_FOLDER, _JOB, _OLDER, _JSON], callback=_remove, help=_remove.__doc__
    )
)


def _chosen(options: dict[str, Any]) -> Iterator[KeptRun]:
    """Yield what the options name; raises as ``kept_runs``."""
    for each in kept_runs(options["folder"], _say_left_out):
        is_of_job = options["job"] in {None, each.job}
        is_old = options["older_than"] is None or _days(each) >= options["older_than"]
        if is_of_job and is_old:
            yield each


def _say_left_out(path: Path, reason: str) -> None:
    click.echo(printable(f"left out {path}: {reason}", lines=False), err=True)


def _days(run: KeptRun) -> float:
    return max(0.0, time.time() - run.changed_at) / DAY_S  # noqa: TID251 -- files' time


def _line(run: KeptRun) -> str:
    use = "in use" if run.in_use else f"{_days(run):.1f} days old"
    job = printable(run.job, lines=False)
    return f"{job} pserver {run.index} run {run.run_id}: {run.num_bytes / 1e6:.1f} MB, {use}"


def _facts(run: KeptRun) -> dict[str, Any]:
    return {
        "job": run.job,
        "index": run.index,
        "run": run.run_id,
        "path": str(run.path),
        "bytes": run.num_bytes,
        "days": round(_days(run), 3),
        "in_use": run.in_use,
    }
