"""What a folder holds after a process, a disk or the power has failed."""

import os
import random
import re
import shutil
from pathlib import Path

import pytest
from tests.unit.pserver.durability.log.disks import EndedError, LosingDisk
from tests.unit.pserver.durability.log.folders import (
    JOB,
    append,
    command,
    commands,
    held_by,
    opened,
    segments,
    write,
    writer_of,
)

from paramfleet_pserver.durability.log.recovery import open_log
from paramfleet_pserver.durability.log.settings import LogSettings
from paramfleet_shared.errors.logs import (
    LogDamagedError,
    LogInUseError,
    LogOfOtherJobError,
    LogTermError,
)


def test_an_empty_folder_is_a_log_that_begins_behind_what_is_held(tmp_path: Path) -> None:
    with opened(tmp_path / "log", held=41) as log:
        assert (log.first_position, log.last_position, log.torn) == (42, 41, None)
        assert list(log.commands(42)) == []
        writer = writer_of(log)
        assert (writer.append(b"a"), writer.append(b"b")) == (42, 43)
        writer.turn()
        assert writer.durable_position == 43

    assert held_by(tmp_path / "log", 42) == [b"a", b"b"]


def test_commands_are_read_in_order_through_all_segments(tmp_path: Path) -> None:
    write(tmp_path, [5, 40, 1, 30])

    assert len(segments(tmp_path)) > 3
    assert held_by(tmp_path) == commands(76)
    assert held_by(tmp_path, 50) == commands(76, 50)
    with opened(tmp_path) as log:
        assert [each.position for each in log.commands(1)] == list(range(1, 77))
        assert list(log.commands(77)) == []


def test_terms_are_kept_and_never_fall(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        writer = writer_of(log, term=4)
        append(writer, 2)
        writer.begin_term(6)
        append(writer, 2)
        writer.turn()
        with pytest.raises(LogTermError):
            writer.begin_term(5)

    with opened(tmp_path) as log:
        assert [each.term for each in log.commands(1)] == [4, 4, 6, 6]
        assert log.term == 6
        with pytest.raises(LogTermError, match="term 6, and was to be continued with 5"):
            log.continue_with(term=5, clock=writer._clock)


def test_each_opening_continues_behind_the_last_command(tmp_path: Path) -> None:
    for _ in range(5):
        write(tmp_path, [3, 4])

    assert held_by(tmp_path) == commands(35)


def test_a_torn_tail_is_cut_off_and_the_log_continues_there(tmp_path: Path) -> None:
    write(tmp_path, [2, 2, 2])
    last = segments(tmp_path)[-1]
    content = bytearray(last.read_bytes())
    content[content.index(command(6))] ^= 1
    last.write_bytes(content)

    with opened(tmp_path) as log:
        assert (log.last_position, log.confirmed_position) == (4, 4)
        assert log.torn is not None
        assert log.torn.reason == "the checksum of the batch's commands is wrong"
        writer = writer_of(log)
        assert writer.append(command(5)) == 5
        writer.turn()
    assert held_by(tmp_path) == commands(5)


def test_what_no_sync_confirms_is_written_again_before_it_counts(tmp_path: Path) -> None:
    write(tmp_path, [2, 2, 3])

    with opened(tmp_path) as log:
        assert (log.last_position, log.confirmed_position) == (7, 4)
        writer = writer_of(log)
        assert (writer.position, writer.durable_position) == (7, 4)
        writer.turn()
        assert writer.durable_position == 7
    content = segments(tmp_path)[-1].read_bytes()
    assert all(each in content for each in commands(7, 5))
    assert held_by(tmp_path) == commands(7)


def test_what_is_written_again_is_in_one_segment_however_much_it_is(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        writer = writer_of(log, settings=LogSettings(segment_bytes=8000))
        for count in (2, 2, 60):
            append(writer, count)
            writer.turn()

    with opened(tmp_path) as log:
        assert (log.confirmed_position, log.last_position) == (4, 64)
        writer_of(log).turn()
    _, second = segments(tmp_path)  # it replaces all behind command 4 when it gets its name
    assert all(each in second.read_bytes() for each in commands(64, 5))
    assert held_by(tmp_path) == commands(64)


def test_damage_in_an_older_segment_is_named(tmp_path: Path) -> None:
    write(tmp_path, [5, 40])
    first = segments(tmp_path)[0]
    content = bytearray(first.read_bytes())
    at = content.index(command(3))
    content[at] ^= 1
    first.write_bytes(content)

    with opened(tmp_path) as log, pytest.raises(LogDamagedError) as caught:
        list(log.commands(1))

    facts = caught.value.facts
    assert (facts["path"], facts["offset"], facts["position"]) == (str(first), 512, 1)
    assert "checksum" in facts["reason"]


def test_a_segment_that_is_gone_is_a_gap(tmp_path: Path) -> None:
    write(tmp_path, [5, 40, 30])
    gone = segments(tmp_path)[1]
    gone.unlink()

    with opened(tmp_path) as log, pytest.raises(LogDamagedError, match="are lacking"):
        list(log.commands(1))


@pytest.mark.parametrize("held", [0, 5, 20])
def test_a_log_whose_segments_are_all_gone_is_damaged(tmp_path: Path, held: int) -> None:
    write(tmp_path, [5])
    for segment in segments(tmp_path):
        segment.unlink()

    with pytest.raises(LogDamagedError, match="removed by another process or user"):
        open_log(tmp_path, job=JOB, held=held)


def test_a_first_segment_that_is_gone_is_missed_if_it_is_needed(tmp_path: Path) -> None:
    write(tmp_path, [5, 40, 30])
    segments(tmp_path)[0].unlink()

    with pytest.raises(LogDamagedError, match="the oldest segment begins with command"):
        open_log(tmp_path, job=JOB)
    with opened(tmp_path, held=60) as log:
        assert [bytes(each.body) for each in log.commands(61)] == commands(75, 61)
        with pytest.raises(LogDamagedError, match="the oldest segment"):
            list(log.commands(1))


def test_a_log_that_ends_before_what_is_held_is_damaged(tmp_path: Path) -> None:
    write(tmp_path, [5])

    with pytest.raises(LogDamagedError):
        open_log(tmp_path, job=JOB, held=6)


def test_a_segment_under_another_name_is_damage(tmp_path: Path) -> None:
    write(tmp_path, [5])
    segments(tmp_path)[0].rename(tmp_path / "segment-0000000000000007.log")

    with pytest.raises(LogDamagedError, match="segment 1 under another name"):
        open_log(tmp_path, job=JOB)


def test_a_segment_that_would_replace_confirmed_commands_is_damage(tmp_path: Path) -> None:
    write(tmp_path / "a", [4])
    write(tmp_path / "b", [1])
    write(tmp_path / "b", [1])
    shutil.copy(segments(tmp_path / "b")[-1], tmp_path / "a")

    with pytest.raises(LogDamagedError, match="begins before the end of"):
        open_log(tmp_path / "a", job=JOB)


@pytest.mark.parametrize("content", [b"", b"something else" * 99])
def test_a_file_with_a_name_of_ours_that_is_no_segment_is_damage(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "segment-0000000000000001.log").write_bytes(content)

    with pytest.raises(LogDamagedError, match=re.escape("segment-0000000000000001.log")):
        open_log(tmp_path, job=JOB)


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "segment-1.log").write_text("mine, too")
    (tmp_path / "segment-0000000000000002.draft").write_bytes(b"of a killed process")

    write(tmp_path, [3])

    assert held_by(tmp_path) == commands(3)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "log.begun",
        "log.lock",
        "notes.txt",
        "segment-0000000000000001.log",
        "segment-1.log",
    ]


@pytest.mark.parametrize("kind", ["folder", "link", "pipe"])
@pytest.mark.parametrize("number", [2, 10**16 - 1])
def test_what_stands_in_the_place_of_a_segment_is_damage(
    tmp_path: Path, kind: str, number: int
) -> None:
    write(tmp_path, [3])
    strange = tmp_path / f"segment-{number:016d}.log"
    if kind == "folder":
        strange.mkdir()
    elif kind == "link":
        strange.symlink_to(segments(tmp_path)[0])
    else:
        os.mkfifo(strange)

    with pytest.raises(LogDamagedError, match=re.escape(strange.name)):
        open_log(tmp_path, job=JOB)


def test_the_log_of_another_job_is_refused_and_left(tmp_path: Path) -> None:
    write(tmp_path, [3])

    with pytest.raises(LogOfOtherJobError, match="job, epoch 3"):
        open_log(tmp_path, job="job, epoch 4")

    assert held_by(tmp_path) == commands(3)


def test_a_second_opener_is_told_who_has_the_log(tmp_path: Path) -> None:
    with opened(tmp_path), pytest.raises(LogInUseError, match=f"process {os.getpid()}"):
        open_log(tmp_path, job=JOB)

    with opened(tmp_path):
        (tmp_path / "log.lock").write_bytes(b"")
        with pytest.raises(LogInUseError, match="another process"):
            open_log(tmp_path, job=JOB)


def test_truncation_removes_whole_segments_only(tmp_path: Path) -> None:
    write(tmp_path, [5, 40, 30])
    with opened(tmp_path) as log:
        firsts = [segment.header.first for segment in log._segments]
        _, second, third, *_ = segments(tmp_path)
        writer = writer_of(log)
        writer.truncate(firsts[2] - 1)
        writer.turn()
        assert segments(tmp_path)[0] == second
        writer.truncate(firsts[2])
        writer.truncate(1)
        append(writer, 1)
        writer.turn()
        assert segments(tmp_path)[0] == third

    with opened(tmp_path, held=firsts[2] - 1) as log:
        assert log.first_position == firsts[2]
        assert [bytes(each.body) for each in log.commands(firsts[2])] == commands(76, firsts[2])


def test_truncation_behind_the_end_leaves_the_newest_segment(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        writer = writer_of(log)
        append(writer, 40)
        writer.truncate(1000)
        writer.turn()
        assert len(segments(tmp_path)) == 1
        append(writer, 1)
        writer.turn()

    with opened(tmp_path, held=40) as log:
        assert log.last_position == 41


def written_until_the_end(path: Path, disk: LosingDisk, rng: random.Random) -> int:
    """Write until the process ends; return what had been reported as durable."""
    with opened(path) as log:
        assert [bytes(each.body) for each in log.commands(1)] == commands(log.last_position)
        disk.left = rng.randrange(1, 40)
        writer = writer_of(log, disk=disk)
        try:
            while True:
                if writer.waiting_bytes < 2000:
                    append(writer, rng.randrange(12))
                writer.turn()
        except EndedError:
            return writer.durable_position


@pytest.mark.parametrize("failing", [0.0, 0.3])
@pytest.mark.parametrize("seed", range(25))
def test_after_ends_and_losses_of_power_all_that_was_reported_is_there(
    tmp_path: Path, seed: int, failing: float
) -> None:
    rng = random.Random(seed)
    disk = LosingDisk(rng, failing)
    durable = 0
    for _ in range(12):
        durable = max(durable, written_until_the_end(tmp_path, disk, rng))
        if rng.random() < 0.5:
            disk.lose()
        held = held_by(tmp_path)
        assert held == commands(len(held))
        assert len(held) >= durable
    disk.lose()
