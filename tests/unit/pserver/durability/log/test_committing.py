"""Disks that are full or fail: nothing is lost, nothing is read that isn't whole."""

import errno
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.pserver.durability.log.disks import FailingDisk
from tests.unit.pserver.durability.log.folders import (
    append,
    command,
    commands,
    held_by,
    opened,
    segments,
    write,
    writer_of,
)

from paramfleet_pserver.durability.log.writer import LogWriter
from paramfleet_shared.errors.logs import DiskFailingError, DiskFullError

Case = Callable[[LogWriter, FailingDisk], None]


def names(path: Path) -> list[str]:
    return [each.name for each in segments(path)]


def test_a_group_of_commands_is_synced_once(tmp_path: Path) -> None:
    disk = FailingDisk()
    with opened(tmp_path) as log:
        writer = writer_of(log, disk=disk)
        append(writer, 5)
        writer.turn()
        assert disk.calls == ["create", "write", "write", "sync", "rename", "renamed"]
        disk.calls.clear()
        append(writer, 5)
        writer.turn()
        assert disk.calls == ["write", "sync"]
        disk.calls.clear()
        writer.turn()
        assert disk.calls == []


@pytest.mark.parametrize("call", ["write", "sync"])
def test_after_a_failed_call_the_commands_go_to_a_new_segment(
    tmp_path: Path, call: str
) -> None:
    disk = FailingDisk()
    with opened(tmp_path) as log:
        writer = writer_of(log, disk=disk)
        append(writer, 3)
        writer.turn()
        disk.fail(call)
        append(writer, 2)
        writer.turn()
        assert (writer.durable_position, writer.fault, writer.state) == (5, None, "open")
        append(writer, 1)
        writer.turn()

    first, second = segments(tmp_path)
    assert command(5) in second.read_bytes()
    assert command(6) in second.read_bytes()
    assert command(6) not in first.read_bytes()
    assert held_by(tmp_path) == commands(6)


@pytest.mark.parametrize("call", ["create", "write", "sync", "rename", "renamed"])
@pytest.mark.parametrize("before", [0, 3])
def test_a_new_segment_that_fails_leaves_nothing_and_is_tried_again(
    tmp_path: Path, call: str, before: int
) -> None:
    disk = FailingDisk()
    with opened(tmp_path) as log:
        writer = writer_of(log, disk=disk)
        append(writer, before)
        writer.turn()
        disk.fail("write", times=1 if before else 0)
        append(writer, 2)
        disk.fail(call, errno.EIO, times=3)
        for _ in range(3):
            writer.turn()
            assert writer.durable_position == before
            assert writer.state == "failing"
            assert len(segments(tmp_path)) == (1 if before else 0)
            assert not list(tmp_path.glob("*.draft"))
        disk.faults.clear()
        writer.turn()
        assert (writer.durable_position, writer.state) == (before + 2, "open")

    assert held_by(tmp_path) == commands(before + 2)


def test_a_segment_of_which_nobody_knows_whether_it_has_its_name_is_replaced(
    tmp_path: Path,
) -> None:
    disk = FailingDisk()
    with opened(tmp_path) as log:
        writer = writer_of(log, disk=disk)
        append(writer, 3)
        disk.fail("renamed")
        disk.fail("remove", times=2)
        writer.turn()
        assert names(tmp_path) == ["segment-0000000000000001.log"]
        append(writer, 2)
        writer.turn()
        assert len(names(tmp_path)) == 2

    assert held_by(tmp_path) == commands(5)


@pytest.mark.parametrize(
    ("code", "state", "error", "words"),
    [
        (errno.ENOSPC, "full", DiskFullError, "No space left on device"),
        (errno.EDQUOT, "full", DiskFullError, "quota"),
        (errno.EIO, "failing", DiskFailingError, "Input/output error"),
        (errno.EROFS, "failing", DiskFailingError, "Read-only"),
    ],
)
def test_what_the_disk_refuses_with_is_said_until_it_writes_again(
    tmp_path: Path, code: int, state: str, error: type[Exception], words: str
) -> None:
    disk = FailingDisk()
    with opened(tmp_path) as log:
        writer = writer_of(log, disk=disk)
        writer.check(100)
        append(writer, 2)
        disk.fail("create", code)
        writer.turn()

        assert writer.state == state
        with pytest.raises(error, match=words) as caught:
            writer.check()
        assert str(tmp_path) in str(caught.value)
        assert "tries again automatically" in str(caught.value)
        append(writer, 1)  # there is room in memory
        writer.turn()
        writer.check()
        assert (writer.state, writer.durable_position) == ("open", 3)


def test_what_cannot_be_removed_is_removed_later(tmp_path: Path) -> None:
    disk = FailingDisk()
    with opened(tmp_path) as log:
        writer = writer_of(log, disk=disk)
        for _ in range(10):
            append(writer, 8)
            writer.turn()
        before = names(tmp_path)
        disk.fail("remove")
        writer.truncate(75)
        writer.turn()
        assert (names(tmp_path), writer.state) == (before, "open")
        writer.turn()
        assert len(names(tmp_path)) < len(before)


def test_commands_that_were_reported_before_are_never_without_a_segment(
    tmp_path: Path,
) -> None:
    write(tmp_path, [2, 3, 4])
    disk = FailingDisk()
    with opened(tmp_path) as log:
        assert log.confirmed_position < log.last_position
        last = segments(tmp_path)[-1]
        writer = writer_of(log, disk=disk)
        append(writer, 60)
        for call in ("create", "write", "sync", "rename", "renamed"):
            disk.fail(call)
            writer.turn()
            disk.faults.clear()
            assert writer.durable_position == log.confirmed_position
            assert command(log.last_position) in last.read_bytes()
        writer.turn()

    assert held_by(tmp_path) == commands(69)


def test_a_command_that_is_longer_than_a_segment_gets_a_longer_one(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        writer = writer_of(log)
        for body in (b"short", b"x" * 5000, b"short"):
            writer.append(body)
            writer.turn()

    assert held_by(tmp_path) == [b"short", b"x" * 5000, b"short"]
    sizes = [path.stat().st_size for path in segments(tmp_path)]
    assert (sizes[0], sizes[2]) == (1200, 1200)
    assert sizes[1] > 5000
