"""A launcher's logs outlive their removal, a rotation and a full disk."""

import errno
import os
import resource
import threading
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
    assert "workerlog.0 can't be written; the job continues: Is a directory" in said[0]
    assert log.last_lines(1) == ["lost"]

    log.path.rmdir()
    log.write(b"again\n")
    assert log.path.read_bytes() == b"again\n"
    assert said[1].endswith("is written again; it lacks 15 bytes")


@pytest.mark.parametrize("append", [False, True])
def test_a_link_in_the_place_of_a_log_is_replaced_and_not_followed(
    tmp_path: Path, said: list[str], append: bool
) -> None:
    victim, path = tmp_path / "victim", tmp_path / "coordinatorlog.0"
    victim.write_text("precious\n")
    path.symlink_to(victim)
    log = LogFile(path, said.append, append=append)
    log.write(b"new\n")
    log.close()
    assert victim.read_bytes() == b"precious\n"
    assert not path.is_symlink()
    assert path.read_bytes() == b"new\n"
    assert path.stat().st_mode & 0o777 == 0o600
    assert said == []


@pytest.mark.parametrize("append", [False, True])
def test_a_second_name_of_another_file_is_replaced(
    tmp_path: Path, said: list[str], append: bool
) -> None:
    victim, path = tmp_path / "victim", tmp_path / "coordinatorlog.0"
    victim.write_text("precious\n")
    path.hardlink_to(victim)
    log = LogFile(path, said.append, append=append)
    log.write(b"new\n")
    log.close()
    assert victim.read_bytes() == b"precious\n"
    assert path.read_bytes() == b"new\n"


@pytest.mark.parametrize("has_reader", [False, True])
def test_a_pipe_in_the_place_of_a_log_is_replaced(
    tmp_path: Path, said: list[str], has_reader: bool
) -> None:
    path = tmp_path / "serverlog.0"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK) if has_reader else None
    made: list[LogFile] = []
    opening = threading.Thread(
        target=lambda: made.append(LogFile(path, said.append)), daemon=True
    )
    opening.start()
    opening.join(10)
    if reader is not None:
        os.close(reader)
    assert made, "it waits for a reader"
    made[0].write(b"new\n")
    made[0].close()
    assert path.is_file()
    assert path.read_bytes() == b"new\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("append", [False, True])
def test_somebody_elses_file_in_the_place_of_a_log_is_replaced(
    tmp_path: Path, said: list[str], append: bool
) -> None:
    path = tmp_path / "workerlog.0"
    path.write_text("theirs\n")
    os.chown(path, 65534, 65534)
    with path.open() as theirs:
        log = LogFile(path, said.append, append=append)
        log.write(b"new\n")
        log.close()
        assert theirs.read() == "theirs\n"
    assert path.read_bytes() == b"new\n"
    assert path.stat().st_uid == 0


def test_a_link_that_takes_the_place_of_an_open_log_is_not_written_through(
    log: LogFile, said: list[str]
) -> None:
    log.write(b"before\n")
    moved = log.path.rename(log.path.with_name("moved"))
    log.path.symlink_to(moved)
    log.write(b"after\n")
    assert moved.read_bytes() == b"before\n"
    assert not log.path.is_symlink()
    assert log.path.read_bytes() == b"after\n"
    assert said == []


def test_what_can_not_be_removed_is_named(tmp_path: Path, said: list[str]) -> None:
    path = tmp_path / "workerlog.0"
    path.mkdir()
    with pytest.raises(OSError, match=r"workerlog\.0"):
        LogFile(path, said.append)


def test_a_process_is_started_again_without_its_log(tmp_path: Path, said: list[str]) -> None:
    path = tmp_path / "serverlog.0"
    path.mkdir()
    log = LogFile(path, said.append, append=True)
    log.write(b"lost\n")
    assert len(said) == 1
    assert "serverlog.0 can't be written; the job continues" in said[0]

    path.rmdir()
    log.write(b"again\n")
    log.close()
    assert path.read_bytes() == b"again\n"
    assert said[1].endswith("is written again; it lacks 5 bytes")


def test_a_full_disk_is_told_once_and_stops_nothing(log: LogFile, said: list[str]) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        for _ in range(3):
            log.write(b"lost\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert len(said) == 1
    assert os.strerror(errno.EFBIG) in said[0]
    assert log.last_lines(5) == ["lost"] * 3


def test_the_end_is_kept_in_bounded_memory(log: LogFile) -> None:
    for number in range(200):
        log.write(b"%d " % number + b"x" * 2000 + b"\n")
    kept = log.last_lines(1 << 20)
    assert kept[-1].startswith("199 ")
    assert len("\n".join(kept)) <= TAIL_BYTES
