"""Training ends with a line that names what is wrong with a file or a command."""

import gzip
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

from paramfleet.runner.__main__ import main

CONFIG = Path(__file__).parents[4] / "models" / "rank" / "dnn" / "config.yaml"
GOOD = "1 1 " + " ".join(f"1 {slot}" for slot in range(1, 27)) + " 13" + " 0.5" * 13
SLOTS = "click:1 " + " ".join(f"{slot}:{slot}" for slot in range(1, 27))
PIPED = {"runner.reader_type": "QueueDataset", "runner.pipe_command": "cat"}
IN_MEMORY = {**PIPED, "runner.reader_type": "InmemoryDataset"}


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def train(file: Path, **keys: str) -> Result:
    shared = {
        "runner.train_data_dir": str(file),
        "runner.train_batch_size": "2",
        "runner.test_data_dir": "",
        "runner.print_interval": "0",
        "runner.model_save_path": str(file.parent / "saved"),
        "hyper_parameters.fc_sizes": "[4]",
    }
    options = [f"{key}={value}" for key, value in {**shared, **keys}.items()]
    return CliRunner().invoke(main, ["train", "-m", str(CONFIG), *options])


def written(folder: Path, *lines: str, name: str = "rows") -> Path:
    (folder / name).write_text("".join(f"{line}\n" for line in lines))
    return folder / name


def is_told(done: Result, *words: str) -> None:
    assert done.exit_code == 2, done.output
    reported = done.stderr
    assert [word for word in words if word not in reported] == [], reported
    assert "Traceback" not in done.output


def test_a_line_that_a_reader_cannot_read(tmp_path: Path) -> None:
    file = written(tmp_path, SLOTS, SLOTS, SLOTS.replace("3:3", "3:x"))

    is_told(train(file), f"{file}, line 3", "'x'")


@pytest.mark.parametrize("keys", [PIPED, IN_MEMORY])
@pytest.mark.parametrize(
    ("line", "words"),
    [
        (GOOD.replace(" 0.5", " y", 1), ("slot dense_feature", "column")),
        (GOOD.rpartition(" ")[0], ("slot dense_feature",)),
        (GOOD + " 1 7", ("line 3", "column")),
        (GOOD.replace("1 4 ", "1 4.5 "), ("slot 4",)),
    ],
)
def test_a_line_that_does_not_fit_the_slots(
    tmp_path: Path, keys: dict[str, str], line: str, words: tuple[str, ...]
) -> None:
    file = written(tmp_path, GOOD, GOOD, line, GOOD)

    is_told(train(file, **keys), str(file), "line 3", *words)
    assert not (tmp_path / "saved").exists()


def test_a_line_that_does_not_fit_is_left_out_if_that_is_wanted(tmp_path: Path) -> None:
    file = written(tmp_path, GOOD, GOOD, "rubbish", GOOD)
    keys = {"runner.on_bad_line": "quarantine", "runner.quarantine_dir": str(tmp_path / "bad")}

    done = train(file, **PIPED, **keys)

    assert done.exit_code == 0, done.output
    (kept,) = (tmp_path / "bad").iterdir()
    assert "rubbish" in kept.read_text()


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({}, ("line", "can't be read on")),
        (PIPED, ("is damaged",)),
        (IN_MEMORY, ("is damaged",)),
    ],
)
def test_a_file_that_is_cut_short(
    tmp_path: Path, keys: dict[str, str], words: tuple[str, ...]
) -> None:
    file = tmp_path / "rows.gz"
    line = GOOD if keys else SLOTS
    file.write_bytes(gzip.compress(f"{line}\n".encode() * 50)[:-9])

    is_told(train(file, **keys), str(file), *words)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("echo of what it dies >&2; exit 3", ("ended with 3", "of what it dies")),
        ("echo rubbish", ("line 1", "column 1")),
        ("head -c 100; exit 1", ("ended with 1",)),
        ("sleep 60", ("wrote nothing for 0.3 s", "pipe_timeout_s")),
        ("python no_such_reader.py", ("no_such_reader.py", "No such file")),
    ],
)
@pytest.mark.slow
def test_a_command_that_fails(tmp_path: Path, command: str, words: tuple[str, ...]) -> None:
    file = written(tmp_path, *[GOOD] * 10)
    keys = {**PIPED, "runner.pipe_command": command, "runner.pipe_timeout_s": "0.3"}
    if "python" in command:
        keys["runner.pipe_timeout_s"] = "30"

    is_told(train(file, **keys), str(file), *words)
