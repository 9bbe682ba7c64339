"""The place of a training by days, as each of its checkpoints has it.

So no list beside the checkpoints can say of one that it is another's.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from paramfleet.runner.online.calendar import Calendar, Place
from paramfleet.runner.online.errors import OtherPassesError
from paramfleet_shared.files.documents import whole

__all__ = ["OnlineState", "Saved"]

_VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Saved:
    """What a checkpoint says."""

    day: str = ""
    """Empty before the first pass."""
    number: int = 0
    """Passes of the day that were trained."""
    base_key: int = 0
    """Of the newest base; 0 if there is none."""
    inside: bool = False
    """Whether it was taken while the next pass was trained."""
    split_interval: int = 0
    split_per_pass: int = 0

    @property
    def place(self) -> Place | None:
        """Return the place; None before the first pass."""
        return Place(self.day, self.number) if self.day else None

    def check(self, calendar: Calendar, path: str) -> None:
        """Pass if a training by these passes goes on from it.

        Args:
            calendar: The passes.
            path: The checkpoint's.

        Raises:
            OtherPassesError: if it was taken within a day of other passes.
        """
        if not self.number:
            return
        now = (calendar.split_interval, calendar.split_per_pass)
        if (self.split_interval, self.split_per_pass) != now:
            rule = (
                f"is of day {self.day}, pass {self.number}, with split_interval = "
                f"{self.split_interval} and split_per_pass = {self.split_per_pass}, and now "
                f"they are {now[0]} and {now[1]}: change them at the beginning of a day"
            )
            raise OtherPassesError(path=path, rule=rule)
        if self.day in calendar.days and self.number > calendar.num_passes:
            rule = (
                f"is of day {self.day}, pass {self.number}, and a day has "
                f"{calendar.num_passes} passes now: change pass_per_day at a day's beginning"
            )
            raise OtherPassesError(path=path, rule=rule)


class OnlineState:
    """Says where the training is, and keeps what a loaded checkpoint said.

    Args:
        calendar: The passes.
    """

    def __init__(self, calendar: Calendar) -> None:
        self._calendar = calendar
        self.loaded: Saved | None = None
        """What the checkpoint that was loaded last says; None if none was."""
        self.is_at(None, base_key=0)

    def is_at(self, place: Place | None, *, base_key: int, inside: bool = False) -> None:
        """Say where it is from now on.

        Args:
            place: Behind the pass that was trained last.
            base_key: Of the newest base.
            inside: Whether the pass behind it is being trained.
        """
        day, number = place or ("", 0)
        self._now = Saved(
            day=day,
            number=number,
            base_key=base_key,
            inside=inside,
            split_interval=self._calendar.split_interval,
            split_per_pass=self._calendar.split_per_pass,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return where it is."""
        return {"version": _VERSION, **asdict(self._now)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Keep what a checkpoint says.

        Raises:
            ValueError: if it is no such state.
        """
        if state["version"] != _VERSION or type(state["day"]) is not str:
            rule = f"is no place of version {_VERSION}"
            raise ValueError(rule)
        names = ("number", "base_key", "split_interval", "split_per_pass")
        numbers = {name: whole(state[name], name) for name in names}
        self.loaded = Saved(day=state["day"], inside=bool(state["inside"]), **numbers)
