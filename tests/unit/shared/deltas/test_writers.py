"""Two writers of one folder, of one process or of two; and a folder that others lock."""

import fcntl
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.unit.shared.deltas.streams import (
    TABLES,
    FailingDisk,
    Model,
    begin,
    random_change,
    read_from,
    writer_at,
)
from typing_extensions import override

from paramfleet_shared.deltas.compaction import compact_folder, prune_folder
from paramfleet_shared.deltas.errors import (
    OtherWriterError,
    StreamBusyError,
    StreamError,
    StreamReplacedError,
)
from paramfleet_shared.deltas.inspecting.verifying import verify_stream
from paramfleet_shared.deltas.reader import StreamReader
from paramfleet_shared.deltas.records import Change
from paramfleet_shared.deltas.stored.disk import LOCK_WAIT_S, StreamDisk
from paramfleet_shared.deltas.writer import StreamWriter
from paramfleet_shared.files.addresses import place_of
from paramfleet_shared.system.clock import Clock
from paramfleet_shared.testing.clock import FakeClock

EMPTY = Change(moment=1.0, tables={}, dense={})


@pytest.fixture(params=["disk", "address"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path if request.param == "disk" else place_of(f"memory://two{tmp_path}")


def test_who_began_last_has_the_folder(folder: Path) -> None:
    first, second = writer_at(folder), writer_at(folder)
    begin(first, Model())
    first.publish(EMPTY)
    reader = StreamReader(folder)
    reader.base()

    begin(second, Model())

    for act in (lambda: first.publish(EMPTY), lambda: first.touch(2.0), first.compact):
        with pytest.raises(OtherWriterError, match=second.writer):
            act()
    assert second.publish(EMPTY) == 1
    assert StreamReader(folder).look().writer == second.writer
    with pytest.raises(StreamReplacedError):
        list(reader.changes(0, 1))


def test_who_is_faster_to_begin_has_the_folder(folder: Path) -> None:
    slow, fast = writer_at(folder), writer_at(folder)

    def pieces() -> Iterator[tuple[str, NDArray[np.int64], NDArray[np.float32]]]:
        begin(fast, Model())
        yield "words", np.array([1]), np.zeros((1, 3), np.float32)

    with pytest.raises(OtherWriterError, match=fast.writer):
        slow.begin(TABLES, pieces(), {}, moment=1.0)

    assert StreamReader(folder).look().writer == fast.writer
    assert fast.publish(EMPTY) == 1
    with pytest.raises(StreamError, match="no stream is begun"):
        slow.publish(EMPTY)


def test_a_folder_that_is_gone_needs_another_stream(tmp_path: Path) -> None:
    writer = writer_at(tmp_path)
    begin(writer, Model())
    (tmp_path / "stream.json").unlink()

    with pytest.raises(StreamError, match="begin another stream"):
        writer.publish(EMPTY)

    begin(writer, Model())
    assert writer.publish(EMPTY) == 1


def test_a_foreign_stream_json_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "stream.json").write_text('{"format": "theirs"}')

    with pytest.raises(StreamError, match="must be paramfleet-stream"):
        begin(writer_at(tmp_path), Model())

    assert "theirs" in (tmp_path / "stream.json").read_text()


def test_a_lock_that_is_held_for_long_is_named(tmp_path: Path) -> None:
    writer = StreamWriter(tmp_path, clock=JumpingClock())
    begin(writer, Model())
    with (tmp_path / "stream.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(StreamBusyError, match=r"stream\.lock is locked by another"):
            writer.publish(EMPTY)
        assert StreamReader(tmp_path).look().last == 0

    assert writer.publish(EMPTY) == 1


@pytest.mark.parametrize("reason", ["a lock", "another writer", "the disk"])
def test_a_stream_that_could_not_begin_leaves_no_rows(tmp_path: Path, reason: str) -> None:
    disk = UnreplacedDisk()
    writer = StreamWriter(tmp_path, clock=JumpingClock(), disk=disk)
    begin(writer_at(tmp_path), Model())
    kept = {each.name for each in tmp_path.iterdir()}

    if reason == "a lock":
        with (tmp_path / "stream.lock").open("r+") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            with pytest.raises(StreamBusyError):
                begin(writer, Model())
    elif reason == "the disk":
        disk.is_full = True
        with pytest.raises(OSError, match="full"):
            begin(writer, Model())
    else:

        def pieces() -> Iterator[tuple[str, NDArray[np.int64], NDArray[np.float32]]]:
            begin(writer_at(tmp_path), Model())
            yield "words", np.array([1]), np.zeros((1, 3), np.float32)

        with pytest.raises(OtherWriterError):
            writer.begin(TABLES, pieces(), {}, moment=1.0)
        kept.add(StreamReader(tmp_path).look().stream)

    assert {each.name for each in tmp_path.iterdir()} <= kept


class UnreplacedDisk(StreamDisk):
    """A disk that is full when ``stream.json`` is written."""

    is_full = False

    @override
    @contextmanager
    def creating(self, path: Path) -> Iterator[IO[bytes]]:
        if self.is_full and path.name == "stream.json":
            raise OSError("full")
        with super().creating(path) as file:
            yield file


@pytest.mark.parametrize("lock", ["stream.lock", "bases.lock"])
@pytest.mark.parametrize("kind", ["pipe", "link", "second name", "folder"])
def test_what_is_no_lock_is_named_and_left_alone(tmp_path: Path, lock: str, kind: str) -> None:
    writer = writer_at(tmp_path)
    begin(writer, Model())
    writer.publish(EMPTY)
    path, victim = tmp_path / lock, tmp_path / "victim"
    path.unlink(missing_ok=True)
    victim.write_text("precious")
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to(victim)
    elif kind == "folder":
        path.mkdir()
    else:
        path.hardlink_to(victim)

    with pytest.raises(StreamError, match=rf"{lock}: isn't a lock file of a writer"):
        writer.compact()

    assert victim.read_text() == "precious"


def test_who_may_read_a_folder_cannot_hold_its_locks(tmp_path: Path) -> None:
    former = os.umask(0o022)
    try:
        writer = writer_at(tmp_path)
        begin(writer, Model())
        writer.publish(EMPTY)
        (tmp_path / "stream.lock").chmod(0o644)  # as versions before made it
        writer.compact()
    finally:
        os.umask(former)

    for lock in ("stream.lock", "bases.lock"):
        assert stat.S_IMODE((tmp_path / lock).stat().st_mode) == 0o600


def test_one_process_at_a_time_makes_bases(tmp_path: Path) -> None:
    writer = StreamWriter(tmp_path, clock=JumpingClock())
    begin(writer, Model())
    writer.publish(EMPTY)
    with (tmp_path / "bases.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        for act in (
            writer.compact,
            lambda: compact_folder(tmp_path, JumpingClock()),
            lambda: prune_folder(tmp_path, JumpingClock(), keep=1),
        ):
            with pytest.raises(StreamBusyError, match=r"bases\.lock"):
                act()
        assert writer.publish(EMPTY) == 2

    assert writer.compact() == 2


class JumpingClock(FakeClock):
    """Half of the wait for a lock is over each time that somebody looks."""

    @override
    def monotonic(self) -> float:
        self.jump(LOCK_WAIT_S / 2)
        return super().monotonic()


def test_commands_may_run_beside_a_writer(tmp_path: Path) -> None:
    writer, numbers, model = writer_at(tmp_path), np.random.default_rng(3), Model()
    begin(writer, model)

    for at in range(1, 7):
        change = random_change(numbers, float(at))
        assert writer.publish(change) == at
        model.apply(change)
        if at % 2:
            assert compact_folder(tmp_path, FakeClock()) == at
            assert compact_folder(tmp_path, FakeClock()) is None
        if at == 5:
            assert list(StreamReader(tmp_path).look().bases) == [0, 1, 3, 5]
            assert list(prune_folder(tmp_path, FakeClock(), keep=1).bases) == [5]

    assert read_from(tmp_path) == model
    assert writer.compact() == 6
    assert StreamReader(tmp_path).bases() == [5, 6]
    assert read_from(tmp_path) == model
    assert not verify_stream(tmp_path).problems


class PausedDisk(FailingDisk):
    """Stops at each file of a base until it may go on."""

    def __init__(self) -> None:
        super().__init__()
        self.is_reached, self.may_go_on = threading.Event(), threading.Event()

    @override
    @contextmanager
    def creating(self, path: Path) -> Iterator[IO[bytes]]:
        if "base-" in str(path) and not path.parent.name.endswith("0" * 12):
            self.is_reached.set()
            assert self.may_go_on.wait(30)
        with super().creating(path) as file:
            yield file


def test_changes_are_published_while_a_base_is_made(folder: Path) -> None:
    disk = PausedDisk()
    writer, numbers, model = writer_at(folder, disk), np.random.default_rng(3), Model()
    begin(writer, model)
    changes = [random_change(numbers, float(at)) for at in range(1, 6)]
    found: list[int | None] = []

    for change in changes[:2]:
        writer.publish(change)
    thread = threading.Thread(target=lambda: found.append(writer.compact()))
    thread.start()
    assert disk.is_reached.wait(30)
    for change in changes[2:]:
        writer.publish(change)
    disk.may_go_on.set()
    thread.join(30)

    for change in changes:
        model.apply(change)
    head = StreamReader(folder).look()
    assert (found, list(head.bases), head.last) == ([2], [0, 2], 5)
    assert read_from(folder) == model
    assert read_from(folder, 0) == model
    assert not verify_stream(folder).problems


def test_a_base_of_a_former_stream_is_not_listed(folder: Path) -> None:
    disk = PausedDisk()
    writer = writer_at(folder, disk)
    begin(writer, Model())
    writer.publish(EMPTY)
    found: list[int | None] = []

    thread = threading.Thread(target=lambda: found.append(writer.compact()))
    thread.start()
    assert disk.is_reached.wait(30)
    begin(writer, Model())
    disk.may_go_on.set()
    thread.join(30)

    assert found == [None]
    assert StreamReader(folder).bases() == [0]
    assert not verify_stream(folder).problems


class LosingDisk(StreamDisk):
    """Puts back what ``stream.json`` was before a publication, as a race at an address does."""

    def __init__(self) -> None:
        super().__init__()
        self.former: bytes | None = None

    @override
    @contextmanager
    def locked(self, path: Path, clock: Clock) -> Iterator[None]:
        if self.former is not None:
            with super().creating(path.with_name("stream.json")) as file:
                file.write(self.former)
            self.former = None
        with super().locked(path, clock):
            yield


def test_a_publication_that_another_put_overwrote_is_told_with_the_next(tmp_path: Path) -> None:
    folder, disk = place_of(f"memory://lost{tmp_path}"), LosingDisk()
    writer, numbers, model = writer_at(folder, disk), np.random.default_rng(4), Model()
    begin(writer, model)
    with (folder / "stream.json").reading() as file:  # type: ignore[attr-defined]
        former = file.read()

    for at in range(1, 4):
        change = random_change(numbers, float(at))
        writer.publish(change)
        model.apply(change)
        disk.former = former if at == 2 else None

    assert StreamReader(folder).look().last == 3
    assert read_from(folder) == model
