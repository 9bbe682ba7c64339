"""What a launcher shows, and where."""

import io
import itertools
import os
import termios
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paramfleet_worker.core.events import ProcessName
from paramfleet_worker.process.console import MAX_LINE_BYTES, Console, LineSplitter

BOB = ProcessName("worker", 1)


class Terminal(io.BytesIO):
    def isatty(self) -> bool:
        return True


class Closed(io.BytesIO):
    def write(self, data: object) -> int:
        raise BrokenPipeError


def test_results_go_to_stdout_as_they_are_and_lines_to_stderr_with_a_label() -> None:
    out, err = io.BytesIO(), io.BytesIO()
    console = Console(out, err, {})

    console.result(b'{"auc": 0.7')
    console.line(BOB, b"step 1")
    console.result(b"}\n")
    console.say("two\nlines")

    assert out.getvalue() == b'{"auc": 0.7}\n'
    assert err.getvalue() == b"[worker 1] step 1\n[launcher] two\n[launcher] lines\n"


def test_no_line_comes_into_a_line_of_results_where_both_go_to_one_file(tmp_path: Path) -> None:
    with (tmp_path / "both").open("wb") as out, (tmp_path / "both").open("ab") as err:
        console = Console(out, err, {})

        for piece in (b"step 1", b"\n", b"step 2\nstep", b" 3", b"\nthe last"):
            console.result(piece)
            console.line(BOB, b"mine")
            out.seek(0, os.SEEK_END)
        console.result(b"x" * MAX_LINE_BYTES)
        console.result(b"not ended")
        console.end_result()
        console.end_result()

    lines = (tmp_path / "both").read_bytes().replace(b"[worker 1] mine\n", b"")
    long = b"the last" + b"x" * MAX_LINE_BYTES
    assert lines == b"step 1\nstep 2\nstep 3\n" + long + b"not ended"
    assert (tmp_path / "both").read_bytes().startswith(b"[worker 1] mine\nstep 1\n")


def test_of_a_progress_bar_the_last_state_is_shown() -> None:
    err = io.BytesIO()

    Console(io.BytesIO(), err, {}).line(BOB, b"10%\r50%\r100%\r")

    assert err.getvalue() == b"[worker 1] 100%\n"


def test_redis_is_not_shown() -> None:
    err = io.BytesIO()

    Console(io.BytesIO(), err, {}).line(ProcessName("redis", 0), b"ready")

    assert err.getvalue() == b""


@pytest.mark.parametrize(
    ("environment", "shown"),
    [({}, b"\x1b[36m[worker 1]\x1b[0m hi\n"), ({"NO_COLOR": "1"}, b"[worker 1] hi\n")],
)
def test_labels_are_coloured_on_a_terminal_only(
    environment: dict[str, str], shown: bytes
) -> None:
    err = Terminal()

    Console(io.BytesIO(), err, environment).line(BOB, b"hi")

    assert err.getvalue() == shown


def test_a_reader_that_went_away_stops_the_showing_and_nothing_else() -> None:
    out, err = Closed(), io.BytesIO()
    console = Console(out, err, {})

    console.result(b"lost")
    console.result(b"lost too")
    console.line(BOB, b"still here")

    assert err.getvalue() == b"[worker 1] still here\n"
    assert console.terminal_environment() == {}


@given(
    text=st.binary(max_size=200).map(lambda b: b.replace(b"\0", b"\n")),
    cuts=st.lists(st.integers(0, 200), max_size=5),
)
def test_lines_do_not_depend_on_how_the_stream_is_cut(text: bytes, cuts: list[int]) -> None:
    lines: list[bytes] = []
    splitter = LineSplitter(lines.append)
    edges = [0, *sorted(cuts), len(text)]

    for start, stop in itertools.pairwise(edges):
        splitter.feed(text[start:stop] if start < stop else b"")
    splitter.end()

    assert b"\n".join(lines) == text.removesuffix(b"\n")


def test_a_line_that_never_ends_is_broken() -> None:
    lines: list[bytes] = []
    splitter = LineSplitter(lines.append)

    splitter.feed(b"x" * (2 * MAX_LINE_BYTES + 1))
    splitter.end()

    assert [len(line) for line in lines] == [MAX_LINE_BYTES, MAX_LINE_BYTES, 1]


def test_worker_0_is_told_of_the_terminal_that_will_show_its_output() -> None:
    leader, follower = os.openpty()
    termios.tcsetwinsize(follower, (40, 132))

    with os.fdopen(follower, "wb") as terminal, os.fdopen(leader, "rb"):
        found = Console(terminal, io.BytesIO(), {}).terminal_environment()

    assert found == {"COLUMNS": "132", "LINES": "40", "FORCE_COLOR": "1"}
    assert Console(io.BytesIO(), io.BytesIO(), {}).terminal_environment() == {}


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (b"\x1b]0;owned\x07", rb"\x1b]0;owned\x07"),
        (b"\x1b[31mred\x1b[0m", b"red"),
        (b"\x1b[2Jgone\x08", rb"\x1b[2Jgone\x08"),
        ("a\x9b31mb\u202ec".encode(), rb"a\x9b31mb\u202ec"),
        (b"not utf-8: \x9b\xff", rb"not utf-8: \x9b\xff"),
        ("tab\tand größe 🎉".encode(), "tab\tand größe 🎉".encode()),
    ],
)
def test_control_characters_reach_no_terminal(line: bytes, shown: bytes) -> None:
    err = io.BytesIO()
    console = Console(io.BytesIO(), err, {})

    console.line(BOB, line)
    console.say(line.decode(errors="backslashreplace"))

    assert err.getvalue() == b"[worker 1] " + shown + b"\n[launcher] " + shown + b"\n"


def test_what_worker_0_writes_to_its_output_stays_its_own() -> None:
    out = io.BytesIO()
    Console(out, io.BytesIO(), {}).result(b"\x1b[31mraw\x07")
    assert out.getvalue() == b"\x1b[31mraw\x07"
