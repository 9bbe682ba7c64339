"""The data of the next pass: waited for by all workers together, and read ahead.

Worker 0 looks, and tells the others what there is, so that all train the same files. Between
two looks every worker carries out an operator's commands, and any of them may end the wait.
"""

import logging
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import paramfleet as fleet
from paramfleet.data.reading.files import CannotReadFileError
from paramfleet.runner.models.model import Model
from paramfleet.runner.online.calendar import Pass
from paramfleet.runner.online.data.data_folders import DataFolders, Look
from paramfleet.runner.online.data.pass_data import PassData
from paramfleet.runner.online.errors import DataMissingError, DataNotComeError
from paramfleet.runner.online.workers import agree, idle, stops, tell
from paramfleet.runner.showing.display import Display
from paramfleet_shared.system.clock import Clock

__all__ = ["Coming"]

_TOLD_S = 600.0
"""Seconds between two lines of a wait."""

log = logging.getLogger(__name__)


class Coming:
    """The pass that comes, in this worker.

    Args:
        model: Says the slots.
        clock: For waits.
        display: Shows them.
    """

    def __init__(self, model: Model[Any], clock: Clock, display: Display) -> None:
        self._model = model
        self._runner = model.config.runner
        self._folders = DataFolders(model.config)
        self._clock = clock
        self._display = display
        self._ahead: tuple[Pass, tuple[str, ...], PassData] | None = None

    def wait(self, coming: Pass) -> Sequence[str] | None:
        """Return the files of a pass as soon as they are there; every worker calls it.

        Returns:
            Those of all workers; None if the job is to end.

        Raises:
            DataMissingError: if a folder isn't there, and no file says when it is.
            DataNotComeError: if the data doesn't come in time.
            CannotReadFileError: if a folder can't be looked into.
            FleetError: if the job failed.
        """
        began, told_at = self._clock.monotonic(), None
        while True:
            said = agree(stop=stops(), look=self._look(coming, began))
            if any(each["stop"] for each in said):
                return None
            found = said[0]["look"]
            _raise_what_is_wrong(coming, found)
            if not found["waits_for"]:
                return list(found["files"])
            now = self._clock.monotonic()
            facts = {"waits_for": found["waits_for"], "reason": found["reason"]}
            tell(
                day=coming.place.day,
                **{"pass": coming.place.number},
                state="waiting for data",
                waited_s=round(now - began),
                **facts,
            )
            if told_at is None or now - told_at >= _TOLD_S:
                told_at = now
                if fleet.is_first_worker():
                    log.info("worker.waits_for_data", extra={"part": str(coming), **facts})
                self._display.say(f"{coming}: waits for {found['waits_for']}")
            idle(self._runner.data_sleep_second)

    def take(self, coming: Pass, files: Sequence[str]) -> PassData:
        """Return the data of a pass: what was read ahead, or what is to be read."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead[0] == coming and list(ahead[1]) == list(files):
            return ahead[2]
        return PassData(self._model, coming, files)

    def prefetch(self, coming: Pass | None) -> None:
        """Begin to read the pass behind the one that is trained, if its data is there.

        Every worker calls it.

        Raises:
            CannotReadFileError: if a file isn't there.
            FleetError: if the job failed.
        """
        if not self._runner.prefetch or coming is None:
            return
        look = None
        if fleet.is_first_worker():
            try:
                look = self._folders.look(coming)
            except CannotReadFileError:  # the wait for it will say so
                look = None
        there = look is not None and look.is_there
        files = agree(files=look.files if look is not None and there else ())[0]["files"]
        if not files:
            return
        data = PassData(self._model, coming, files)
        data.preload()
        self._ahead = (coming, tuple(files), data)

    @property
    def ahead(self) -> PassData | None:
        """The data that is read ahead; None if none is."""
        return None if self._ahead is None else self._ahead[2]

    def _look(self, coming: Pass, began: float) -> dict[str, Any] | None:
        """Return what worker 0 sees; None in others."""
        if not fleet.is_first_worker():
            return None
        if self._ahead is not None and self._ahead[0] == coming:
            return {**asdict(Look(files=self._ahead[1])), "unreadable": "", "waited_s": 0.0}
        waited_s = self._clock.monotonic() - began
        late_s = waited_s if waited_s >= self._runner.data_wait_s else 0.0
        try:
            found = self._folders.look(coming)
        except CannotReadFileError as error:
            facts = asdict(Look(reason=error.reason))
            return {**facts, "unreadable": error.file, "waited_s": late_s}
        return {**asdict(found), "unreadable": "", "waited_s": late_s}


def _raise_what_is_wrong(coming: Pass, found: dict[str, Any]) -> None:
    """Raise the same error in every worker.

    Raises:
        DataMissingError: if a folder isn't there, and no file says when it is.
        DataNotComeError: if the data didn't come in time.
        CannotReadFileError: if a folder can't be looked into.
    """
    if found["unreadable"]:
        raise CannotReadFileError(file=found["unreadable"], reason=found["reason"])
    if found["missing"]:
        raise DataMissingError(part=str(coming), folder=found["missing"])
    if found["waits_for"] and found["waited_s"]:
        raise DataNotComeError(
            part=str(coming), waits_for=found["waits_for"], seconds=round(found["waited_s"], 1)
        )
