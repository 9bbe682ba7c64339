"""The newest checkpoint of a job that has ended, as the disk has it.

Workers publish a checkpoint with their next heartbeat, so that a job may have written newer
ones, and removed those that it doesn't keep.
"""

import os
from pathlib import Path

from paramfleet_shared.checkpoint.numbering import number_of, step_of
from paramfleet_worker.core.showing.saved import Saved

__all__ = ["newest_beside"]

_MANIFEST = "manifest.json"


def newest_beside(saved: Saved) -> Saved:
    """Return the newest complete checkpoint in the folder of a numbered one.

    Args:
        saved: Which a worker has published last. It is returned itself if it isn't numbered, or
            its folder can't be listed here, such as one at an address.
    """
    path = Path(saved.folder)
    number = number_of(path.name)
    if number is None or not path.is_absolute():
        return saved
    try:
        names = os.listdir(path.parent)  # noqa: PTH208 - raises at once
    except OSError:
        return saved
    complete = [
        (found, name)
        for name in names
        if (found := number_of(name)) is not None
        and found > number
        and (path.parent / name / _MANIFEST).is_file()
    ]
    if not complete:
        return saved
    newest = max(complete)[1]
    return Saved(str(path.parent / newest), step_of(newest))
