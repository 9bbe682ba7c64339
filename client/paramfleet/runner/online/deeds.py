"""What is saved and published between two passes, and the lists of it: worker 0 does it.

The others go on to the next pass and wait there. In sync all of them shrink together.
"""

import logging
from collections.abc import Callable
from datetime import UTC, datetime

import paramfleet as fleet
from paramfleet.runner.online.calendar import Place
from paramfleet.runner.online.course import Course, Deed, Written
from paramfleet.runner.online.donefiles import (
    BASES,
    CHECKPOINTS,
    DELTAS,
    base_line,
    checkpoint_line,
    delta_line,
    new_id,
    new_key,
)
from paramfleet.runner.online.model_folder import ModelFolder
from paramfleet.runner.online.state import OnlineState
from paramfleet.session.checkpoint.exports.modes import NoBaseError

__all__ = ["Deeds", "written_of"]

log = logging.getLogger(__name__)


class Deeds:
    """Does what a course says, but training.

    Args:
        folder: Gets it.
        state: Goes into every checkpoint.
        in_sync: Whether all workers shrink together.
    """

    def __init__(
        self,
        folder: ModelFolder,
        state: OnlineState,
        *,
        in_sync: bool,
        say: Callable[[str], None],
    ) -> None:
        self._say = say
        self._folder = folder
        self._state = state
        self._in_sync = in_sync
        self._is_first = fleet.is_first_worker()
        self._warned = False
        self.monitor = ""
        """The metrics of the pass before, as a text."""

    def do(self, deed: Deed, course: Course) -> int:
        """Do one; every worker calls it.

        Returns:
            The key of a base that was made, or was there; 0 without one, and in other workers.

        Raises:
            FleetError: what went wrong.
        """
        if deed.kind == "begin_day":
            fleet.set_date(deed.place.day)
        elif deed.kind == "shrink":
            self._shrink(deed)
        elif deed.kind == "batch":  # in every worker a day ends
            self._state.is_at(deed.place, base_key=course.base_key)
            self._save(deed.place, mode=3)
        elif not self._is_first:
            return 0
        elif deed.kind == "checkpoint":
            self._state.is_at(deed.place, base_key=course.base_key)
            self._save(deed.place)
        elif deed.kind == "list":
            self._list(deed.place, key=course.base_key)
        elif deed.kind == "base":
            return self._kept(deed.place, course) or self._base(deed.place)
        elif deed.kind == "delta":
            return self._delta(deed, course)
        return 0

    def _save(self, place: Place, *, mode: int = 0) -> None:
        folder = self._folder.checkpoint(place)
        fleet.save_persistables(folder, mode=mode)
        self._say(f"checkpoint saved: {folder}")

    def _shrink(self, deed: Deed) -> None:
        if self._in_sync or self._is_first:
            gone = fleet.shrink()
            if self._is_first and gone:
                log.info("worker.day_shrunk", extra={"day": deed.place.day, "rows": gone})

    def _list(self, place: Place, *, key: int) -> None:
        """Write the line of a checkpoint, if it isn't there."""
        if place not in self._folder.written().listed:
            path = str(self._folder.checkpoint(place))
            self._folder.add(CHECKPOINTS, checkpoint_line(place, key=key, path=path))

    def _kept(self, place: Place, course: Course) -> int:
        """Return the key of a base that an interrupted training has published; 0 for none.

        It is of the model of that training. In sync that is this one, to the bit; else they
        differ somewhat, and readers have its rows until others come.
        """
        key = course.key_of(place)
        if key and not self._in_sync:
            facts = {"folder": str(self._folder.base(place)), "key": key}
            reason = "its data were trained again, and not in sync: the values differ"
            remedy = (
                f"to make it again, remove its line from {BASES}, and move newer checkpoints "
                "to another folder before the next start"
            )
            more = {"reason": reason, "remedy": remedy}
            log.warning("worker.base_kept", extra={**facts, **more})
        return key

    def _base(self, place: Place) -> int:
        path = self._folder.base(place)
        key = new_key(self._folder.written(), now=_now())
        fleet.save_inference_model(path, mode=2)
        self._folder.add(BASES, base_line(key=key, path=str(path), monitor=self.monitor))
        log.info("worker.base_published", extra={"folder": str(path), "key": key})
        self._say(f"base published: {path}")
        return key

    def _delta(self, deed: Deed, course: Course) -> int:
        """Publish a delta; a base where it isn't known what has changed: return its key."""
        if course.has_delta(deed.place):
            return 0
        if made := self._kept(deed.place, course):  # in its place
            return made
        key, path = course.base_key, self._folder.delta(deed.place)
        if not key:
            if not self._warned:
                reason = "no base has been published that this delta could follow"
                remedy = (
                    "set runner.save_first_base: true, to have one before the first pass; else "
                    "deltas begin after the base at the end of this day"
                )
                facts = {"folder": str(path), "reason": reason, "remedy": remedy}
                log.warning("worker.delta_without_base", extra=facts)
            self._warned = True
            return 0
        try:
            fleet.save_inference_model(path, mode=1)
        except NoBaseError as error:
            facts = {"delta": error.path, "reason": error.reason, "instead": "a base"}
            log.info("worker.base_for_delta", extra=facts)
            return self._base(deed.place)
        identity = new_id(self._folder.read(DELTAS), now=_now())
        line = delta_line(identity=identity, key=key, path=str(path), monitor=self.monitor)
        self._folder.add(DELTAS, line)
        log.info("worker.delta_published", extra={"folder": str(path), "key": key})
        self._say(f"delta published: {path}")
        return 0


def written_of(folder: ModelFolder) -> Written:
    """Return what the lists name: worker 0 asks, for the others nothing is written."""
    return folder.written() if fleet.is_first_worker() else Written()


def _now() -> int:
    return int(datetime.now(UTC).timestamp())
