"""Which checkpoint a job has written last, as its first worker has published it."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from paramfleet_shared.values.texts import printable, shortened

__all__ = ["Saved", "saved_of"]

_MOST_CHARACTERS = 4096


class Saved(NamedTuple):
    """A checkpoint that is complete."""

    folder: str
    step: int | None
    """The first worker's; None if that isn't known."""


def saved_of(workers: Mapping[int, Mapping[str, Any]]) -> Saved | None:
    """Return the checkpoint that was written last; None if nobody knows of one.

    Args:
        workers: What the workers published last, by rank.
    """
    told = workers.get(0, {}).get("saved")
    folder = told.get("folder") if isinstance(told, Mapping) else None
    if not isinstance(told, Mapping) or not isinstance(folder, str) or not folder:
        return None
    step = told.get("step")
    text = printable(shortened(folder, _MOST_CHARACTERS), lines=False)
    return Saved(text, step if type(step) is int else None)
