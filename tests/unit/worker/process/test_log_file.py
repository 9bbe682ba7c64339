"""A launcher's logs outlive their removal, a rotation and a full disk."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from paramfleet_worker.process.log_file import TAIL_BYTES, LogFile


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def log(tmp_path: Path, said: list[str]) -> Iterator[LogFile]:
    (tmp_path / "log").mkdir()
    made = LogFile(tmp_path / "log" / "workerlog.0", said.append)
    yield made
    made.close()


def test_an_old_log_is_replaced(tmp_path: Path, said: list[str]) -> None:
    path = tmp_path / "workerlog.0"
    path.write_text("old\n")
    log = LogFile(path, said.append)
    log.write(b"new\n")
    log.close()
    assert path.read_bytes() == b"new\n"


def test_an_old_log_is_kept_for_a_process_that_is_started_again(
    tmp_path: Path, said: list[str]
) -> None:
    path = tmp_path / "serverlog.0"
    path.write_text("old\n")
    log = LogFile(path, said.append, append=True)
    log.write(b"new\n")
    log.close()
    assert path.read_bytes() == b"old\nnew\n"


def test_a_log_that_was_removed_is_made_again(log: LogFile, said: list[str]) -> None:
    log.write(b"before\n")
    log.path.unlink()
    log.write(b"after\n")
    assert log.path.read_bytes() == b"after\n"
    assert log.last_lines(2) == ["before", "after"]
    assert said == []


def test_a_log_whose_folder_was_removed_is_made_again(log: LogFile) -> None:
    log.write(b"before\n")
    log.path.unlink()
    log.path.parent.rmdir()
    log.write(b"after\n")
    assert log.path.read_bytes() == b"after\n"


def test_a_log_that_was_moved_away_keeps_what_it_has_and_a_new_one_begins(log: LogFile) -> None:
    log.write(b"before\n")
    moved = log.path.rename(log.path.with_name("workerlog.0.1"))
    log.write(b"after\n")
    assert moved.read_bytes() == b"before\n"
    assert log.path.read_bytes() == b"after\n"


def test_a_log_that_was_cut_off_in_place_goes_on_at_its_beginning(log: LogFile) -> None:
    log.write(b"before\n")
    os.truncate(log.path, 0)
    log.write(b"after\n")
    assert log.path.read_bytes() == b"after\n"


def test_a_folder_in_the_place_of_the_log_is_told_once_and_stops_nothing(
    log: LogFile, said: list[str]
) -> None:
    log.path.unlink()
    log.path.mkdir()
    for _ in range(3):
        log.write(b"lost\n")
    assert len(said) == 1
    assert "workerlog.0 can't be written, the job goes on: Is a directory" in said[0]
    assert log.last_lines(1) == ["lost"]

    log.path.rmdir()
    log.write(b"again\n")
    assert log.path.read_bytes() == b"again\n"
    assert said[1].endswith("is written again; it lacks 15 bytes")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_is_told_once_and_stops_nothing(tmp_path: Path, said: list[str]) -> None:
    path = tmp_path / "workerlog.0"
    path.symlink_to("/dev/full")
    log = LogFile(path, said.append)
    for _ in range(3):
        log.write(b"lost\n")
    log.close()
    assert len(said) == 1
    assert os.strerror(errno.ENOSPC) in said[0]
    assert log.last_lines(5) == ["lost"] * 3


def test_the_end_is_kept_in_bounded_memory(log: LogFile) -> None:
    for number in range(200):
        log.write(b"%d " % number + b"x" * 2000 + b"\n")
    kept = log.last_lines(1 << 20)
    assert kept[-1].startswith("199 ")
    assert len("\n".join(kept)) <= TAIL_BYTES
