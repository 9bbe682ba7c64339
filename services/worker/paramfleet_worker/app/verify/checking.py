"""Whether the numbers that workers have at the end are those of their changes."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NamedTuple

from paramfleet_worker.app.verify.plan import Plan
from paramfleet_worker.app.verify.sums import (
    COMMON,
    OWN,
    PLACES,
    common_ids,
    factor_of,
    own_ids,
    own_place,
    scale_of,
    step_ids,
    sum_of,
)

__all__ = ["Checked", "check", "recovery_times"]

TOLERANCE = 0.01
"""The least change adds 0.5."""

ROUNDED = 2e-5
"""Of a sum: what hundreds of additions of single precision may round away."""

_MOST_SHOWN = 8

_UNSENT = 40
"""Steps of async that a worker has ended and that no pserver has: more than its queue and what
is under way or not on the disk."""


class _Number(NamedTuple):
    """One of a worker's numbers."""

    place: str
    found: float
    expected: float

    @property
    def is_less(self) -> bool:
        """Return whether a change is missing; also for what is no number."""
        return not self.found >= self.expected - self._tolerance

    @property
    def is_more(self) -> bool:
        """Return whether a change is in too often."""
        return self.found > self.expected + self._tolerance

    @property
    def _tolerance(self) -> float:
        return TOLERANCE + ROUNDED * abs(self.expected)


@dataclass(slots=True)
class Checked:
    """What a run's numbers say."""

    acked: int = 0
    """Steps of all workers, each a change that was acknowledged."""
    lost: int = 0
    """Those of them that some number lacks."""
    doubled: int = 0
    """Those of them that some number has more than once."""
    problems: list[str] = field(default_factory=list)
    """All that is wrong; empty if the run is right."""


def check(
    plan: Plan,
    found: Sequence[Mapping[str, Any]],
    dead: Mapping[int, int] = MappingProxyType({}),
) -> Checked:
    """Compare what workers have at the end with what they have changed.

    What a worker was sending when it died may be with some pservers only. So of its newest
    steps each number has to be there once, or not at all.

    Args:
        plan: Of the run.
        found: What each worker wrote down that has ended well, in the order of their ranks.
        dead: Workers that died, and the newest step that each has ended.
    """
    checked = Checked(acked=plan.steps * len(found))
    size = len(found) + len(dead)
    scale = scale_of(plan.mode, size)

    def is_wrong(number: _Number) -> bool:
        if plan.mode == "sync":  # equal to one process, to the bit
            return number.found != number.expected
        return number.is_less or number.is_more

    lost: set[tuple[int, int]] = set()
    doubled: set[tuple[int, int]] = set()
    for worker in found:
        said = f"worker {worker['rank']}"
        checked.problems += [f"{said}: a version fell: {each}" for each in worker["fallen"]]
        lead, bound = worker["lead"], plan.max_staleness
        if bound is not None and lead > bound + 1:  # a step counts from its begin
            checked.problems.append(f"{said} led by {lead} steps, and max_staleness is {bound}")
        wrong = []
        for rank in range(size):
            kept = _surely_kept(plan, dead.get(rank))
            for step in range(1, plan.steps + 1):
                numbers = list(_of_step(worker, rank, step, plan.steps, scale))
                if step > kept:
                    numbers = [n for n in numbers if not _may_be_left(plan, n)]
                lost |= {(rank, step)} if any(n.is_less for n in numbers) else set()
                doubled |= {(rank, step)} if any(n.is_more for n in numbers) else set()
                wrong += [n for n in numbers if is_wrong(n)]
        shared = _shared(worker, size, plan.steps, scale)
        wrong += filter(is_wrong, shared) if not dead else _doubled_of(shared)
        checked.problems += _told(said, wrong)
    for worker in found[1:]:
        if any(worker.get(name) != found[0].get(name) for name in _NAMES):
            checked.problems.append(f"workers 0 and {worker['rank']} ended with other numbers")
    checked.lost, checked.doubled = len(lost), len(doubled)
    return checked


def _surely_kept(plan: Plan, died_at: int | None) -> int:
    """Return up to which step a worker's changes have to be there: all, unless it died."""
    if died_at is None:
        return plan.steps
    return died_at - _UNSENT if plan.mode == "async" else 0  # GEO may have exchanged nothing


def _may_be_left(plan: Plan, number: _Number) -> bool:
    """Return whether a number can be what a worker has left when it died.

    GEO keeps a part of a delta for the next exchange.
    """
    is_part = plan.mode == "geo" and -TOLERANCE <= number.found <= number.expected
    return is_part or abs(number.found) <= TOLERANCE


def _doubled_of(numbers: Iterable[_Number]) -> Iterator[_Number]:
    """Yield those that hold more than all changes of all workers, a dead one's included."""
    return (number for number in numbers if number.is_more)


def recovery_times(kills: Iterable[float], found: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return the seconds from each kill to when all workers have ended a step begun after it.

    A kill after which some worker didn't begin a step isn't counted.

    Args:
        kills: When processes were killed.
        found: As for ``check``.
    """
    took = []
    for killed in kills:
        ends = [_first_after(killed, worker["times"]) for worker in found]
        known = [end for end in ends if end is not None]
        if known and len(known) == len(ends):
            took.append(max(known) - killed)
    return took


_NAMES = ("rows", "places", "common", "own")


def _first_after(killed: float, times: Sequence[float]) -> float | None:
    """Return the end of the first step that began after a kill."""
    return next((end for begin, end in pairwise(times) if begin >= killed), None)


def _of_step(
    worker: Mapping[str, Any], rank: int, step: int, steps: int, scale: float
) -> Iterator[_Number]:
    """Yield the numbers that one step of a worker alone has changed."""
    expected, name = factor_of(rank, step) * scale, f"step {step} of worker {rank}"
    for place in range(PLACES):
        value = worker["places"][place][own_place(rank, step, steps)]
        yield _Number(f"dense value {place} of {name}", value, expected)
    if "rows" in worker:
        for id_ in step_ids(rank, step):
            for value in worker["rows"][str(id_)]:
                yield _Number(f"row {id_} of {name}", value, expected)


def _shared(
    worker: Mapping[str, Any], size: int, steps: int, scale: float
) -> Iterator[_Number]:
    """Yield the numbers that many steps have changed."""
    sums = [sum_of(rank, steps) * scale for rank in range(size)]
    for place in range(COMMON):
        yield _Number(f"common dense value {place}", worker["common"][place], sum(sums))
    for rank in range(size):
        for place in range(OWN):
            value = worker["own"][rank][place]
            yield _Number(f"own dense value {place} of worker {rank}", value, sums[rank])
    if "rows" in worker:
        for id_ in common_ids():
            for value in worker["rows"][str(id_)]:
                yield _Number(f"common row {id_}", value, sum(sums))
        for rank in range(size):
            for id_ in own_ids(rank):
                for value in worker["rows"][str(id_)]:
                    yield _Number(f"own row {id_} of worker {rank}", value, sums[rank])


def _told(said: str, wrong: Sequence[_Number]) -> list[str]:
    told = [f"{said}: {n.place} is {n.found:g}, not {n.expected:g}" for n in wrong]
    more = len(told) - _MOST_SHOWN
    return told if more <= 0 else [*told[:_MOST_SHOWN], f"{said}: and {more} more numbers"]
