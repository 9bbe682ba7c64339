"""The error that ended a script, read from its log."""

import subprocess
import sys

import pytest

from paramfleet_shared.system.processes.keeping import tied
from paramfleet_worker.core.causes import MAX_REASON, as_reason, cause_in

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

    found = cause_in(log.splitlines())

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

    cause = cause_in(log.splitlines())

    assert cause.startswith("ValueError: xxx")
    assert len(cause) < MAX_REASON + 100


def test_the_ranks_of_torch_are_no_part_of_the_cause() -> None:
    log = ["Traceback (most recent call last):", '  File "a.py", line 1', "OSError: gone"]

    assert cause_in(f"[rank12]: {line}" for line in log) == "OSError: gone"


def test_a_reason_is_one_line() -> None:
    assert as_reason("PipeFailedError: it ended; it said:\nno such file\n") == (
        "PipeFailedError: it ended; it said:"
    )
