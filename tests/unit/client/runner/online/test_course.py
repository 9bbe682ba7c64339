"""No pass is trained twice or left out, wherever a training is interrupted.

``Disk`` is what stays: checkpoints, exports and lists. ``Life`` is one process, which dies at a
given moment; moments are before each deed, and where a deed has two parts between them.
"""

import itertools
from dataclasses import dataclass, field

import pytest

from paramfleet.runner.online.calendar import Calendar, Place
from paramfleet.runner.online.course import Course, Deed, Plan, Written

DAYS = ("20260101", "20260102", "20260104")
CALENDAR = Calendar(days=DAYS, split_interval=360, split_per_pass=1, num_passes=4)
ALL = [Place(day, number) for day in DAYS for number in range(1, 5)]

PLANS = [
    Plan(checkpoint_per_pass=c, save_delta_frequency=d, save_first_base=first)
    for c, d, first in itertools.product((0, 1, 3), (0, 1, 2), (False, True))
]


class Killed(Exception):  # noqa: N818 - no error of the product
    """The process died."""


@dataclass
class Checkpoint:
    """What one holds."""

    passes: list[Place]
    """That its model has been trained on."""
    shrunk: list[str]
    base_key: int
    unsent: list[Place]
    """Passes whose changes are in no delta yet."""


@dataclass
class Disk:
    """What stays."""

    checkpoints: dict[Place, Checkpoint] = field(default_factory=dict)
    listed: list[Place] = field(default_factory=list)
    bases: list[tuple[Place, int]] = field(default_factory=list)
    deltas: list[tuple[Place, int]] = field(default_factory=list)
    contents: dict[tuple[str, Place, int], list[Place]] = field(default_factory=dict)
    """What was published: the passes that a base or a delta has."""

    def written(self) -> Written:
        return Written(listed=set(self.listed), bases=dict(self.bases), deltas=set(self.deltas))


class Life:
    """One process.

    Args:
        disk: What there is.
        plan: When what is saved.
        moments: How many it lives for; None lives to the end.
        chained: Whether deltas can follow a base of an earlier process.
    """

    def __init__(self, disk: Disk, plan: Plan, moments: int | None, *, chained: bool) -> None:
        self.disk, self.left = disk, moments
        place = max(disk.checkpoints, default=None)
        self.model = Checkpoint([], [], 0, [])
        if place is not None:
            saved = disk.checkpoints[place]
            self.model = Checkpoint(
                list(saved.passes), list(saved.shrunk), saved.base_key, list(saved.unsent)
            )
        self.has_chain = chained or place is None
        self.course = Course(
            CALENDAR,
            plan,
            place=place,
            base_key=self.model.base_key,
            written=disk.written(),
        )
        self.keys = itertools.count(1 + max((key for _, key in disk.bases), default=100))
        self.date = ""

    def run(self, *, stop_before: Place | None = None) -> None:
        while (deed := self.course.next()) is not None:
            if deed.kind == "train" and deed.place == stop_before:
                self.course.stop()
                continue
            self.moment()
            self.course.done(deed, key=self.do(deed))
        self.moment()

    def moment(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Killed

    def do(self, deed: Deed) -> int:
        disk, place = self.disk, deed.place
        if deed.kind == "begin_day":
            self.date = place.day
        elif deed.kind == "train":
            assert self.date == place.day
            assert CALENDAR.after(max(self.model.passes, default=None)) == (
                CALENDAR.trained(place)
            )
            self.model.passes.append(place)
            self.model.unsent.append(place)
        elif deed.kind in {"checkpoint", "batch"}:
            disk.checkpoints[place] = Checkpoint(
                list(self.model.passes),
                list(self.model.shrunk),
                self.course.base_key,
                list(self.model.unsent),
            )
        elif deed.kind == "list":
            assert place not in disk.listed
            disk.listed.append(place)
        elif deed.kind == "shrink":
            assert self.date == place.day
            self.model.shrunk.append(place.day)
        elif deed.kind == "base":
            return self.course.key_of(place) or self.base(place)
        elif deed.kind == "delta":
            return self.delta(place)
        return 0

    def base(self, place: Place) -> int:
        key = next(self.keys)
        self.disk.contents["base", place, key] = list(self.model.passes)
        self.moment()
        self.disk.bases.append((place, key))
        self.model.unsent, self.has_chain = [], True
        return key

    def delta(self, place: Place) -> int:
        key = self.course.base_key
        if self.course.has_delta(place):
            return 0
        if made := self.course.key_of(place):
            return made
        if not key:
            return 0
        if not self.has_chain:
            return self.base(place)
        self.disk.contents["delta", place, key] = list(self.model.unsent)
        self.moment()
        self.disk.deltas.append((place, key))
        self.model.unsent = []
        return 0


def check(disk: Disk, plan: Plan) -> None:
    """See that all is on the disk, once, and that who follows it has every pass."""
    last = Place("20260105", 0)
    assert max(disk.checkpoints) == last
    end = disk.checkpoints[last]
    assert end.passes == ALL
    assert end.shrunk == list(DAYS)
    assert len(disk.listed) == len(set(disk.listed))
    assert set(disk.listed) == set(disk.checkpoints)
    for place, saved in disk.checkpoints.items():
        assert saved.passes == [each for each in ALL if each <= place]
    keys = [key for _, key in disk.bases]
    assert len(keys) == len(set(keys))
    assert len({place for place, _ in disk.bases}) == len(disk.bases)
    assert len({place for place, _ in disk.deltas}) == len(disk.deltas)
    assert {key for _, key in disk.deltas} <= set(keys)
    for morning in ("20260102", "20260103", "20260105"):
        assert Place(morning, 0) in dict(disk.bases)
    if plan.save_first_base:
        assert disk.bases[0][0] == Place("20260101", 0)
    wanted = {p for p in ALL if plan.save_delta_frequency and not p.number % 2}
    if plan.save_delta_frequency == 2 and plan.save_first_base:
        assert {p for p, _ in disk.deltas} | {p for p, _ in disk.bases} >= wanted


@pytest.mark.parametrize("plan", PLANS)
def test_a_training_that_is_not_interrupted_is_whole(plan: Plan) -> None:
    disk = Disk()
    Life(disk, plan, None, chained=False).run()

    check(disk, plan)
    every = plan.checkpoint_per_pass
    mornings = {Place(day, 0) for day in ("20260102", "20260103", "20260105")}
    due = {p for p in ALL if every and p.number % every == 0 and p.number < 4}
    assert set(disk.checkpoints) == mornings | due
    if not plan.save_first_base:
        first = [place for place, _ in disk.deltas if place.day == "20260101"]
        assert not first, "they would belong to no base"
    assert {key for _, key in disk.deltas} <= {key for _, key in disk.bases}


@pytest.mark.parametrize("chained", [False, True])
@pytest.mark.parametrize("plan", PLANS)
def test_a_training_goes_on_wherever_it_was_killed(plan: Plan, *, chained: bool) -> None:
    moments = 0
    while True:
        disk = Disk()
        try:
            Life(disk, plan, moments, chained=chained).run()
        except Killed:
            Life(disk, plan, None, chained=chained).run()
            check(disk, plan)
            moments += 1
            continue
        break
    assert moments > 20


@pytest.mark.parametrize("plan", PLANS[::5])
def test_a_training_goes_on_though_it_is_killed_again_and_again(plan: Plan) -> None:
    for first, second in itertools.product(range(0, 40, 4), range(1, 12, 2)):
        disk = Disk()
        for moments in (first, second, second, None):
            try:
                Life(disk, plan, moments, chained=False).run()
            except Killed:
                continue
        check(disk, plan)


@pytest.mark.parametrize("plan", PLANS)
def test_a_training_that_is_stopped_between_passes_loses_none(plan: Plan) -> None:
    for place in ALL:
        disk = Disk()
        Life(disk, plan, None, chained=False).run(stop_before=place)
        before = [each for each in ALL if each < place]
        saved = max((c.passes for c in disk.checkpoints.values()), default=[], key=len)
        assert saved == before
        assert set(disk.listed) == set(disk.checkpoints)

        second = Life(disk, plan, None, chained=False)
        assert second.course.place == (max(disk.checkpoints) if before else None)
        second.run()
        check(disk, plan)


def test_who_follows_bases_and_deltas_misses_no_pass() -> None:
    plan = Plan(checkpoint_per_pass=2, save_delta_frequency=1, save_first_base=True)
    for moments in range(70):
        disk = Disk()
        for lives in (moments, None):
            try:
                Life(disk, plan, lives, chained=True).run()
            except Killed:
                continue
        for place, key in disk.bases:
            seen = set(disk.contents["base", place, key])
            for delta, of in disk.deltas:
                if of == key:
                    seen |= set(disk.contents["delta", delta, of])
                    assert seen >= {each for each in ALL if each <= delta}


def test_a_key_that_no_base_has_counts_as_none() -> None:
    plan = Plan(checkpoint_per_pass=1, save_delta_frequency=1, save_first_base=False)
    course = Course(CALENDAR, plan, place=Place("20260101", 1), base_key=7)

    assert course.base_key == 0
    assert course.next() == Deed("list", Place("20260101", 1))


def test_an_old_base_of_a_later_day_makes_no_first_base() -> None:
    plan = Plan(checkpoint_per_pass=1, save_delta_frequency=1, save_first_base=True)
    written = Written(bases={Place("20260109", 0): 7})
    course = Course(CALENDAR, plan, written=written)
    begin = course.next()
    assert begin is not None
    course.done(begin)

    assert course.next() == Deed("train", Place("20260101", 1))
    assert course.base_key == 0
