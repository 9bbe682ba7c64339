"""The error that ended a script, read from its log."""

import subprocess
import sys
from collections.abc import Iterable

import pytest

from paramfleet_shared.system.processes.keeping import tied
from paramfleet_shared.values.texts import is_printable, printable, shortened
from paramfleet_worker.core.causes import (
    MAX_REASON,
    Cause,
    Tracebacks,
    as_reason,
    find_cause,
    is_same_reason,
)


def error_in(lines: Iterable[str]) -> str:
    return find_cause(lines, lambda _: False).error


RAISES = "raise ValueError('the loss is nan')"
CHAINED = "try:\n  1 / 0\nexcept ZeroDivisionError as e:\n  raise KeyError('ad') from e"
OWN = "from paramfleet_shared.errors import JobFailedError as E\n"
OWN += "raise E(role='worker', index=1, reason='dead')"


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        (RAISES, "ValueError: the loss is nan"),
        (CHAINED, "KeyError: 'ad'"),
        (OWN, "JobFailedError: the job failed: worker 1: dead"),
        ("raise ValueError('one\\n  two\\nthree')", "ValueError: one"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("import nothing_there", "ModuleNotFoundError: No module named 'nothing_there'"),
        ("1 +", "SyntaxError: invalid syntax"),
        (f"import atexit; atexit.register(print, 'bye')\n{RAISES}", "ValueError: the loss"),
        ("import sys; sys.exit('no data')", ""),
        ("print('well')", ""),
    ],
)
def test_the_last_traceback_names_the_cause(code: str, cause: str) -> None:
    log = subprocess.run(
        tied([sys.executable, "-c", code]),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    ).stdout

    found = error_in(log.splitlines())

    assert found.startswith(cause)
    assert bool(found) == bool(cause)


def test_an_error_that_was_logged_before_the_last_one_is_not_the_cause() -> None:
    log = f"""\
Traceback (most recent call last):
  File "a.py", line 1, in <module>
OSError: gone
step 5
Traceback (most recent call last):
  File "a.py", line 2, in <module>
  [Previous line repeated 3 more times]
ValueError: {"x" * 2000}
"""

    cause = error_in(log.splitlines())

    assert cause.startswith("ValueError: xxx")
    assert len(cause) < MAX_REASON + 100


THREAD = """\
import atexit, threading
def fail():
    try:
        1 / 0
    except ZeroDivisionError:
        raise OSError("gone")
def end():
    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
atexit.register(end)
"""

IGNORED = """\
class Reader:
    def __del__(self):
        raise OSError("gone")
reader = Reader()
"""


@pytest.mark.parametrize("before", [THREAD, IGNORED])
def test_what_only_a_thread_or_a_destructor_raised_is_not_the_cause(before: str) -> None:
    def said(code: str) -> list[str]:
        ended = subprocess.run(
            tied([sys.executable, "-c", code]), capture_output=True, text=True, check=False
        )
        return ended.stderr.splitlines()

    assert "OSError: gone" in said(before)
    assert error_in(said(before)) == ""
    assert error_in(said(before + RAISES)) == "ValueError: the loss is nan"
    assert error_in([*said(before), *said("1 +")]) == "SyntaxError: invalid syntax"


def test_the_ranks_of_torch_are_no_part_of_the_cause() -> None:
    log = ["Traceback (most recent call last):", '  File "a.py", line 1', "OSError: gone"]

    assert error_in(f"[rank12]: {line}" for line in log) == "OSError: gone"


def test_a_reason_is_one_line() -> None:
    assert as_reason("PipeFailedError: it ended; it said:\nno such file\n") == (
        "PipeFailedError: it ended; it said:"
    )


CALLS_A_LIBRARY = """\
Traceback (most recent call last):
  File "/home/ada/train.py", line 20, in <module>
    train(model)
    ~~~~~^^^^^^^
  File "/home/ada/train.py", line 10, in train
    loss = json.loads("{")
  File "/usr/lib/python3.12/json/__init__.py", line 346, in loads
    return _default_decoder.decode(s)
json.decoder.JSONDecodeError: Expecting property name
"""


def is_library(file: str) -> bool:
    return file.startswith("/usr/lib/")


def test_the_place_is_the_innermost_frame_of_the_users_own_code() -> None:
    cause = find_cause(CALLS_A_LIBRARY.splitlines(), is_library)

    assert cause == Cause(
        "JSONDecodeError: Expecting property name",
        "/home/ada/train.py:10, in train",
        'loss = json.loads("{")',
    )


def test_an_error_of_the_syntax_has_its_place() -> None:
    log = ['  File "train.py", line 3', "    1 +", "       ^", "SyntaxError: invalid syntax"]

    assert find_cause(log, is_library) == Cause(
        "SyntaxError: invalid syntax", "train.py:3", "1 +"
    )


def test_the_place_is_one_of_the_last_traceback() -> None:
    log = [*CALLS_A_LIBRARY.splitlines(), "", "During handling of ..., another occurred:", ""]
    log += [
        "Traceback (most recent call last):",
        '  File "/usr/lib/a.py", line 1, in f',
        "E: x",
    ]

    assert find_cause(log, is_library) == Cause("E: x")


@pytest.mark.parametrize("code", [RAISES, CHAINED, "1 +"])
def test_every_line_of_a_traceback_belongs_to_it_and_no_other(code: str) -> None:
    said = subprocess.run(
        tied([sys.executable, "-c", code]), capture_output=True, text=True, check=False
    ).stderr.splitlines()
    tracebacks = Tracebacks()

    assert not tracebacks.has("step 1")
    assert all(tracebacks.has(line) for line in said)
    assert not tracebacks.has("    step 2")


@pytest.mark.parametrize(
    "text",
    [
        "no rows",
        "two\nlines",
        "\n  the first line is empty",
        "bad \x1b]0;X\x07\x1b[2J \u202e \udc80 end\nTraceback (most recent call last):",
        "q\x00\r\nparamfleet: done\r",
        "z" * 100_000,
        "\x1b" * 3000,
        "",
    ],
)
def test_what_is_published_of_an_error_is_known_as_the_same(text: str) -> None:
    published = as_reason(printable(shortened(f"ValueError: {text}", 2000)))
    written = text.strip()[:10_000]
    found = as_reason(f"ValueError: {written}" if written else "ValueError")

    assert is_same_reason(found, published)
    assert not is_same_reason(found, as_reason("KeyError: 'ad'"))
    assert is_printable(found)
