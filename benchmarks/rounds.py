"""Rounds of cases in turns, their figures in wall and in processor time, and ratios of them.

Each round runs every case once and begins with another case, so that whatever else the
machine does disturbs all of them alike. What is reported of two cases is the ratio of their
figures *within a round*. Rounds in which the machine was taken are left out.
"""

import resource
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from conditions import MIN_ROUNDS, Conditions, Headline, quotients, reasons
from watch import MachineWatch, Watch

__all__ = [
    "ENOUGH",
    "Ratio",
    "Rounds",
    "Turn",
    "Turns",
    "in_turns",
    "least_rounds",
    "own_cpu_s",
]

ENOUGH = 30
"""So many rounds that count are enough, however much time is left."""

MAX_ROUNDS = 1_000

LOOK_S = 10.0
"""A suite with less time only shows that everything works."""

MAX_OVER = 2
"""How many times the rounds that must count may run beyond the time, if others don't count."""

T = TypeVar("T")


class Ratio(NamedTuple):
    """A figure over the rounds; mostly one case's divided by another's of the same round."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Ratio":
        """Return the spread of at least one value."""
        return cls(statistics.median(values), min(values), max(values))

    def __str__(self) -> str:
        """Return it as ``median (least..most)``."""
        return f"{self.median:.2f} ({self.least:.2f}..{self.most:.2f})"


class Turns:
    """Yields the cases of round after round, and knows which rounds count.

    Figures are kept by the caller, one a round and case. Rounds go on until enough of them
    count, or the time is over and the least number of them counts.

    Args:
        names: The cases, at least one.
        budget_s: Seconds for all rounds; the first one always runs.
        max_rounds: So many rounds at most, whether they count or not.
        enough: So many rounds that count are enough.
        least: So many rounds have to count, even beyond the time; twice as many may run.
        watch: Says how a round went; by default it reads this machine.
        now: Seconds that go by, for tests.
    """

    def __init__(  # noqa: PLR0913 (all but the first by keyword)
        self,
        names: Sequence[str],
        *,
        budget_s: float,
        max_rounds: int = MAX_ROUNDS,
        enough: int = ENOUGH,
        least: int = 0,
        watch: Watch | None = None,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._size = len(names)
        self._turns = in_turns(
            names,
            budget_s=budget_s,
            max_rounds=max_rounds,
            now=now,
            is_needed=self._end_round,
        )
        self._enough = enough
        self._least = least
        self._watch = watch or MachineWatch()
        self.conditions: list[Conditions] = []
        """Of each whole round."""

    def __iter__(self) -> Iterator[str]:
        """Yield the case whose turn it is; rounds are whole unless the caller stops asking."""
        for position, name in enumerate(self._turns):
            if position % self._size:
                self._watch.look()
            elif self.num_counted >= self._enough:
                return
            else:
                self._watch.begin()
            yield name

    def _end_round(self) -> bool:
        """Take note of a round; return whether another one is needed, even beyond the time."""
        self.conditions.append(self._watch.end())
        is_allowed = len(self.conditions) < MAX_OVER * self._least
        return is_allowed and self.num_counted < self._least

    @property
    def num_counted(self) -> int:
        """Return how many rounds count."""
        return reasons(self.conditions).count(None)

    def kept(self, figures: Sequence[T]) -> list[T]:
        """Return the figures of the rounds that count; of all rounds where none does.

        Args:
            figures: Of one case, one of each round.
        """
        pairs = list(zip(figures, reasons(self.conditions), strict=True))
        return [figure for figure, why in pairs if why is None] or list(figures)

    def headline(self, values: Sequence[float], *, quantile: float | None = None) -> Headline:
        """Return a headline figure that can be refused.

        Args:
            values: One of each round.
            quantile: Which of them is the figure; None is their median, if they agree.
        """
        dropped = Counter(each for each in reasons(self.conditions) if each is not None)
        most = dropped.most_common(1)[0][0] if dropped else ""
        return Headline(self.kept(values), self.num_counted, quantile, most)

    def report(self) -> dict[str, Any]:
        """Return how many rounds ran and counted, why others did not, and what they met."""
        why = reasons(self.conditions)
        return {
            "run": len(why),
            "counted": why.count(None),
            "dropped": dict(Counter(each for each in why if each is not None)),
            "steal": [each.steal for each in self.conditions],
            "reference_ms": [1e3 * each.reference_s for each in self.conditions],
            "waiting": [each.waiting for each in self.conditions],
        }


class Turn(NamedTuple):
    """What one turn of a case measures."""

    rate: float
    """Units a second of wall time, whatever the case's unit is."""
    cpu_s: float
    """Processor seconds a unit, of all processes of the case; 0 where nobody counts them."""


class Rounds:
    """Figures of cases, one of each case in each round.

    Args:
        names: The cases.
        budget_s: Seconds for all rounds.
        max_rounds: So many rounds at most.
        least: So many rounds have to count, even beyond the time; twice as many may run.
        watch: Says how a round went; by default it reads this machine.
    """

    def __init__(
        self,
        names: Sequence[str],
        *,
        budget_s: float = 0.0,
        max_rounds: int = MAX_ROUNDS,
        least: int = 0,
        watch: Watch | None = None,
    ) -> None:
        self.turns = Turns(
            names, budget_s=budget_s, max_rounds=max_rounds, least=least, watch=watch
        )
        self.figures: dict[str, list[Turn]] = {name: [] for name in names}

    def run(self, cases: Mapping[str, Callable[[], float]]) -> None:
        """Call the cases of this process in turns, and keep the rates that they return.

        The processor time of a unit is taken from that of the whole turn, children that have
        ended included.
        """
        for name in self.turns:
            wall, cpu = time.perf_counter(), own_cpu_s()
            rate = cases[name]()
            cores_used = (own_cpu_s() - cpu) / (time.perf_counter() - wall)
            self.figures[name].append(Turn(rate, cores_used / rate))

    def figure(self, name: str) -> Ratio:
        """Return a case's own rate over the rounds that count."""
        return Ratio.of([turn.rate for turn in self._kept(name)])

    def cpu_s(self, name: str) -> float:
        """Return the median of the processor seconds of a case's unit."""
        return statistics.median(turn.cpu_s for turn in self._kept(name))

    def ratio(self, name: str, other: str) -> Ratio:
        """Return how many times the other's rate a case's is, by rounds that count."""
        return Ratio.of(self.headline(name, other).values)

    def cpu_ratio(self, name: str, other: str) -> Ratio | None:
        """Return how many times a case's processor time the other's is; None without any."""
        found = self.cpu_headline(name, other)
        return found and Ratio.of(found.values)

    def headline(self, name: str, other: str) -> Headline:
        """Return a case's rate over the other's, each quotient of figures of one round."""
        mine, theirs = self.figures[name], self.figures[other]
        return self.turns.headline(
            quotients([turn.rate for turn in mine], [turn.rate for turn in theirs])
        )

    def rate_headline(self, name: str) -> Headline:
        """Return a case's own rate as a headline."""
        return self.turns.headline([turn.rate for turn in self.figures[name]])

    def cpu_headline(self, name: str, other: str) -> Headline | None:
        """Return the other's processor time over a case's; None where nobody counts it."""
        mine, theirs = self.figures[name], self.figures[other]
        if not all(turn.cpu_s for turn in (*mine, *theirs)):
            return None
        return self.turns.headline(
            quotients([turn.cpu_s for turn in theirs], [turn.cpu_s for turn in mine])
        )

    def _kept(self, name: str) -> list[Turn]:
        return self.turns.kept(self.figures[name])


def own_cpu_s() -> float:
    """Return the processor time so far of this process, and of its children that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def least_rounds(budget_s: float) -> int:
    """Return how many rounds must count in a suite that has so many seconds."""
    return MIN_ROUNDS if budget_s >= LOOK_S else 0


def in_turns(
    names: Sequence[str],
    *,
    budget_s: float,
    max_rounds: int = MAX_ROUNDS,
    now: Callable[[], float] = time.perf_counter,
    is_needed: Callable[[], bool] = lambda: False,
) -> Iterator[str]:
    """Yield every name once a round, each round from another one on.

    No round begins when the time is over or when it would not end in time if it took as
    long as the longest so far, unless it is needed; the first round always runs. Rounds are
    whole, unless the caller stops asking.

    Args:
        names: The cases, at least one.
        budget_s: Seconds for all rounds.
        max_rounds: Rounds are enough.
        now: Seconds that go by, for tests.
        is_needed: Called after each round: whether the next one is needed in any case.
    """
    start = now()
    longest_s = 0.0
    needs_one = True
    for number in range(max_rounds):
        begun = now()
        if not needs_one and begun - start + longest_s > budget_s:
            return
        first = number % len(names)
        yield from (*names[first:], *names[:first])
        longest_s = max(longest_s, now() - begun)
        needs_one = is_needed()
