"""``paramfleet delta follow``: a running job's changes, written to a folder as they come."""

import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from paramfleet_serving.jobs.exporting import Exporter, ExportPlan
from paramfleet_serving.jobs.finding import found_settings
from paramfleet_shared.deltas.stored.holding import held_for_writing
from paramfleet_shared.deltas.writer import StreamWriter
from paramfleet_shared.settings.cli import BoundedCommand, echo
from paramfleet_shared.settings.config import read_environment
from paramfleet_shared.system.clock import Clock, SystemClock
from paramfleet_shared.telemetry.logs_and_metrics import setup_logging
from paramfleet_worker.app.commands.arguments import FOLDER, FiniteRange, counted
from paramfleet_worker.app.commands.outcomes import exit_code_of
from paramfleet_worker.app.finding import Found, NoJobError, find_job, running_jobs

__all__ = ["follow"]

LOOK_S = 0.5
"""Seconds between two looks for a job that doesn't run yet."""

T = TypeVar("T")

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
    "--stay", "stays", is_flag=True,
    help="Wait for the job if it doesn't run yet, and for the next run when it has ended.",
)  # fmt: skip
@click.option(
    "--take-over", "takes_over", is_flag=True,
    help="Replace the process that writes to DIR. By default this is an error.",
)  # fmt: skip
def follow(
    folder: Path, *, job: str | None, redis: str | None, takes_over: bool, **plan: Any
) -> None:
    """Write a running job's changes to a stream in DIR.

    Ends with the job, unless --stay is given. The stream begins with a base of all rows. The
    changes come from the pservers; the training doesn't wait. After an interruption in which
    changes may be lost, a new stream begins.
    """

    def run() -> int:
        clock = SystemClock()
        find_now = partial(find_job, {"job": job, "redis": redis}, read_environment())
        found = find_now()
        if not _is_known(found):
            running = running_jobs(found.settings)
            if not plan["stays"]:
                raise NoJobError(job=job or "", running=running)
            says = _waits_for(job, running)
            awaited = asyncio.run(_until_stopped(_await_job(find_now, says, clock)))
            if awaited is None:
                return 0
            found = awaited
        if found.chosen:
            echo(found.chosen, err=True)
        setup_logging("serving", level="INFO", log_format=found.settings.log_format)
        writer = StreamWriter(folder, clock=clock, keep_bases=plan.pop("keep"))
        told = _Told()
        is_here = found.folder is not None
        find = partial(found_settings, found.settings) if is_here else lambda: found.settings
        exporter = Exporter(find, writer, ExportPlan(**plan), clock=clock, progress=told)
        with held_for_writing(folder, clock, takes_over=takes_over):
            is_stopped = not asyncio.run(_until_stopped(_followed(exporter)))
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


def _is_known(found: Found) -> bool:
    """Return whether it is known where a job is, or will be."""
    return found.folder is not None or found.names_registry


def _waits_for(job: str | None, running: Sequence[str]) -> str:
    """Return what is waited for, in a line."""
    which = f"job {job}" if job else "a job of yours"
    others = f" (running are {', '.join(running)})" if running else ""
    return (
        f"waiting until {which} runs on this machine{others}; for a job on another machine "
        "give the address of its registry (Redis) with --redis"
    )


async def _await_job(find: Callable[[], Found], told: str, clock: Clock) -> Found:
    """Say what is waited for, and return a job when it runs here.

    Raises:
        SeveralJobsError: if none is named, and several run by then.
    """
    echo(told, err=True)
    while not _is_known(found := find()):
        await clock.sleep(LOOK_S)
    return found


async def _followed(exporter: Exporter) -> bool:
    """Follow until the job has ended."""
    await exporter.run()
    return True


async def _until_stopped(work: Coroutine[Any, Any, T]) -> T | None:
    """Return the result of work; None if a signal says before that it is enough."""
    loop = asyncio.get_running_loop()
    task = loop.create_task(work)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    await asyncio.wait([task])
    return None if task.cancelled() else task.result()
