"""What comes next in a training by days, and what was owed when it was interrupted.

A core: an object that is asked for the next deed, and told when that is done. What is on the
disk comes in at the beginning (``Written``), and every deed changes what would come in then:
so it may be interrupted between any two deeds, or within one, and begin again there.

The order of a day is Paddle's: passes, with checkpoints and then deltas behind some of them; at
the end shrink, base, batch model. The batch model is the checkpoint of the next day's
beginning; until it is complete, a training that begins again does the day's end anew.

Everything that is published has a line in a list, which is written behind it. A base or delta
that has its line is published once: a training that goes back behind it, since its newest
checkpoint is older, doesn't do it again. What it changes meanwhile comes with the next one.
"""

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

from paramfleet.runner.online.calendar import Calendar, Pass, Place, day_after

__all__ = ["Course", "Deed", "Plan", "Written"]

Kind = Literal["begin_day", "train", "checkpoint", "list", "delta", "shrink", "base", "batch"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """When what is saved."""

    checkpoint_per_pass: int
    """0 for at the day's end alone."""
    save_delta_frequency: int
    """0 for never."""
    save_first_base: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """What an earlier training has left."""

    listed: Collection[Place] = ()
    """The checkpoints that have their line."""
    bases: Mapping[Place, int] = field(default_factory=dict)
    """The keys of the bases that have their line."""
    deltas: Collection[tuple[Place, int]] = ()
    """The deltas that have their line, and the keys of their bases."""


@dataclass(frozen=True, slots=True)
class Deed:
    """Something to do."""

    kind: Kind
    """``list`` writes the line of the checkpoint at a place."""
    place: Place
    """Of ``train`` the one behind it; of the others where they are done. A base and a batch
    model belong to the day of theirs."""


class Course:
    """The way through the days.

    Args:
        calendar: The passes.
        plan: When what is saved.
        place: Of the checkpoint that was loaded; None if the training is new.
        base_key: What that checkpoint has for the key of the newest base; 0 for none.
        written: What there is beside it.
    """

    def __init__(
        self,
        calendar: Calendar,
        plan: Plan,
        *,
        place: Place | None = None,
        base_key: int = 0,
        written: Written | None = None,
    ) -> None:
        self._calendar = calendar
        self._plan = plan
        written = written or Written()
        self._bases = dict(written.bases)
        self._deltas = set(written.deltas)
        self.place = place
        """Behind the pass that was trained last; None before the first one."""
        self.base_key = base_key if base_key in self._bases.values() else 0
        """Of the base that deltas belong to; 0 if there is none."""
        self.is_saved = place is not None
        """Whether the newest checkpoint is of this place."""
        self._day = ""
        self._is_over = False
        self._due: deque[Deed] = deque()
        if place is not None:
            if place not in written.listed:
                self._due.append(Deed("list", place))
            if (trained := calendar.trained(place)) is not None:
                self._due.append(Deed("begin_day", place))
                self._due += self._behind(trained, saved=True)

    @property
    def next_pass(self) -> Pass | None:
        """Return the pass that is trained next, whatever comes before; None behind the last."""
        return self._calendar.after(self.place)

    def next(self) -> Deed | None:
        """Return what to do next; None when all days are trained, or it was stopped."""
        if self._due:
            return self._due[0]
        coming = self.next_pass
        if coming is None or self._is_over:
            return None
        if coming.place.day != self._day:
            self._begin_day(Place(coming.place.day, coming.place.number - 1))
        else:
            self._due.append(Deed("train", coming.place))
        return self._due[0]

    def done(self, deed: Deed, *, key: int = 0) -> None:
        """Note that the next thing was done.

        Args:
            deed: It.
            key: Of a base: its key. Of a delta too, if a base was made in its place.
        """
        assert self._due, "next() named it"
        assert self._due[0] == deed, "next() named it"
        self._due.popleft()
        if deed.kind == "begin_day":
            self._day = deed.place.day
        elif deed.kind == "train":
            self.place, self.is_saved = deed.place, False
            trained = self._calendar.trained(deed.place)
            assert trained is not None, "it was trained"
            self._due += self._behind(trained, saved=False)
        elif deed.kind in {"checkpoint", "batch"}:
            self.place, self.is_saved = deed.place, True
        elif deed.kind == "base" or (deed.kind == "delta" and key):
            self.base_key = self._bases[deed.place] = key
        elif deed.kind == "delta":
            self._deltas.add((deed.place, self.base_key))

    def key_of(self, place: Place) -> int:
        """Return the key of the base of a place; 0 if there is none."""
        return self._bases.get(place, 0)

    def has_delta(self, place: Place) -> bool:
        """Return whether the delta of a place, to the newest base, has its line already."""
        return (place, self.base_key) in self._deltas

    def stop(self) -> None:
        """End behind the newest pass: what is due is still to be done, and a checkpoint."""
        self._is_over = True
        self._due = deque(deed for deed in self._due if deed.kind != "train")
        comes = any(deed.kind in {"checkpoint", "batch"} for deed in self._due)
        if self.place is not None and not self.is_saved and not comes:
            self._due += [Deed("checkpoint", self.place), Deed("list", self.place)]

    def _begin_day(self, place: Place) -> None:
        self._due.append(Deed("begin_day", place))
        wants = self._plan.save_first_base and not self.base_key
        if wants and not any(base.day >= place.day for base in self._bases):
            self._due.append(Deed("base", place))
        elif not self.base_key:
            self.base_key = self.key_of(place)

    def _behind(self, trained: Pass, *, saved: bool) -> list[Deed]:
        """Return what is due behind a pass, whose checkpoint may be there."""
        place, plan = trained.place, self._plan
        due = []
        is_last = place.number == self._calendar.num_passes
        if _is_due(place, plan.checkpoint_per_pass) and not is_last and not saved:
            due += [Deed("checkpoint", place), Deed("list", place)]
        if _is_due(place, plan.save_delta_frequency):
            due.append(Deed("delta", place))
        if is_last:
            morning = Place(day_after(place.day), 0)
            due += [Deed("shrink", place), Deed("base", morning)]
            due += [Deed("batch", morning), Deed("list", morning)]
        return due


def _is_due(place: Place, every: int) -> bool:
    return every > 0 and place.number % every == 0
