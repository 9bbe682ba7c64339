"""``paramfleet delta follow``: a running job's changes, written to a folder as they come."""

import asyncio
import signal
import sys
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import click

from paramfleet_serving.jobs.exporting import Exporter, ExportPlan
from paramfleet_serving.jobs.finding import found_settings
from paramfleet_shared.deltas.stored.holding import held_for_writing
from paramfleet_shared.deltas.writer import StreamWriter
from paramfleet_shared.settings.cli import BoundedCommand, echo
from paramfleet_shared.settings.config import read_environment
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.telemetry.logs_and_metrics import setup_logging
from paramfleet_worker.app.commands.arguments import FOLDER, FiniteRange, counted
from paramfleet_worker.app.commands.outcomes import exit_code_of
from paramfleet_worker.app.finding import NoJobError, find_job, running_jobs

__all__ = ["follow"]

SECONDS = FiniteRange(min=0.01, max=1e6)


@click.command("follow", cls=BoundedCommand)
@click.argument("folder", metavar="DIR", type=FOLDER)
@click.option(
    "--job",
    help="Name of the job. By default your only job here, or the one that was launched from "
    "this folder.",
)
@click.option("--redis", help="Address of the job's Redis, for a job on other machines.")
@click.option(
    "--every", "every_s", default=0.2, show_default=True, type=SECONDS,
    help="Seconds between two changes.",
)  # fmt: skip
@click.option(
    "--dense-every", "dense_s", default=1.0, show_default=True, type=SECONDS,
    help="Seconds between two changes that contain dense parameters.",
)  # fmt: skip
@click.option(
    "--base-changes", default=5000, show_default=True, type=click.IntRange(0, 1 << 40),
    help="Number of changes after which a new base is made; 0 means never.",
)  # fmt: skip
@click.option(
    "--keep", default=2, show_default=True, type=click.IntRange(1, 1000),
    help="Number of bases to keep, with the changes after them.",
)  # fmt: skip
@click.option(
    "--stay", "stays", is_flag=True, help="Wait for the next run when the job has ended."
)
@click.option(
    "--take-over", "takes_over", is_flag=True,
    help="Replace the process that writes to DIR. By default this is an error.",
)  # fmt: skip
def follow(
    folder: Path, *, job: str | None, redis: str | None, takes_over: bool, **plan: Any
) -> None:
    """Write a running job's changes to a stream in DIR.

    Ends with the job. The stream begins with a base of all rows. The changes come from the
    pservers; the training doesn't wait. After an interruption in which changes may be lost, a
    new stream begins.
    """

    def run() -> int:
        environment = read_environment()
        found = find_job({"job": job, "redis": redis}, environment)
        if found.folder is None and not found.names_registry:
            running = running_jobs(found.settings)
            raise NoJobError(job=job or "", running=running)
        if found.chosen:
            echo(found.chosen, err=True)
        setup_logging("serving", level="INFO", log_format=found.settings.log_format)
        clock = SystemClock()
        writer = StreamWriter(folder, clock=clock, keep_bases=plan.pop("keep"))
        told = _Told()
        is_here = found.folder is not None
        find = partial(found_settings, found.settings) if is_here else lambda: found.settings
        exporter = Exporter(find, writer, ExportPlan(**plan), clock=clock, progress=told)
        with held_for_writing(folder, clock, takes_over=takes_over):
            is_stopped = asyncio.run(_until_stopped(exporter))
        moment = datetime.fromtimestamp(told.moment, UTC).isoformat(timespec="milliseconds")
        until = f", all until {moment}" if told.moment else ""
        echo(f"{folder}: {counted(told.number, 'change')} published{until}", err=True)
        if is_stopped or exporter.is_whole:
            return 0
        echo("the job ended before its last changes came: the stream lacks them", err=True)
        return 1

    sys.exit(exit_code_of("delta follow", run))


class _Told:
    """What was published last."""

    def __init__(self) -> None:
        self.number = 0
        self.moment = 0.0

    def begun(self, *, num_rows: int) -> None:
        """Note that a stream has begun."""
        del num_rows
        self.number = 0

    def published(self, number: int, moment: float) -> None:
        """Note a change."""
        self.number, self.moment = number, moment


async def _until_stopped(exporter: Exporter) -> bool:
    """Follow until the job has ended, or a signal says that it is enough; return which."""
    loop = asyncio.get_running_loop()
    task = loop.create_task(exporter.run())
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()
    return task.cancelled()
