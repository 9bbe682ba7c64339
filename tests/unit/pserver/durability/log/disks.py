"""Disks that fail, are full or lose power when a test says so; below them are real files."""

import errno
import os
import random
from collections.abc import Sequence
from pathlib import Path

from paramfleet_pserver.durability.log.core.batching import Buffer
from paramfleet_pserver.durability.log.disk import Disk

SECTOR = 64
"""Bytes that a disk writes whole; small, so that small logs are torn in many places."""


class FailingDisk(Disk):
    """Fails the calls that are named, as often as is said."""

    def __init__(self) -> None:
        self.faults: dict[str, list[OSError]] = {}
        self.calls: list[str] = []

    def fail(self, call: str, code: int = errno.EIO, times: int = 1) -> None:
        self.faults.setdefault(call, []).extend([OSError(code, os.strerror(code))] * times)

    def _meet(self, call: str) -> None:
        self.calls.append(call)
        if self.faults.get(call):
            raise self.faults[call].pop()

    def create(self, path: Path, num_bytes: int) -> int:
        self._meet("create")
        return super().create(path, num_bytes)

    def write(self, file: int, parts: Sequence[Buffer], offset: int) -> None:
        if self.faults.get("write"):
            super().write(file, [b"".join(parts)[:70]], offset)  # a part of it is there
        self._meet("write")
        super().write(file, parts, offset)

    def sync(self, file: int) -> None:
        self._meet("sync")
        super().sync(file)

    def rename(self, path: Path, target: Path) -> None:
        self._meet("rename")
        super().rename(path, target)
        self._meet("renamed")

    def remove(self, path: Path) -> None:
        self._meet("remove")
        super().remove(path)


class EndedError(Exception):
    """The process has ended."""


class LosingDisk(Disk):
    """Loses what wasn't synced: any part of it, in any order.

    A sync may also fail: then what was written since the one before is never written, though
    files read well and later syncs succeed.

    Args:
        rng: Decides what is lost.
        failing: Of syncs, the share that fails.
    """

    def __init__(self, rng: random.Random, failing: float = 0.0) -> None:
        self.left = 0
        """Calls until the process ends."""
        self._rng = rng
        self._failing = failing
        self._paths: dict[int, Path] = {}
        self._synced: dict[int, bytearray] = {}
        self._dirty: dict[int, set[int]] = {}

    def _tick(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise EndedError

    def create(self, path: Path, num_bytes: int) -> int:
        self._tick()
        file = super().create(path, num_bytes)
        self._paths[file] = path
        self._synced[file], self._dirty[file] = bytearray(num_bytes), set()
        return file

    def write(self, file: int, parts: Sequence[Buffer], offset: int) -> None:
        num_bytes = sum(memoryview(part).nbytes for part in parts)
        super().write(file, parts, offset)
        self._dirty[file] |= set(range(offset // SECTOR, (offset + num_bytes) // SECTOR + 1))
        self._tick()

    def sync(self, file: int) -> None:
        self._tick()
        if self._rng.random() < self._failing:
            self._keep(file, [s for s in self._dirty[file] if self._rng.random() < 0.5])
            self._dirty[file].clear()
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self._keep(file, self._dirty[file])
        self._dirty[file].clear()
        self._tick()

    def _keep(self, file: int, sectors: Sequence[int] | set[int]) -> None:
        content = os.pread(file, len(self._synced[file]), 0)
        for sector in sectors:
            part = slice(sector * SECTOR, (sector + 1) * SECTOR)
            self._synced[file][part] = content[part]

    def rename(self, path: Path, target: Path) -> None:
        path.rename(target)
        for file, name in self._paths.items():
            if name == path:
                self._paths[file] = target
        try:
            self._tick()
        except EndedError:
            if self._rng.random() < 0.5:
                target.rename(path)
                for file, name in self._paths.items():
                    if name == target:
                        self._paths[file] = path
            raise

    def remove(self, path: Path) -> None:
        self._tick()
        super().remove(path)

    def close(self, file: int) -> None:
        """Keep it open: what wasn't synced can still be lost."""

    def lose(self) -> None:
        """Lose the power: leave in the files what the disk has."""
        for file, path in self._paths.items():
            self._keep(file, [s for s in self._dirty[file] if self._rng.random() < 0.5])
            if path.exists() and path.stat().st_ino == os.fstat(file).st_ino:
                path.write_bytes(self._synced[file])
            os.close(file)
        self._paths.clear()
