"""Hashes and writes bytes as a checkpoint's files are, and nothing else: see ``saving.py``.

``python bare_writer.py FOLDER BYTES`` waits for a line of its input, then writes, and ends.
"""

import hashlib
import os
import sys
from pathlib import Path

FILE_BYTES = 134 << 20
"""About those of a shard's file."""

BLOCK = 8 << 20

NICENESS = 10
"""That of the threads that write checkpoints."""


def write(folder: Path, num_bytes: int) -> None:
    """Write so many bytes, in files of which each is on the disk before the next begins."""
    block = memoryview(os.urandom(BLOCK))
    for start in range(0, num_bytes, FILE_BYTES):
        digest = hashlib.sha256()
        with (folder / f"{start}").open("wb", buffering=0) as file:
            for at in range(start, min(start + FILE_BYTES, num_bytes), BLOCK):
                part = block[: min(BLOCK, num_bytes - at)]
                digest.update(part)
                file.write(part)
            os.fdatasync(file.fileno())


if __name__ == "__main__":
    os.nice(NICENESS)
    target = Path(sys.argv[1])
    target.mkdir()
    sys.stdin.readline()
    write(target, int(sys.argv[2]))
