"""Who reads the launcher's output may stand still: real pipes, and terminals."""

import contextlib
import io
import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from paramfleet_shared.testing.patience import LATE_S
from paramfleet_worker.core.events import ProcessName
from paramfleet_worker.process.terminal.console import LAST_WITHIN_S, Console
from paramfleet_worker.process.terminal.outlets import MOST_LINES_BYTES

BOB = ProcessName("worker", 1)

MANY = 3 * MOST_LINES_BYTES // 100
"""Lines of a hundred bytes, of which not all may wait."""


@contextlib.contextmanager
def piped() -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """Have both ends of a pipe: the one that is read, and the one that is written."""
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as reader, os.fdopen(writing, "wb", 0) as writer:
        yield reader, writer


def in_background(reader: BinaryIO) -> tuple[threading.Thread, bytearray]:
    """Read a pipe to its end, in a thread."""
    read = bytearray()

    def run() -> None:
        with contextlib.suppress(OSError):  # a terminal ends so
            while data := os.read(reader.fileno(), 1 << 16):
                read.extend(data)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, read


def lines_of(console: Console, number: int) -> list[bytes]:
    lines = [f"{each:89d}".encode() for each in range(number)]
    for line in lines:
        console.line(BOB, line)
    return lines


@pytest.mark.slow
def test_a_reader_that_stands_still_holds_nobody_up_and_is_told_what_it_has_missed() -> None:
    with piped() as (reader, writer):
        console = Console(io.BytesIO(), writer, {})

        lines = lines_of(console, MANY)
        thread, read = in_background(reader)
        console.close(keeps_results=True)
        writer.close()
        thread.join(LATE_S)

    *shown, said = bytes(read).splitlines()
    told = re.fullmatch(rb"\[launcher\] warning: (\d+) lines were not shown, .*", said)
    assert told
    assert len(shown) + int(told[1]) == len(lines)
    assert shown == [b"[worker 1] " + line for line in lines[: len(shown)]]


@pytest.mark.slow
def test_lines_that_are_missing_are_told_where_they_are_missing() -> None:
    with piped() as (reader, writer):
        console = Console(io.BytesIO(), writer, {})
        lines = lines_of(console, MANY)
        thread, read = in_background(reader)
        deadline = time.perf_counter() + LATE_S
        while b"not shown" not in read and time.perf_counter() < deadline:
            console.let_old_go(0.0)  # as a launcher does twice a second
        console.line(BOB, b"the next")
        console.close(keeps_results=False)
        writer.close()
        thread.join(LATE_S)

    *shown, said, last = bytes(read).splitlines()
    told = re.fullmatch(rb"\[launcher\] warning: (\d+) lines were not shown, .*", said)
    assert told
    assert len(shown) + int(told[1]) == len(lines)
    assert shown == [b"[worker 1] " + line for line in lines[: len(shown)]]
    assert last == b"[worker 1] the next"


@pytest.mark.slow
def test_the_end_waits_for_a_reader_that_stands_still_but_not_for_long() -> None:
    with piped() as (reader, writer):
        console = Console(io.BytesIO(), writer, {})
        lines_of(console, MANY)
        began = time.perf_counter()

        console.close(keeps_results=True)

        assert time.perf_counter() - began < LAST_WITHIN_S + LATE_S
        console.say("nobody hears that")
        reader.close()


def test_a_program_that_reads_the_results_slowly_gets_all_of_them() -> None:
    result = os.urandom(4 * MOST_LINES_BYTES)
    with piped() as (reader, writer):
        err = io.BytesIO()
        console = Console(writer, err, {})
        console.result(result)
        thread, read = in_background(reader)

        console.close(keeps_results=True)

        writer.close()
        thread.join(LATE_S)
        assert read == result
        assert err.getvalue() == b""


@pytest.mark.slow
def test_results_that_nothing_reads_are_told_of() -> None:
    with piped() as (_, writer):
        err = io.BytesIO()
        console = Console(writer, err, {})
        console.result(b"x\n" * MOST_LINES_BYTES)

        console.close(keeps_results=False)

        told = re.fullmatch(
            rb"\[launcher\] warning: (\d+) lines were not shown, because nothing read them: "
            rb"they are in the logs\n",
            err.getvalue(),
        )
        assert told
        assert 0 < MOST_LINES_BYTES - int(told[1]) < 100_000, "all that the pipe didn't take"


@pytest.mark.slow
def test_lines_reach_who_reads_them_while_nothing_reads_the_results() -> None:
    with piped() as (_, out), piped() as (reader, err):
        console = Console(out, err, {})
        console.result(b"x" * MOST_LINES_BYTES)

        console.say("still here")

        assert reader.readline() == b"[launcher] still here\n"
        console.close(keeps_results=False)


def test_where_both_are_one_pipe_results_and_lines_keep_their_order() -> None:
    with piped() as (reader, writer):
        with os.fdopen(os.dup(writer.fileno()), "wb", 0) as other:
            console = Console(writer, other, {})
            for number in range(5000):
                console.result(b"result %d\n" % number)
                console.line(BOB, b"line %d" % number)
            thread, read = in_background(reader)
            console.close(keeps_results=True)
        writer.close()
        thread.join(LATE_S)

    wanted = [
        line
        for number in range(5000)
        for line in (b"result %d" % number, b"[worker 1] line %d" % number)
    ]
    assert bytes(read).splitlines() == wanted


def test_an_output_that_another_process_has_let_not_block_gets_all() -> None:
    with piped() as (reader, writer):
        os.set_blocking(writer.fileno(), False)
        console = Console(writer, io.BytesIO(), {})
        console.result(b"x" * MOST_LINES_BYTES)
        thread, read = in_background(reader)

        console.close(keeps_results=True)

        writer.close()
        thread.join(LATE_S)
        assert len(read) == MOST_LINES_BYTES


def test_an_output_that_nobody_reads_any_more_takes_nothing() -> None:
    with piped() as (reader, writer):
        console = Console(writer, io.BytesIO(), {})
        reader.close()

        console.result(b"lost")
        console.close(keeps_results=True)

        assert console.terminal_environment() == {}


def test_a_file_is_written_at_once(tmp_path: Path) -> None:
    threads = threading.active_count()
    with (tmp_path / "err").open("wb") as err:
        Console(io.BytesIO(), err, {}).say("now")

        assert (tmp_path / "err").read_bytes() == b"[launcher] now\n"
    assert threading.active_count() <= threads


def test_a_stopped_terminal_shows_the_progress_of_now_when_it_goes_on() -> None:
    leader, follower = os.openpty()
    with os.fdopen(follower, "wb", 0) as terminal, os.fdopen(leader, "rb", 0) as screen:
        console = Console(terminal, terminal, {"NO_COLOR": "1"})
        console.line(BOB, b"x" * 30_000)  # more than it takes while nothing reads it
        for step in range(200):
            console.draw([f"{step}/200"], None)
        console.say("the last")
        thread, read = in_background(screen)
        console.close(keeps_results=True)
        terminal.close()
        thread.join(LATE_S)

    shown = bytes(read).replace(b"\r\n", b"\n").removeprefix(b"[worker 1] " + b"x" * 30_000)
    bottom = b"\r\x1b[2K"
    assert shown == b"\n" + bottom + b"199/200" + bottom + b"the last\n199/200"
