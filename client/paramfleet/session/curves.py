"""What LocalSGD's exchanges cost, as curves for TensorBoard."""

from contextlib import ExitStack
from pathlib import Path

from paramfleet.telemetry.visual import Write, visual
from paramfleet.training.localsgd.core.ledger import Ledger

__all__ = ["Curves"]


class Curves:
    """Draws a point of each curve for each step with an exchange; the training thread's."""

    def __init__(self) -> None:
        self._ledger: Ledger | None = None
        self._drawn = 0
        self._stack = ExitStack()
        self._write: Write = lambda _group, _values, _step: None

    def begin(self, ledger: Ledger | None, folder: str, *, rank: int) -> None:
        """Draw from now on what a ledger counts, if there is one and a folder.

        Args:
            ledger: Of this worker.
            folder: Where to; empty for nowhere. This worker's files are in one of its own.
            rank: This worker's.

        Raises:
            TensorBoardMissingError: if there is no TensorBoard.
        """
        if ledger is None or ledger is self._ledger or not folder:
            return
        self._write = self._stack.enter_context(visual(Path(folder) / f"worker{rank}"))
        self._ledger = ledger
        ledger.watch = self._look

    def end(self) -> None:
        """Draw the last points and write the files; a second call does nothing."""
        if self._ledger is not None:
            self._draw(self._ledger, self._ledger.steps)
            self._ledger.watch = lambda: None
            self._ledger = None
        self._stack.close()

    def _look(self) -> None:
        """Draw the exchanges of the step before the one that has just been counted."""
        if self._ledger is not None:
            self._draw(self._ledger, self._ledger.steps - 1)

    def _draw(self, ledger: Ledger, step: int) -> None:
        if ledger.exchanges == self._drawn:
            return
        self._drawn = ledger.exchanges
        self._write("localsgd", ledger.figures(), step)
