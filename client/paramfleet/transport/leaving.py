"""A worker of an elastic job that is asked to leave before the others end.

SIGTERM asks, as a container's runtime does when it is scaled down. What the worker has
computed isn't thrown away: it leaves where its training allows it, at a step's end. Where
nothing of it is on its way (before its first step, and when it only waits for the others'
end) it leaves at once.

The main thread owns all this.
"""

import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["Departure"]

log = logging.getLogger(__name__)


class Departure:
    """Whether this worker was asked to leave, and whether it may at once."""

    def __init__(self) -> None:
        self.asked = False
        self._at_rest = True
        self._pid = os.getpid()

    def listen(self) -> None:
        """Take SIGTERM for the question, unless the script has a handler of its own."""
        if threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            self._pid = os.getpid()
            signal.signal(signal.SIGTERM, self._receive)

    def begin(self) -> None:
        """Note that the training begins: from now on only a step's end is a good moment."""
        self._at_rest = False

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """Mark a wait in which nothing of this worker is on its way.

        Raises:
            SystemExit: if it was asked to leave, or is in the meantime.
        """
        self._at_rest = True
        try:
            self.exit_if_asked()
            yield
        finally:
            self._at_rest = False

    def _receive(self, number: int, frame: Any) -> None:
        del frame
        if os.getpid() != self._pid:  # a fork, such as a loader's: it isn't the worker
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        if not self.asked:
            log.warning("worker.leaving", extra={"signal": signal.Signals(number).name})
        self.asked = True
        if self._at_rest:
            self.exit_if_asked()

    def exit_if_asked(self) -> None:
        """End the script if it may end here.

        Raises:
            SystemExit: with 0, if this worker was asked to leave.
        """
        if self.asked:
            raise SystemExit(0)
