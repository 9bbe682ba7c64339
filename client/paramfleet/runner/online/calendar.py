"""Which passes there are: days, and the folders of a day in turn.

A core: it reads no clock and no folder.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from paramfleet.runner.config.days import day_after
from paramfleet.runner.config.online_settings import OnlineSettings

__all__ = ["Calendar", "Pass", "Place", "day_after"]


class Place(NamedTuple):
    """Where a training is: behind a pass. Places have the order of time."""

    day: str
    """As ``20260131``."""
    number: int
    """Passes of the day that are trained; 0 at its beginning."""


class Pass(NamedTuple):
    """What is trained between two places."""

    place: Place
    """The one behind it."""
    folders: tuple[str, ...]
    """Its parts of the day's folder, as ``0005``."""

    def __str__(self) -> str:
        return f"day {self.place.day}, pass {self.place.number}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Calendar:
    """The passes of a training."""

    days: tuple[str, ...]
    """In the order of time."""
    split_interval: int
    """Minutes of a folder."""
    split_per_pass: int
    """Folders of a pass."""
    num_passes: int
    """Of each day."""

    @staticmethod
    def of(settings: OnlineSettings) -> "Calendar":
        """Return that of a configuration.

        Raises:
            ValueError: if it has no days.
        """
        return Calendar(
            days=settings.training_days,
            split_interval=settings.split_interval,
            split_per_pass=settings.split_per_pass,
            num_passes=settings.pass_per_day or settings.passes_that_fit,
        )

    @property
    def not_read(self) -> tuple[str, ...]:
        """Return the folders of each day that are in no pass."""
        return tuple(self._folders())[self.num_passes * self.split_per_pass :]

    def after(self, place: Place | None) -> Pass | None:
        """Return the pass that follows a place, or the first one; None behind the last one."""
        for day in self.days:
            done = 0
            if place is not None and day <= place.day:
                done = place.number if day == place.day else self.num_passes
            if done < self.num_passes:
                return self._pass(Place(day, done + 1))
        return None

    def trained(self, place: Place) -> Pass | None:
        """Return the pass that ends at a place; None if none does."""
        if place.day not in self.days or not 1 <= place.number <= self.num_passes:
            return None
        return self._pass(place)

    def _pass(self, place: Place) -> Pass:
        begin = (place.number - 1) * self.split_per_pass
        return Pass(place, tuple(self._folders())[begin : begin + self.split_per_pass])

    def _folders(self) -> Iterator[str]:
        for number in range(24 * 60 // self.split_interval):
            hour, minute = divmod(number * self.split_interval, 60)
            yield f"{hour:02d}{minute:02d}"
