"""What a crash, a power cut, a full or failing disk leave: all that was acknowledged."""

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.unit.shared.tables.disk.ledger import (
    LAYOUT,
    Rows,
    check,
    content,
    forget,
    note,
    opened,
    some_rows,
)
from typing_extensions import override

from paramfleet_shared.errors import FleetError
from paramfleet_shared.tables.disk.access.system import Buffer, ScratchSystem, System
from paramfleet_shared.tables.disk.access.transfers import Transfers
from paramfleet_shared.tables.disk.errors import (
    TierDamagedError,
    TierFailedError,
    TierFolderError,
    TierFullError,
    TierReadError,
)
from paramfleet_shared.tables.disk.log import writeahead
from paramfleet_shared.tables.disk.pages.files import PAGES_OFFSET
from paramfleet_shared.tables.disk.pages.header import pack_slot, unpack_slot
from paramfleet_shared.tables.disk.tier import DiskTier, TierOptions

SECTOR = 512


class Crash(BaseException):
    """The process is no more."""


class CrashingSystem(System):
    """Ends at a call of its choice, in the middle of a write, and may lose what isn't synced.

    Args:
        at: Number of the call.
        power: Whether the power goes, and not the process alone.
    """

    def __init__(self, at: int, *, power: bool) -> None:
        self.calls = 0
        self._at, self._power = at, power
        self._rng = np.random.default_rng(at)
        self._unsynced: list[tuple[int, int, bytes]] = []

    def open(self, path: Path, *, direct: bool) -> tuple[int, bool]:
        return super().open(path, direct=False)

    def write(self, file: int, parts: Sequence[Buffer], offset: int) -> None:
        whole = b"".join(bytes(part) for part in parts)
        self._note(file, offset, len(whole))
        if self._is_end():
            whole = whole[: int(self._rng.integers(0, len(whole) + 1))]
            os.pwrite(file, whole, offset)
            self._crash()
        super().write(file, [whole], offset)

    def write_extents(
        self,
        transfers: Transfers,
        file: int,
        extents: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]],
    ) -> None:
        for offset, size in zip(extents[0].tolist(), extents[1].tolist(), strict=True):
            self._note(file, offset, size)
        if self._is_end():
            some = np.flatnonzero(self._rng.random(extents[0].size) < 0.5)
            offsets, sizes, addresses = (each[some] for each in extents)
            if some.size:
                sizes = np.where(np.arange(some.size) == 0, sizes // 2, sizes)
                super().write_extents(transfers, file, (offsets, sizes, addresses))
            self._crash()
        super().write_extents(transfers, file, extents)

    def sync(self, file: int) -> None:
        if self._is_end():
            self._crash()
        self._unsynced = [each for each in self._unsynced if each[0] != file]

    def truncate(self, file: int, num_bytes: int) -> None:
        if self._is_end():
            self._crash()
        super().truncate(file, num_bytes)

    def remove(self, path: Path) -> None:
        if self._is_end():
            self._crash()
        super().remove(path)

    def _note(self, file: int, offset: int, size: int) -> None:
        """Remember what a write changes; a file that it makes longer had zeros there."""
        before = os.pread(file, size, offset).ljust(size, b"\0")
        self._unsynced.append((file, offset, before))

    def _is_end(self) -> bool:
        self.calls += 1
        return self.calls == self._at

    def _crash(self) -> None:
        if self._power:
            for file, offset, before in reversed(self._unsynced):
                for start in range(0, len(before), SECTOR):
                    if self._rng.random() < 0.5:
                        os.pwrite(file, before[start : start + SECTOR], offset + start)
        raise Crash


class Life:
    """Changes rows in every way, and remembers what must be there after each change."""

    def __init__(self) -> None:
        self.history: list[Rows] = [{}]
        """What must be there after each change, the one that is under way included."""
        self.acknowledged = 0
        """The last change of the history that is."""
        self.durable = 0
        """The last one that a power cut leaves."""

    def put(self, tier: DiskTier, keys: NDArray[np.uint64], values: NDArray[np.uint32]) -> None:
        rows = dict(self.history[-1])
        note(rows, keys, values)
        self.history.append(rows)
        tier.put(keys, values)
        self.acknowledged += 1

    def remove(self, tier: DiskTier, keys: NDArray[np.uint64]) -> None:
        rows = dict(self.history[-1])
        forget(rows, keys)
        self.history.append(rows)
        tier.remove(keys)
        self.acknowledged += 1

    def settle(self, call: Callable[[], None]) -> None:
        call()
        self.durable = self.acknowledged

    def live(self, folder: Path, system: System) -> None:
        """Do all that."""
        rng = np.random.default_rng(8)
        tier = DiskTier(folder, LAYOUT, TierOptions(memory_bytes=1, system=system))
        try:
            for turn in range(4):
                keys = rng.integers(0, 2_500, 450).astype(np.uint64)
                self.put(tier, keys, some_rows(rng, keys.size, LAYOUT))
                self.remove(tier, rng.integers(0, 2_500, 100).astype(np.uint64))
                if turn % 2:
                    self.settle(tier.sync)
            self.settle(tier.merge)
            self.remove(tier, np.arange(2_300, dtype=np.uint64))
            self.settle(tier.merge)
        finally:
            tier.close()


def num_calls(folder: Path) -> int:
    """Return how many calls such a life makes."""
    system = CrashingSystem(0, power=False)
    Life().live(folder, system)
    return system.calls


@pytest.mark.slow
@pytest.mark.parametrize("least", [1, 1 << 20], ids=["by ranges", "at once"])
@pytest.mark.parametrize("power", [False, True], ids=["process", "power"])
def test_a_crash_at_any_write_leaves_what_was_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, power: bool, least: int
) -> None:
    monkeypatch.setattr(writeahead, "LEAST_OF_RANGE", least)
    total = num_calls(tmp_path / "whole")
    assert total > 40
    for at in range(1, total + 1):
        folder = tmp_path / str(at)
        life = Life()
        with pytest.raises(Crash):
            life.live(folder, CrashingSystem(at, power=power))

        tier = opened(folder)
        found = content(tier)
        # A change that was under way is there, or it isn't. Without power, those after the
        # last sync may be lost, too, the latest first.
        first = life.durable if power else life.acknowledged
        assert found in life.history[first:], f"at call {at}"
        check(tier, found, np.arange(2_500, 2_600, dtype=np.uint64))
        tier.merge()
        check(tier, found, np.arange(0, 300, dtype=np.uint64))
        tier.close()


class RefusingSystem(System):
    """Refuses some calls, from a moment on."""

    def __init__(self, calls: set[str], code: int) -> None:
        self._calls, self._code = calls, code
        self.is_refusing = False

    def _refuse(self, call: str) -> None:
        if self.is_refusing and call in self._calls:
            raise OSError(self._code, os.strerror(self._code))

    def write(self, file: int, parts: Sequence[Buffer], offset: int) -> None:
        self._refuse("write")
        super().write(file, parts, offset)

    def write_extents(self, transfers: Transfers, file: int, extents: Any) -> None:
        self._refuse("write_extents")
        super().write_extents(transfers, file, extents)

    def claim(self, file: int, num_bytes: int) -> None:
        self._refuse("claim")
        super().claim(file, num_bytes)

    def sync(self, file: int) -> None:
        self._refuse("sync")
        super().sync(file)


def filled(folder: Path, system: System) -> tuple[DiskTier, Rows]:
    """Return a tier with rows on pages, and others in the log."""
    rng, rows = np.random.default_rng(9), Rows()
    tier = DiskTier(folder, LAYOUT, TierOptions(system=system))
    for first in (0, 3_000):
        keys = np.arange(first, first + 4_000, dtype=np.uint64)
        values = some_rows(rng, keys.size, LAYOUT)
        tier.put(keys, values)
        note(rows, keys, values)
        if not first:
            tier.merge()
    return tier, rows


def test_a_full_disk_refuses_rows_and_takes_them_when_there_is_room(tmp_path: Path) -> None:
    system = RefusingSystem({"write", "claim"}, errno.ENOSPC)
    tier, rows = filled(tmp_path, system)
    system.is_refusing = True
    keys = np.arange(10, dtype=np.uint64)
    values = np.ones((10, LAYOUT.pitch), np.uint32)

    with pytest.raises(TierFullError, match=r"there is no space for more rows in .*No space"):
        tier.put(keys, values)
    with pytest.raises(TierFullError):
        tier.remove(keys)
    with pytest.raises(TierFullError):
        tier.merge()

    check(tier, rows, np.arange(9_000, 9_010, dtype=np.uint64))
    system.is_refusing = False
    tier.put(keys, values)
    note(rows, keys, values)
    tier.merge()
    check(tier, rows, keys)
    assert tier.stats().logged_keys == 0
    tier.close()


@pytest.mark.parametrize("call", ["write", "sync", "write_extents"])
def test_after_a_failed_write_nothing_goes_on_and_a_new_start_has_all(
    tmp_path: Path, call: str
) -> None:
    system = RefusingSystem({call}, errno.EIO)
    tier, rows = filled(tmp_path, system)
    tier.sync()
    system.is_refusing = True
    with pytest.raises(TierFailedError, match="can't be written: Input/output error"):
        tier.merge()
    system.is_refusing = False
    calls: list[Callable[[], object]] = [
        tier.sync,
        tier.stats,
        tier.merge,
        lambda: tier.read(np.zeros(1, np.uint64)),
        lambda: tier.remove(np.zeros(1, np.uint64)),
    ]
    for each in calls:
        with pytest.raises(TierFailedError):
            each()
    tier.close()

    tier = opened(tmp_path)
    check(tier, rows, np.arange(9_000, 9_010, dtype=np.uint64))
    tier.close()


def changed(path: Path, offset: int, byte: int = 0x55) -> None:
    """Change a byte of a file."""
    with path.open("rb+") as file:
        file.seek(offset)
        before = file.read(1)
        file.seek(offset)
        file.write(bytes([before[0] ^ byte]))


def test_a_torn_page_is_named(tmp_path: Path) -> None:
    tier, _ = filled(tmp_path, System())
    tier.merge()
    tier.close()
    changed(tmp_path / "pages", PAGES_OFFSET + 7 * 4096 + 3_000)
    # The last batch alone is written again, and this page isn't one of it.
    (tmp_path / "journal").unlink()

    tier = opened(tmp_path)
    with pytest.raises(TierDamagedError, match=r"pages is damaged at page 7: its checksum"):
        tier.read(np.arange(7_000, dtype=np.uint64))
    with pytest.raises(TierDamagedError, match="page 7"):
        content(tier)
    tier.close()


def test_a_page_at_another_ones_place_is_named(tmp_path: Path) -> None:
    tier, _ = filled(tmp_path, System())
    tier.merge()
    tier.close()
    (tmp_path / "journal").unlink()
    with (tmp_path / "pages").open("rb+") as file:
        file.seek(PAGES_OFFSET + 4096)
        page = file.read(4096)
        file.seek(PAGES_OFFSET + 3 * 4096)
        file.write(page)

    tier = opened(tmp_path)
    with pytest.raises(TierDamagedError, match="page 3"):
        content(tier)
    tier.close()


def test_the_end_of_a_log_may_be_torn_and_nothing_before(tmp_path: Path) -> None:
    tier, rows = filled(tmp_path, System())
    tier.sync()
    keys = np.arange(5, dtype=np.uint64)
    tier.remove(keys)
    tier.close()
    path = tmp_path / "log-00000002"
    size = path.stat().st_size

    changed(path, size - 3)
    tier = DiskTier(tmp_path, LAYOUT)
    check(tier, rows, keys)
    tier.remove(keys)
    forget(rows, keys)
    tier.close()
    tier = DiskTier(tmp_path, LAYOUT)
    check(tier, rows, keys)
    tier.close()

    changed(path, 9_000)
    with pytest.raises(TierDamagedError, match=r"log-00000002 is damaged at byte 8,192"):
        opened(tmp_path)


def test_a_missing_or_foreign_part_is_named(tmp_path: Path) -> None:
    tier, _ = filled(tmp_path, System())
    tier.close()
    path = tmp_path / "log-00000002"
    path.rename(tmp_path / "log-00000003")
    with pytest.raises(TierDamagedError, match=r"segment 2 of the log: .* only \[3\]"):
        opened(tmp_path)
    (tmp_path / "log-00000003").rename(path)
    changed(path, 20)
    with pytest.raises(TierDamagedError, match="isn't a segment of this log"):
        opened(tmp_path)
    changed(path, 20)
    for slot in range(2):
        changed(tmp_path / "pages", slot * 8192 + 40)
    with pytest.raises(TierDamagedError, match="its beginning: no state is whole"):
        opened(tmp_path)
    (tmp_path / "pages").unlink()
    with pytest.raises(TierFolderError, match="its file of pages is gone"):
        opened(tmp_path)


def test_another_format_is_refused(tmp_path: Path) -> None:
    opened(tmp_path).close()
    content_before = (tmp_path / "pages").read_bytes()
    magic = content_before[:8]
    facts = unpack_slot(magic, content_before[:8192])
    assert facts is not None
    slot = pack_slot(magic, {**facts, "format": 2})
    (tmp_path / "pages").write_bytes(slot + content_before[8192:])

    with pytest.raises(TierFolderError, match="their format is 2, and this program's 1"):
        opened(tmp_path)


def test_a_file_that_can_not_be_read_is_named(tmp_path: Path) -> None:
    tier, _ = filled(tmp_path, System())
    tier.merge()
    os.truncate(tmp_path / "pages", PAGES_OFFSET + 8 * 4096)

    with pytest.raises(TierReadError, match="pages can't be read: the file ends"):
        content(tier)

    tier.close()


def test_errors_can_be_caught_as_one() -> None:
    assert issubclass(TierFullError, FleetError)
    assert TierFullError.retryable
    assert not TierFailedError.retryable


class FullOnce(ScratchSystem):
    """A disk on which files can't grow for a while."""

    is_full = False

    @override
    def claim(self, file: int, num_bytes: int) -> None:
        if self.is_full and num_bytes > os.fstat(file).st_size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().claim(file, num_bytes)


def test_a_merge_after_one_that_failed_takes_what_came_since(tmp_path: Path) -> None:
    system, keys = FullOnce(), np.arange(600, dtype=np.uint64)
    tier = DiskTier(tmp_path, LAYOUT, TierOptions(memory_bytes=1, system=system))
    rows = [np.full((keys.size, LAYOUT.row_bytes // 4), each, np.uint32) for each in range(3)]
    tier.put(keys, rows[0])
    system.is_full = True
    with pytest.raises(TierFullError):
        tier.merge()
    tier.put(keys[:50], rows[1][:50])
    system.is_full = False

    tier.write_back(keys, rows[2])

    assert tier.stats().logged_keys == 0
    assert np.array_equal(tier.read(keys)[1], rows[2])
    tier.close()


def test_a_link_in_place_of_a_file_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"not ours")
    for name in ("lock", "pages.draft"):
        folder = tmp_path / name.replace(".", "-")
        folder.mkdir()
        (folder / name).symlink_to(target)

        with pytest.raises(FleetError, match="symbolic link"):
            DiskTier(folder, LAYOUT)

    assert target.read_bytes() == b"not ours"


def test_no_room_for_a_folder_or_a_file_is_a_full_disk(tmp_path: Path) -> None:
    class NoFiles(ScratchSystem):
        @override
        def open(self, path: Path, *, direct: bool) -> tuple[int, bool]:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with pytest.raises(TierFullError, match="Too many open files"):
        DiskTier(tmp_path / "tier", LAYOUT, TierOptions(system=NoFiles()))
