"""Logs in folders of a test, written step by step without a thread."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from paramfleet_pserver.durability.log.disk import Disk
from paramfleet_pserver.durability.log.recovery import OpenedLog, open_log
from paramfleet_pserver.durability.log.settings import LogSettings
from paramfleet_pserver.durability.log.writer import LogWriter
from paramfleet_shared.testing.clock import FakeClock

JOB = "job, epoch 3"
SMALL = LogSettings(segment_bytes=1200, batch_bytes=200, max_waiting_bytes=4000)


def command(position: int) -> bytes:
    """Return what a test appends as its command of a position."""
    return b"command %d;" % position * (position % 7)


@contextmanager
def opened(path: Path, *, held: int = 0) -> Iterator[OpenedLog]:
    log = open_log(path, job=JOB, held=held)
    try:
        yield log
    finally:
        log.close()


def writer_of(
    log: OpenedLog, *, term: int = 1, disk: Disk | None = None, settings: LogSettings = SMALL
) -> LogWriter:
    return log.continue_with(
        term=max(term, log.term), clock=FakeClock(), settings=settings, disk=disk
    )


def append(writer: LogWriter, count: int) -> None:
    for _ in range(count):
        writer.append(command(writer.position + 1))


def write(path: Path, groups: Sequence[int], *, disk: Disk | None = None) -> None:
    """Append groups of commands to a log, each with a sync."""
    with opened(path) as log:
        writer = writer_of(log, disk=disk)
        writer.turn()
        for count in groups:
            append(writer, count)
            writer.turn()


def held_by(path: Path, first: int = 1) -> list[bytes]:
    with opened(path, held=first - 1) as log:
        return [bytes(each.body) for each in log.commands(first)]


def commands(count: int, first: int = 1) -> list[bytes]:
    return [command(position) for position in range(first, count + 1)]


def segments(path: Path) -> list[Path]:
    return sorted(path.glob("segment-*.log"))
