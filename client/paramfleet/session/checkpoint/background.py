"""Checkpoints without a caller that waits: the result is reported, a failure ends nothing.

A save begins in the training thread, which waits until every pserver has its image, some
milliseconds. A thread of its own waits for the rest, while the training goes on. There is one
at a time. One that a pserver loses, because its process is replaced, begins again between two
later steps.
"""

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from paramfleet.session.checkpoint.cuts import ATTEMPTS
from paramfleet_shared.checkpoint.cuts import Cut, SaveGoneError
from paramfleet_shared.errors import FleetError
from paramfleet_shared.system.clock import Clock

__all__ = ["BackgroundSaves", "Outcome", "Writing", "not_begun"]

log = logging.getLogger(__name__)

Outcome = dict[str, Any]
"""``dirname``, ``seconds``, ``error`` (empty if it is written), ``consistent`` (None if it
isn't written), ``reason`` (why it isn't a consistent cut), ``paused_s``, and ``incremental``:
whether it is written, and holds only what changed."""


def not_begun(folder: Path | str, error: FleetError) -> Outcome:
    """Log why a save could not even begin, and return its outcome."""
    log.warning("worker.checkpoint_failed", extra={"folder": str(folder), "reason": str(error)})
    return {
        "dirname": str(folder),
        "seconds": 0.0,
        "error": str(error),
        "consistent": None,
        "reason": "",
        "paused_s": 0.0,
        "incremental": False,
    }


class Writing(Protocol):
    """A save that has begun."""

    @property
    def is_beside(self) -> bool:
        """Whether it is written beside the training; else all is written already."""

    @property
    def is_increment(self) -> bool:
        """Whether only what changed since another one is written."""

    def end(self) -> Cut:
        """Wait until all is written; any thread may call it.

        Raises:
            SaveGoneError: if it is to begin again.
            FleetError: if it failed.
        """


class BackgroundSaves:
    """The save of this worker that is on its way. The training thread owns it.

    Args:
        clock: For how long they take.
    """

    def __init__(self, clock: Clock) -> None:
        self._begin: Callable[[Path], Writing] | None = None
        self._clock = clock
        self._folder = Path()
        self._then: Callable[[Outcome], None] = lambda _: None
        self._began = 0.0
        self._attempt = 0
        self._thread: threading.Thread | None = None
        self._gone: SaveGoneError | None = None
        """Why the newest attempt is to be made again."""

    @property
    def is_busy(self) -> bool:
        """Return whether a save is on its way."""
        is_alive = self._thread is not None and self._thread.is_alive()
        return is_alive or self._gone is not None

    def start(
        self, begin: Callable[[Path], Writing], folder: Path, then: Callable[[Outcome], None]
    ) -> None:
        """Begin a save; one that is on its way is waited for.

        Args:
            begin: Begins it in a folder; waits for the images only.
            folder: Where to.
            then: Called once with what has become of it, by this or another thread.
        """
        self.settle()
        self._begin, self._folder, self._then = begin, folder, then
        self._began, self._attempt = self._clock.monotonic(), 0
        self._try()

    def look(self) -> None:
        """Begin a save again that a pserver has lost; called between two steps."""
        if self._gone is not None and not (
            self._thread is not None and self._thread.is_alive()
        ):
            self._try()

    def settle(self) -> None:
        """Wait until no save is on its way."""
        while self._thread is not None or self._gone is not None:
            if self._thread is not None:
                self._thread.join()
                self._thread = None
            self.look()

    def _try(self) -> None:
        assert self._begin is not None, "one was started"
        self._attempt += 1
        self._gone = None
        try:
            writing = self._begin(self._folder)
        except FleetError as error:
            self._report(error=str(error))
            return
        if not writing.is_beside:
            self._end(writing)
            return
        self._thread = threading.Thread(
            target=self._end, args=(writing,), name="paramfleet-checkpoint", daemon=True
        )
        self._thread.start()

    def _end(self, writing: Writing) -> None:
        try:
            cut = writing.end()
        except SaveGoneError as error:
            if self._attempt < ATTEMPTS:
                facts = {"folder": str(self._folder), "reason": str(error)}
                log.warning("worker.checkpoint_begins_again", extra=facts)
                self._gone = error
            else:
                self._report(error=str(error))
        except FleetError as error:
            self._report(error=str(error))
        except Exception as error:  # the boundary of the thread
            log.exception("worker.checkpoint_thread_failed")
            self._report(error=f"{type(error).__name__}: {error}")
        else:
            self._report(cut=cut, incremental=writing.is_increment)

    def _report(
        self, *, cut: Cut | None = None, error: str = "", incremental: bool = False
    ) -> None:
        if error:
            facts = {"folder": str(self._folder), "reason": error}
            log.warning("worker.checkpoint_failed", extra=facts)
        self._then(
            {
                "dirname": str(self._folder),
                "seconds": round(self._clock.monotonic() - self._began, 3),
                "error": error,
                "consistent": None if cut is None else cut.consistent,
                "reason": "" if cut is None else cut.reason,
                "paused_s": 0.0 if cut is None else cut.paused_s,
                "incremental": incremental,
            }
        )
