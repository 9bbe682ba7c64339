"""The folders of one training's owners: each that goes on with it from memory has its own.

::

    RUN/                snapshots and the log of the owner that began the training
    RUN/term-<t>-<p>/   of the owner of a later term, whose log begins behind position p

The newest one that has a snapshot is gone on with. An owner that follows another one may not
have its last commands, and has others in their place: so it doesn't continue that one's log.
What is there stays until its own snapshot is, so that one is always whole.
"""

import re
import shutil
import stat
from pathlib import Path
from typing import NamedTuple

from paramfleet_pserver.durability.recovery import LOG_FOLDER
from paramfleet_pserver.durability.snapshot_files import newest_snapshot

__all__ = ["Life", "new_life", "newest_life", "remove_others"]

_LIFE = re.compile(r"term-(\d{1,16})-(\d{1,16})")


class Life(NamedTuple):
    """A folder of one owner."""

    term: int
    position: int
    """Its log begins behind it."""
    path: Path


def newest_life(folder: Path) -> Life:
    """Return what the newest owner has left that got as far as to have a snapshot.

    Raises:
        OSError: if the system refuses.
    """
    lives = sorted(_lives(folder), reverse=True)
    whole = (life for life in lives if newest_snapshot(life.path) is not None)
    return next(whole, Life(0, 0, folder))


def new_life(folder: Path, term: int, position: int) -> Path:
    """Make the folder of an owner, empty.

    Raises:
        OSError: if the system refuses.
    """
    path = folder / f"term-{term}-{position}"
    if path.is_dir():
        shutil.rmtree(path)  # a former attempt of this process
    path.mkdir(mode=0o700, parents=True)
    return path


def remove_others(folder: Path, live: Path) -> None:
    """Remove what owners before the living one have left.

    Raises:
        OSError: if the system refuses; the rest stays.
    """
    for life in _lives(folder):
        if life.path != live:
            shutil.rmtree(life.path)
    if live == folder:
        return
    for path in folder.glob("snapshot-*"):
        path.unlink(missing_ok=True)
    if (folder / LOG_FOLDER).is_dir():
        shutil.rmtree(folder / LOG_FOLDER)


def _lives(folder: Path) -> list[Life]:
    if not folder.is_dir():
        return []
    named = ((_LIFE.fullmatch(path.name), path) for path in folder.iterdir())
    return [
        Life(int(name[1]), int(name[2]), path)
        for name, path in named
        if name and stat.S_ISDIR(path.lstat().st_mode)  # a link may lead anywhere
    ]
