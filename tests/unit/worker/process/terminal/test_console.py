"""What a launcher shows, and where."""

import errno
import io
import itertools
import os
import re
import termios
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paramfleet_worker.core.events import ProcessName
from paramfleet_worker.core.showing.held import (
    ENDING_HELD_S,
    HELD_S,
    MAX_HELD_BYTES,
    MAX_HELD_LINES,
)
from paramfleet_worker.core.showing.lines import Amount
from paramfleet_worker.process.log_file import LogFile
from paramfleet_worker.process.terminal.console import MAX_LINE_BYTES, Console, LineSplitter

BOB = ProcessName("worker", 1)


class Terminal(io.BytesIO):
    def isatty(self) -> bool:
        return True


class Closed(io.BytesIO):
    """No process reads it, or its disk is full."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def write(self, data: object) -> int:
        raise OSError(self._number, os.strerror(self._number))


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


@pytest.mark.parametrize("number", [errno.EPIPE, errno.ENOSPC, errno.EIO])
def test_an_output_that_takes_no_more_stops_the_showing_and_nothing_else(number: int) -> None:
    out, err = Closed(number), io.BytesIO()
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


class Screen(Terminal):
    """A terminal that knows what stands on it: lines, carriage returns and erased lines."""

    @property
    def lines(self) -> list[str]:
        rows = [""]
        column = 0
        text = re.sub(r"\x1b\[[0-9;]*m", "", self.getvalue().decode())
        for piece in re.findall(r"\x1b\[2K|\r|\n|[^\x1b\r\n]+", text):
            if piece == "\x1b[2K":
                rows[-1] = ""
            elif piece == "\r":
                column = 0
            elif piece == "\n":
                rows.append("")
                column = 0
            else:
                rows[-1] = (
                    rows[-1][:column].ljust(column) + piece + rows[-1][column + len(piece) :]
                )
                column += len(piece)
        return rows


LOGGED = b"20:37:36.902 INFO pserver/0 job.joined job=a late=False"
WARNED = b"20:37:36.902 WARNING pserver/0 job.waits for=1"


@pytest.mark.parametrize(
    ("amount", "shown"),
    [
        ("quiet", ["[worker 1] print", "[worker 1] " + WARNED.decode(), "says"]),
        ("usual", ["[worker 1] print", "[worker 1] " + WARNED.decode(), "says", "tells"]),
        (
            "verbose",
            [
                "[worker 1] print", "[worker 1] " + LOGGED.decode(),
                "[worker 1] " + WARNED.decode(), "says", "tells", "notes",
            ],
        ),
    ],
)  # fmt: skip
def test_how_much_is_shown_is_chosen(amount: Amount, shown: list[str], tmp_path: Path) -> None:
    err = io.BytesIO()
    console = Console(io.BytesIO(), err, {}, amount=amount)
    log = LogFile(tmp_path / "launcherlog.0", console.say)
    console.keep(log)

    for line in (b"print", LOGGED, WARNED):
        console.line(BOB, line)
    console.say("says")
    console.tell("tells")
    console.note("notes")
    console.record("is for the log")
    log.close()

    said = err.getvalue().decode().replace("[launcher] ", "").splitlines()
    assert said == shown
    kept = [
        re.fullmatch(r"\d\d:\d\d:\d\d\.\d{3} launcher (.*)", line)
        for line in (tmp_path / "launcherlog.0").read_text().splitlines()
    ]
    assert [each and each[1] for each in kept] == ["says", "tells", "notes", "is for the log"]


def test_a_code_that_opens_something_is_not_kept(tmp_path: Path) -> None:
    console = Console(io.BytesIO(), Terminal(), {})
    log = LogFile(tmp_path / "launcherlog.0", console.say)
    console.keep(log)

    console.tell("the page: /#code=secret", kept="the page: /")
    log.close()

    assert (tmp_path / "launcherlog.0").read_text().endswith(" launcher the page: /\n")


@pytest.mark.parametrize(
    ("environment", "red"),
    [({}, b"\x1b[1;31mit failed\x1b[0m\n"), ({"NO_COLOR": "1"}, b"it failed\n")],
)
def test_on_a_terminal_the_launchers_lines_have_no_label_and_failures_are_red(
    environment: dict[str, str], red: bytes
) -> None:
    err = Terminal()
    console = Console(io.BytesIO(), err, environment)

    console.say("it begins")
    console.fail("it failed")

    assert err.getvalue() == b"it begins\n" + red


def test_warnings_and_errors_of_processes_are_coloured_on_a_terminal() -> None:
    err = Terminal()
    console = Console(io.BytesIO(), err, {})

    console.line(BOB, WARNED)
    console.line(BOB, WARNED.replace(b"WARNING", b"ERROR"))

    yellow, red = err.getvalue().splitlines()
    assert yellow == b"\x1b[36m[worker 1]\x1b[0m \x1b[33m" + WARNED + b"\x1b[0m"
    assert b"\x1b[1;31m20:37" in red


def test_the_line_at_the_bottom_stays_below_all_others() -> None:
    screen = Screen()
    console = Console(screen, screen, {})

    console.draw(["1/9"], 0.1)
    console.line(BOB, b"one")
    console.result(b"two\n")
    console.say("three")
    console.draw(["2/9", "0:01 left"], 0.2)

    assert screen.lines[:-1] == ["[worker 1] one", "two", "three"]
    assert screen.lines[-1].endswith("2/9  0:01 left")

    console.end_drawing()
    console.say("end")
    assert screen.lines == ["[worker 1] one", "two", "three", "end", ""]


def test_no_line_comes_into_one_that_worker_0_has_begun() -> None:
    screen = Screen()
    console = Console(screen, screen, {})

    console.draw(["1/9"], None)
    console.result(b"step 100")
    console.line(BOB, b"mine")
    assert screen.lines == ["step 100"]
    console.result(b" loss 0.5\n")
    assert screen.lines == ["step 100 loss 0.5", "[worker 1] mine", "1/9"]

    console.result(b"a line without an end")
    console.line(BOB, b"waits")
    console.draw(["2/9"], None)  # it has waited long enough
    assert screen.lines[2:] == ["a line without an end", "[worker 1] waits", "2/9"]


def test_a_bar_that_worker_0_draws_itself_has_the_bottom_for_itself() -> None:
    screen = Screen()
    console = Console(screen, screen, {})
    console.draw(["1/9"], None)

    for percent in (b"10%", b"20%", b"30%"):
        console.result(b"\r" + percent)
        console.draw(["2/9"], None)
    assert screen.lines == ["30%"]

    console.line(BOB, b"mine")
    console.draw(["3/9"], None)
    console.result(b"\r40%")
    assert screen.lines == ["[worker 1] mine", "40%"]

    console.result(b"\r100%\n")
    assert screen.lines == ["[worker 1] mine", "100%", "3/9"]


def test_the_last_line_of_worker_0_may_have_no_end() -> None:
    screen = Screen()
    console = Console(screen, screen, {})
    console.draw(["1/9"], None)

    console.result(b"the result")
    console.end_result()
    console.end_drawing()
    console.say("finished")

    assert screen.lines == ["the result", "finished", ""]


@pytest.mark.parametrize(
    ("stream", "environment", "amount"),
    [
        (io.BytesIO(), {}, "usual"),
        (Terminal(), {"TERM": "dumb"}, "usual"),
        (Terminal(), {}, "quiet"),
    ],
)
def test_nothing_is_drawn_where_it_could_not_be_erased_or_is_not_wanted(
    stream: io.BytesIO, environment: dict[str, str], amount: Amount
) -> None:
    console = Console(io.BytesIO(), stream, environment, amount=amount)

    console.draw(["1/9"], 0.5)
    console.end_drawing()

    assert not console.draws
    assert stream.getvalue() == b""


def test_a_line_is_as_wide_as_its_terminal() -> None:
    leader, follower = os.openpty()
    termios.tcsetwinsize(follower, (40, 20))

    with os.fdopen(follower, "wb") as terminal, os.fdopen(leader, "rb") as screen:
        Console(io.BytesIO(), terminal, {"NO_COLOR": "1"}).draw(["310/500", "0:12 left"], None)
        shown = os.read(screen.fileno(), 1000)

    assert shown == b"310/500  0:12 left"


TRACEBACK = (
    b"Traceback (most recent call last):",
    b'  File "train.py", line 1, in <module>',
    b"    raise ValueError",
    b"ValueError",
)


def console_with_a_traceback() -> tuple[Console, io.BytesIO]:
    err = io.BytesIO()
    console = Console(io.BytesIO(), err, {})
    for line in (b"step 1", *TRACEBACK, b"bye"):
        console.line(BOB, line)
    assert err.getvalue() == b"[worker 1] step 1\n"
    return console, err


def test_a_traceback_of_who_is_started_again_is_shown_in_its_order() -> None:
    console, err = console_with_a_traceback()

    console.let_go(BOB)

    lines = err.getvalue().splitlines()
    assert lines == [b"[worker 1] " + line for line in (b"step 1", *TRACEBACK, b"bye")]


@pytest.mark.parametrize("size", [0, 1 << 14])
def test_what_is_held_back_of_a_process_is_bounded(size: int) -> None:
    err = io.BytesIO()
    console = Console(io.BytesIO(), err, {})
    lines = [TRACEBACK[0], *(b"    %d%s" % (each, b"." * size) for each in range(5000))]

    for line in lines:
        console.line(BOB, line)
    shown = err.getvalue()

    held = b"".join(b"[worker 1] %s\n" % line for line in lines).removeprefix(shown)
    assert held.count(b"\n") <= MAX_HELD_LINES
    assert len(held) <= MAX_HELD_BYTES + MAX_HELD_LINES * len("[worker 1] \n")
    console.let_all_go()
    assert err.getvalue() == shown + held


def test_another_line_that_says_what_ended_its_process_waits_as_a_traceback_does() -> None:
    err = io.BytesIO()
    console = Console(io.BytesIO(), err, {})

    console.line(BOB, b"no data", is_ending=True)
    console.line(ProcessName("worker", 0), b"step 1")
    assert err.getvalue() == b"[worker 0] step 1\n"
    console.leave_tracebacks()
    console.let_all_go()

    assert err.getvalue() == b"[worker 0] step 1\n"


def test_a_traceback_is_left_out_where_the_job_ends_but_no_other_line() -> None:
    console, err = console_with_a_traceback()

    console.leave_tracebacks()
    for line in (*TRACEBACK, b"again"):
        console.line(BOB, line)
    console.let_all_go()

    assert err.getvalue().splitlines() == [
        b"[worker 1] step 1",
        b"[worker 1] bye",
        b"[worker 1] again",
    ]


def test_a_traceback_of_who_goes_on_is_shown_after_a_while() -> None:
    console, err = console_with_a_traceback()

    console.let_old_go(10.0)
    console.let_old_go(10.0 + HELD_S - 0.1)
    assert b"ValueError" not in err.getvalue()
    console.let_old_go(10.0 + HELD_S)

    assert err.getvalue().endswith(b"[worker 1] ValueError\n[worker 1] bye\n")


def test_a_process_that_says_what_ends_it_has_more_time_for_that() -> None:
    err = io.BytesIO()
    console = Console(io.BytesIO(), err, {})
    for line in TRACEBACK:
        console.line(BOB, line, is_ending=line == b"ValueError")

    console.let_old_go(10.0)
    console.let_old_go(10.0 + ENDING_HELD_S - 0.1)
    assert b"ValueError" not in err.getvalue()
    console.let_old_go(10.0 + ENDING_HELD_S)

    assert b"[worker 1] ValueError\n" in err.getvalue()


def test_all_is_shown_at_once_to_who_asks_for_all() -> None:
    err = io.BytesIO()
    console = Console(io.BytesIO(), err, {}, amount="verbose")

    for line in TRACEBACK:
        console.line(BOB, line)

    assert err.getvalue().splitlines() == [b"[worker 1] " + line for line in TRACEBACK]


def test_an_event_that_repeats_what_the_launcher_says_is_for_the_log() -> None:
    err = io.BytesIO()
    console = Console(io.BytesIO(), err, {})

    console.line(BOB, b"10:00:00.000 WARNING coordinator coordinator.stopped why='SIGTERM'")
    console.line(BOB, b"10:00:00.000 ERROR worker/1 worker.job_failed reason='x'")

    assert err.getvalue() == b""
