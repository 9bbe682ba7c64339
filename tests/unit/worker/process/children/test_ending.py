"""What ended a process, as it has written it down: no output of a script looks like it."""

import json
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

from paramfleet_shared.settings.config import read_environment
from paramfleet_shared.system.processes.ending import VARIABLE
from paramfleet_shared.system.processes.keeping import tied
from paramfleet_worker.core.causes import Cause
from paramfleet_worker.process.children.ending import Ending, read_ending
from paramfleet_worker.process.probes.libraries import library_test


@dataclass
class Ended:
    """A script that has ended."""

    script: Path
    code: int
    said: str
    ending: Ending | None

    @property
    def cause(self) -> Cause:
        assert self.ending is not None
        return self.ending.cause(library_test())

    def line(self, number: int, name: str = "<module>") -> str:
        return f"{self.script}:{number}, in {name}"


def ended(folder: Path, script: str, *, begin: str = "import paramfleet\n") -> Ended:
    path = folder / "train.py"
    path.write_text(begin + textwrap.dedent(script).lstrip("\n"))
    endings = folder / "endings"
    endings.mkdir()
    process = subprocess.Popen(
        tied([sys.executable, str(path)]),
        env={**read_environment(), VARIABLE: str(endings)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    _, said = process.communicate()
    assert [each.name for each in endings.iterdir()] in ([], [str(process.pid)])
    return Ended(path, process.returncode, said, read_ending(endings, process.pid))


def test_an_exception_has_its_place(tmp_path: Path) -> None:
    one = ended(tmp_path, "def read():\n    raise ValueError('no rows')\nread()\n")

    assert one.code == 1
    assert one.cause == Cause(
        "ValueError: no rows", one.line(3, "read"), "raise ValueError('no rows')"
    )
    assert one.said.endswith("ValueError: no rows\n")


IMITATES = r'''
raise ValueError("""no rows; the reader said:
Traceback (most recent call last):
  File "reader.py", line 1, in <module>
OSError: gone""")
'''

LOGS = """
import logging
try:
    1 / 0
except ZeroDivisionError:
    logging.exception("a step failed")
raise ValueError("no rows; the reader said:")
"""

IN_A_THREAD = """
import atexit, threading
def fail():
    raise OSError("gone")
def end():
    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
atexit.register(end)
raise ValueError("no rows; the reader said:")
"""

IGNORED = """
class Reader:
    def __del__(self):
        raise OSError("gone")
reader = Reader()
raise ValueError("no rows; the reader said:")
"""

SHOWN = """
import sys
try:
    1 / 0
except ZeroDivisionError:
    sys.excepthook(*sys.exc_info())
raise ValueError("no rows; the reader said:")
"""


@pytest.mark.parametrize("script", [IMITATES, LOGS, IN_A_THREAD, IGNORED, SHOWN])
def test_no_other_traceback_is_taken_for_it(tmp_path: Path, script: str) -> None:
    one = ended(tmp_path, script)

    number = one.script.read_text()[: -len(script.rpartition("raise ValueError")[2])].count(
        "\n"
    )
    assert one.cause.error == "ValueError: no rows; the reader said:"
    assert one.cause.place == one.line(number + 1)


THREAD_FAILS = """
import threading
def fail():
    raise OSError("gone")
thread = threading.Thread(target=fail)
thread.start()
thread.join()
"""


@pytest.mark.parametrize(
    "before", [LOGS.rpartition("raise")[0], SHOWN.rpartition("raise")[0], THREAD_FAILS]
)
def test_of_who_ends_without_an_exception_no_traceback_is_believed(
    tmp_path: Path, before: str
) -> None:
    one = ended(tmp_path, f"{before}\nimport os\nos._exit(1)\n")

    assert one.code == 1
    assert "Traceback" in one.said
    assert one.ending == Ending()


def test_the_message_of_an_exit_has_the_place_of_its_call(tmp_path: Path) -> None:
    script = """
        import sys
        def read(path):
            if path:
                sys.exit(f"no data in {path}\\nset --data")
        read("/x")
        """

    one = ended(tmp_path, script)

    assert one.code == 1
    assert one.cause == Cause(
        "no data in /x", one.line(5, "read"), 'sys.exit(f"no data in {path}\\nset --data")'
    )
    assert one.ending is not None
    assert all(one.ending.has_line(line) for line in one.said.splitlines())
    assert not one.ending.has_line("step 1")


def test_an_exit_that_a_library_makes_is_placed_where_the_script_calls_it(
    tmp_path: Path,
) -> None:
    script = """
        import argparse
        argparse.ArgumentParser().parse_args(["--worker_num", "2"])
        """

    one = ended(tmp_path, script)

    assert (one.code, one.cause.error, one.cause.place) == (2, "", one.line(3))
    assert one.ending is not None
    assert (one.ending.kind, one.ending.code) == ("exit", 2)


def test_the_last_exit_counts(tmp_path: Path) -> None:
    script = """
        import sys
        try:
            sys.exit("not this one")
        except SystemExit:
            pass
        raise ValueError("no rows")
        """

    assert ended(tmp_path, script).cause.error == "ValueError: no rows"


@pytest.mark.parametrize(
    ("hook", "code"), [("print(error)", 1), ("sys.exit(3)", 3), ("sys.exit('it failed')", 1)]
)
def test_a_hook_of_the_scripts_own_takes_nothing_away(
    tmp_path: Path, hook: str, code: int
) -> None:
    script = f"""
        import sys
        def hook(kind, error, trace):
            {hook}
        sys.excepthook = hook
        raise ValueError("no rows")
        """

    one = ended(tmp_path, script)

    assert (one.code, one.cause.error, one.cause.place) == (
        code, "ValueError: no rows", one.line(6),
    )  # fmt: skip


def test_what_a_process_starts_writes_nothing(tmp_path: Path) -> None:
    script = """
        import os, subprocess, sys
        code = "import paramfleet; raise OSError('of another process')"
        subprocess.run([sys.executable, "-c", code])
        if os.fork() == 0:
            raise OSError("of a fork")
        os.wait()
        raise ValueError("no rows")
        """

    assert ended(tmp_path, script).cause.error == "ValueError: no rows"


def test_an_error_whose_text_fails_is_named(tmp_path: Path) -> None:
    script = """
        class Odd(Exception):
            def __str__(self):
                raise OSError
        raise Odd
        """

    assert ended(tmp_path, script).cause.error == "Odd: (its text can't be made)"


def test_an_error_of_the_syntax_of_a_module_has_its_place(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("x = 1\n1 +\n")

    one = ended(tmp_path, "import model\n")

    assert one.cause == Cause(
        "SyntaxError: invalid syntax (model.py, line 2)", f"{tmp_path}/model.py:2", "1 +"
    )


def test_who_never_imports_paramfleet_writes_nothing(tmp_path: Path) -> None:
    assert ended(tmp_path, "raise ValueError\n", begin="").ending is None


@pytest.mark.parametrize("data", [b"{}", b"[", b'{"kind": 1}', b"\xff"])
def test_a_file_that_cant_be_read_says_nothing(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "7").write_bytes(data)

    assert read_ending(tmp_path, 7) is None


@pytest.mark.parametrize("name", ["fifo", "/dev/zero", "/dev/stdin", "a\0b", "x" * (4 << 20)])
def test_a_source_that_is_no_file_is_not_read(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "fifo")
    file = str(tmp_path / name) if name == "fifo" else name
    script = f"""
        code = compile("import sys; sys.exit('no data')", "f", "exec")
        exec(code.replace(co_filename={file!r}))
        """

    one = ended(tmp_path, script)

    assert (one.code, one.cause.error, one.cause.source) == (1, "no data", "")
    assert one.cause.place.endswith(":1, in <module>")


def test_a_long_line_of_the_source_is_cut(tmp_path: Path) -> None:
    line = f"raise ValueError('no rows')  # {'x' * 10_000}"

    source = ended(tmp_path, line + "\n").cause.source

    assert source == line[: len(source)]
    assert 100 < len(source) < 1000


def test_a_source_that_only_the_process_knows_is_written_down(tmp_path: Path) -> None:
    script = """
        import linecache
        linecache.cache["cell.py"] = (9, None, ["x = 1\\n", "1 / 0\\n"], "cell.py")
        exec(compile("x = 1\\n1 / 0\\n", "cell.py", "exec"))
        """

    cause = ended(tmp_path, script).cause

    assert (cause.place, cause.source) == ("cell.py:2, in <module>", "1 / 0")


def test_the_reader_opens_no_file_that_the_record_names(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    frames = [[str(tmp_path / "fifo"), 1, "read", "rows()"]]
    fact = {"kind": "error", "text": "ValueError: no", "code": 1, "frames": frames}
    (tmp_path / "7").write_text(json.dumps(fact))

    ending = read_ending(tmp_path, 7)

    assert ending is not None
    assert ending.cause(library_test()) == Cause(
        "ValueError: no", f"{tmp_path}/fifo:1, in read", "rows()"
    )


def test_a_record_that_is_no_file_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "7")
    (tmp_path / "8").symlink_to("/dev/zero")

    assert read_ending(tmp_path, 7) is None
    assert read_ending(tmp_path, 8) is None


def test_frames_of_any_depth_fit_into_the_record(tmp_path: Path) -> None:
    script = """
        import sys
        sys.setrecursionlimit(3000)
        exec(f"def {'f' * 3000}(n):\\n    return {'f' * 3000}(n + 1)")
        eval("f" * 3000)(0)
        """

    one = ended(tmp_path, script)

    assert one.ending is not None
    assert one.cause.error.startswith("RecursionError")


@pytest.mark.parametrize("status", ["10**30", "-(10**30)", "2**63", "2**40 + 7", "-1", "True"])
def test_the_code_of_an_exit_is_what_the_interpreter_makes_of_it(
    tmp_path: Path, status: str
) -> None:
    one = ended(tmp_path, f"import sys\nsys.exit({status})\n")

    assert one.ending is not None
    assert (one.ending.kind, one.ending.code) == ("exit", one.code)
