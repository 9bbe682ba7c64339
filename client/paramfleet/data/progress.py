"""How far a dataset has been used: plain values that a checkpoint can hold."""

from collections.abc import Mapping, Sequence
from typing import Any

from paramfleet_shared.errors import ContractError

__all__ = ["OtherDataError", "Progress"]

_VERSION = 1


class OtherDataError(ContractError):
    """A saved position belongs to other files, or to another kind of dataset."""

    code = "contract.other_data"

    def __init__(self, *, what: str, saved: Any, here: Any) -> None:
        super().__init__(
            f"the saved position is of other data: {what} was {saved!r} and is {here!r}",
            what=what,
            saved=saved,
            here=here,
        )
        self.what = what
        self.saved = saved
        self.here = here


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
        lines = {str(number): line for number, line in sorted(self.lines.items())}
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


def require_same(state: Mapping[str, Any], what: str, here: Any) -> None:
    """See that a state has a value.

    Raises:
        OtherDataError: if it has another.
    """
    if state.get(what) != here:
        raise OtherDataError(what=what, saved=state.get(what), here=here)
