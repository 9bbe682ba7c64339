"""When a launch tells that a pserver's disk takes no change, and that it does again."""

import errno
from collections.abc import Mapping
from typing import Any

from paramfleet_shared.values.texts import printable, shortened

__all__ = ["DiskFaults"]

AGAIN_AFTER_S = 60.0
"""Seconds until the next word about the same pserver: a disk may be full again and again."""

_FULL = tuple(f"[Errno {number}]" for number in (errno.ENOSPC, errno.EDQUOT))


class DiskFaults:
    """The pservers of one job whose disk takes no change, as its launcher sees them.

    Args:
        folder: The data folder; empty if it isn't known.
    """

    def __init__(self, folder: str) -> None:
        self._folder = f"its data folder {folder}" if folder else "its data folder"
        self._told_at: dict[int, float] = {}
        self._faulty: set[int] = set()

    def see(self, status: Mapping[str, Any], now: float) -> list[str]:
        """Take what ``/api/v1/status`` answers; return the lines to say.

        Raises:
            KeyError: if a server in it has no index.
            TypeError: if it is no status.
            ValueError: as before.
        """
        lines = []
        for server in status.get("servers", ()):
            index, fault = int(server["index"]), server.get("disk_fault")
            if not fault and index in self._faulty:
                self._faulty.discard(index)
                lines.append(f"pserver {index} writes to {self._folder} again")
            elif fault and index not in self._faulty:
                last = self._told_at.get(index)
                if last is not None and now - last < AGAIN_AFTER_S:
                    continue
                self._told_at[index] = now
                self._faulty.add(index)
                lines.append(f"warning: pserver {index} {self._words(str(fault))}")
        return lines

    def _words(self, fault: str) -> str:
        is_full = any(each in fault for each in _FULL)
        until = "there is room" if is_full else "the disk takes changes again"
        why = shortened(printable(fault, lines=False))
        return f"can't write to {self._folder}: {why}; training waits until {until}"
