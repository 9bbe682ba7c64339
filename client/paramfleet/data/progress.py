"""How far a dataset has been used: plain values that a checkpoint can hold."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from paramfleet_shared.errors import ContractError

__all__ = ["FINISHED", "OtherDataError", "Progress", "among_workers"]

FINISHED = -1
"""Line of a file of which all has been used."""

_VERSION = 1


class OtherDataError(ContractError):
    """A saved position belongs to other files, or to another kind of dataset."""

    code = "contract.other_data"
    what: str
    saved: Any
    here: Any
    sentence = "the saved position is of other data: {what} was {saved!r} and is {here!r}"


class Progress:
    """The lines of each file that have been yielded, and the epoch.

    A position says more of the same: it is a mapping of ``lines`` by number of the file,
    where a file that is finished has -1.
    """

    def __init__(self) -> None:
        self.epoch = 0
        """Epochs that have ended."""
        self.lines: dict[int, int] = {}

    def advance(self, position: Mapping[str, Any]) -> None:
        """Take what a batch has used."""
        self.lines.update({int(number): line for number, line in position["lines"].items()})

    def end_epoch(self) -> None:
        """Begin anew with all files."""
        self.epoch += 1
        self.lines = {}

    def to_state(self, files: Sequence[str]) -> dict[str, Any]:
        """Return the position as JSON can hold it."""
        reached = self.lines.copy()  # at once: another thread may ask
        lines = {str(number): line for number, line in sorted(reached.items())}
        return {
            "version": _VERSION,
            "kind": "stream",
            "files": list(files),
            "epoch": self.epoch,
            "lines": lines,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any], files: Sequence[str]) -> "Progress":
        """Return the position of ``to_state``.

        Raises:
            OtherDataError: if it is one of other files.
        """
        require_same(state, "kind", "stream")
        require_same(state, "version", _VERSION)
        require_same(state, "files", list(files))
        progress = cls()
        progress.epoch = int(state["epoch"])
        progress.lines = {int(number): int(line) for number, line in state["lines"].items()}
        return progress


def among_workers(states: Sequence[Mapping[str, Any]], files: Sequence[str]) -> dict[str, Any]:
    """Return the position in some files that follows from those of all workers.

    Each file goes on where its reader was, whoever reads it now. A file whose reader had
    begun a later epoch is finished in this one; one that was read by several goes on where
    the first of them was, and one that no worker began starts at its beginning.

    Args:
        states: Every worker's, of ``Progress.to_state``.
        files: Those that are read here from now on.

    Raises:
        OtherDataError: if one is no position in a stream of files.
    """
    reached: dict[str, list[float]] = {}
    for state in states:
        require_same(state, "kind", "stream")
        require_same(state, "version", _VERSION)
    epoch = min(int(state["epoch"]) for state in states)
    for state in states:
        is_later = int(state["epoch"]) > epoch
        for number, file in enumerate(state["files"]):
            line = int(state["lines"].get(str(number), 0))
            ended = is_later or line == FINISHED
            reached.setdefault(str(file), []).append(math.inf if ended else line)
    least = {file: min(lines) for file, lines in reached.items()}
    lines = {
        str(number): FINISHED if least[file] == math.inf else int(least[file])
        for number, file in enumerate(files)
        if least.get(file)
    }
    return {
        "version": _VERSION,
        "kind": "stream",
        "files": list(files),
        "epoch": epoch,
        "lines": lines,
    }


def require_same(state: Mapping[str, Any], what: str, here: Any) -> None:
    """See that a state has a value.

    Raises:
        OtherDataError: if it has another.
    """
    if state.get(what) != here:
        raise OtherDataError(what=what, saved=state.get(what), here=here)
