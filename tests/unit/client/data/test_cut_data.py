"""Data that ends too early is an error by name, wherever it was cut; never fewer examples."""

import gzip
import logging
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from paramfleet.data import InMemoryDataset, QueueDataset, Slot
from paramfleet.data.parsing.bad_lines import BadLineError
from paramfleet.data.reading.files import DamagedFileError
from paramfleet.data.reading.pipe import PipeCutOffError, PipeFailedError
from paramfleet.data.reading.shell import (
    NoPipefailError,
    is_pipeline,
    shell_command,
    with_running_interpreter,
)
from paramfleet.runner.models.lines import LineError, read_lines

SLOTS = [Slot("label", dense=True), Slot("ids")]
LINES = 200

Read = Callable[..., list[int]]


def line_of(number: int) -> str:
    return f"1 {number} 1 {123456 + number}"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "part-0"
    path.write_text("".join(line_of(number) + "\n" for number in range(LINES)))
    return path


def labels(dataset: QueueDataset | InMemoryDataset) -> list[int]:
    return [int(label) for batch in dataset for label in batch["label"].values]


def streamed(file: Path, **settings: object) -> list[int]:
    dataset = QueueDataset()
    dataset.init(batch_size=8, use_var=SLOTS, **settings)
    dataset.set_filelist([str(file)])
    return labels(dataset)


def loaded(file: Path, **settings: object) -> list[int]:
    dataset = InMemoryDataset()
    dataset.init(batch_size=8, use_var=SLOTS, **settings)
    dataset.set_filelist([str(file)])
    dataset.preload_into_memory()
    dataset.wait_preload_done()
    return labels(dataset)


both = pytest.mark.parametrize("read", [streamed, loaded])


@both
@pytest.mark.parametrize("on_bad_line", ["raise", "skip"])
def test_a_command_that_stops_inside_a_number_and_succeeds_is_named(
    read: Read, file: Path, on_bad_line: str
) -> None:
    kept = len("".join(line_of(number) + "\n" for number in range(51))) + 8

    with pytest.raises(PipeCutOffError) as caught:
        read(file, pipe_command=f"head -c {kept}", on_bad_line=on_bad_line)

    error = caught.value
    assert (error.file, error.line, error.tail) == (str(file), 52, b"1 51 1 1")


def test_a_command_whose_last_line_has_no_newline_can_add_it(file: Path) -> None:
    file.write_text(file.read_text().rstrip("\n"))

    with pytest.raises(PipeCutOffError, match=rf"line {LINES}.*sed '\$a"):
        streamed(file, pipe_command="sed s/x/y/")
    assert streamed(file, pipe_command="sed s/x/y/ | sed '$a\\'") == list(range(LINES))


@both
@pytest.mark.parametrize(
    ("command", "status"),
    [
        ("(head -51; exit 7) | cat", 7),
        ("(head -51; kill -9 $BASHPID) | cat | cat", 137),
        ("head -c 500 | gzip -dc | cat", 1),
        ("head -51; exit 7", 7),
        ("head -51; kill -9 $$", -signal.SIGKILL),
    ],
)
def test_a_program_of_a_pipeline_that_failed_is_named(
    read: Read, file: Path, command: str, status: int
) -> None:
    with pytest.raises(PipeFailedError) as caught:
        read(file, pipe_command=command)

    assert caught.value.status == status


def test_a_program_that_a_later_one_stops_on_purpose_has_not_failed(tmp_path: Path) -> None:
    file = tmp_path / "part-0"
    file.write_text("".join(line_of(number) + "\n" for number in range(100_000)))

    assert streamed(file, pipe_command="cat | head -51") == list(range(51))


READER = """\
import paramfleet as fleet


class Reader(fleet.MultiSlotDataGenerator):
    def generate_sample(self, line):
        def samples():
            label, ident = line.split()[1::2]
            yield [("label", [int(label)]), ("ids", [int(ident)])]
            if int(label) == {last}:
                raise ValueError("no such word")

        return samples


Reader().run_from_stdin()
"""


def test_a_generator_that_head_stops_has_not_failed_and_one_that_raises_has(
    tmp_path: Path,
) -> None:
    file, script = tmp_path / "part-0", tmp_path / "reader.py"
    file.write_text("".join(line_of(number) + "\n" for number in range(50_000)))
    script.write_text(READER.replace("{last}", "-1"))
    command = f"{sys.executable} {script}"

    assert streamed(file, pipe_command=f"{command} | head -51") == list(range(51))
    script.write_text(READER.replace("{last}", "70"))
    with pytest.raises(PipeFailedError, match="no such word"):
        streamed(file, pipe_command=f"{command} | cat")


def test_a_command_that_writes_nothing_is_told_with_its_words(
    file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    empty = tmp_path / "empty"
    empty.touch()

    assert streamed(file, pipe_command="echo usage: reader FILE >&2") == []

    (record,) = caplog.records
    assert record.message == "worker.pipe_wrote_nothing"
    assert record.__dict__["words"] == "usage: reader FILE"
    assert record.__dict__["file"] == str(file)
    caplog.clear()
    assert streamed(empty, pipe_command="grep 1 || true") == []
    assert not caplog.records


def test_a_file_whose_last_line_is_cut_is_an_error_or_told(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = file.read_text()
    file.write_text(text[:-3])

    with caplog.at_level(logging.WARNING):
        assert streamed(file) == list(range(LINES)), "it may be whole: many have no newline"

    (record,) = caplog.records
    assert record.message == "worker.no_final_newline"
    assert record.__dict__["line"] == LINES
    file.write_text(text[:-8])
    with pytest.raises(BadLineError, match=f"line {LINES}"):
        streamed(file)


@both
@pytest.mark.parametrize("command", ["cat", "cat | cat"])
def test_a_packed_file_without_a_byte_is_damaged(
    read: Read, tmp_path: Path, command: str
) -> None:
    file = tmp_path / "part-0.gz"
    file.touch()

    with pytest.raises(DamagedFileError, match="no bytes"):
        read(file, pipe_command=command)
    file.write_bytes(gzip.compress(b""))
    assert read(file, pipe_command=command) == []


def test_lines_of_a_packed_file_without_a_byte_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "part-0.gz").touch()

    with pytest.raises(LineError, match="no bytes"):
        list(read_lines(tmp_path / "part-0.gz"))


@pytest.mark.parametrize(
    ("command", "is_one"),
    [
        ("reader | cat", True),
        ("reader 2>&1|cat", True),
        ("reader |& cat", True),
        ("reader || true", False),
        ("awk -F '|' '{print $1}'", False),
        ("grep 'a", False),
    ],
)
def test_a_pipeline_is_known_by_its_operator(command: str, is_one: bool) -> None:
    assert is_pipeline(command) == is_one


def test_a_shell_that_cannot_see_a_failed_program_runs_no_pipeline(tmp_path: Path) -> None:
    assert shell_command("a | b")[-4:] == ["-o", "pipefail", "-c", "a | b"]
    no_bash = str(tmp_path)
    if shell_command("a", path=no_bash) != ["/bin/sh", "-c", "a"]:
        pytest.skip("/bin/sh of this machine has pipefail")
    with pytest.raises(NoPipefailError, match="install bash"):
        shell_command("a | b", path=no_bash)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("python3.99 reader.py", "HERE reader.py"),
        ("cd /x && export P=1 && python3.99 reader.py a.yaml", None),
        (
            "A=1 /opt/none/bin/python3 r.py | env python2.99 f.py",
            "A=1 HERE r.py | env HERE f.py",
        ),
        ("cat | python3.99", "cat | HERE"),
        ("python r.py", "python r.py"),
        ("cat python3.99 | sed s/python3.99/x/", "cat python3.99 | sed s/python3.99/x/"),
        ("python3.99x r.py", "python3.99x r.py"),
    ],
)
def test_an_interpreter_that_is_not_there_is_the_running_one(
    command: str, expected: str | None
) -> None:
    expected = command.replace("python3.99", "HERE") if expected is None else expected

    assert with_running_interpreter(command) == expected.replace("HERE", sys.executable)


def test_an_interpreter_that_does_not_start_is_replaced_with_a_notice_once(
    file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shim, script = tmp_path / "python3.7", tmp_path / "reader.py"
    shim.write_text("#!/bin/sh\necho version not installed >&2; exit 127\n")
    shim.chmod(0o755)
    script.write_text("import sys\nfor line in sys.stdin: print(line, end='')\n")

    for _ in range(2):
        assert streamed(file, pipe_command=f"{shim} {script}") == list(range(LINES))

    (record,) = caplog.records
    assert record.message == "worker.interpreter_replaced"
    assert record.__dict__["interpreter"] == str(shim)


SWAPPED = """\
import paramfleet as fleet


class Reader(fleet.{kind}):
    def generate_sample(self, line):
        def samples():
            label, ident = line.split()[1::2]
            yield [({names[0]!r}, [{cast}(ident)]), ({names[1]!r}, [{cast}(label)])]

        return samples


Reader().run_from_stdin()
"""


@pytest.mark.parametrize(
    ("kind", "cast"),
    [("MultiSlotDataGenerator", "int"), ("MultiSlotStringDataGenerator", "str")],
)
def test_a_generator_whose_slots_have_another_order_is_refused(
    file: Path, tmp_path: Path, kind: str, cast: str
) -> None:
    script = tmp_path / "reader.py"
    command = f"{sys.executable} {script}"

    script.write_text(SWAPPED.format(kind=kind, cast=cast, names=("ids", "label")))
    with pytest.raises(PipeFailedError, match="slot 0 is ids, the dataset's is label"):
        streamed(file, pipe_command=command)
    script.write_text(SWAPPED.format(kind=kind, cast=cast, names=("its", "own")))
    assert streamed(file, pipe_command=command)[:2] == [123456, 123457]
