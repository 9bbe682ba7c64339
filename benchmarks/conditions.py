"""Which rounds count and which headlines hold, given their figures; no clock, no system.

A round counts unless the machine was taken while it ran. A headline holds if enough rounds
count and their ratios agree; otherwise it is refused, and a reason stands in its place.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

__all__ = [
    "MIN_ROUNDS",
    "Conditions",
    "Findings",
    "Headline",
    "findings_of",
    "quotients",
    "reasons",
    "refusal",
    "spread_of",
]

MAX_STEAL = 0.03
"""Share of the cores' time that a hypervisor may take in a round that counts."""

MAX_WAITING = 0.2
"""Share of the reference loop's time for which it may wait for its core: a loop that waits for
more of it takes more than a quarter longer than its own processor time."""

MAX_SLOWDOWN = 1.25
"""How many times the median of all rounds the reference loop may take."""

MIN_ROUNDS = 5
"""With fewer that count a headline is refused."""

MAX_SPREAD = 1 / 3
"""With a larger spread a headline is refused."""


class Conditions(NamedTuple):
    """What the machine did in a round."""

    steal: float
    """Share of the cores' time that the hypervisor gave to others, 0 to 1."""
    reference_s: float
    """Seconds of the reference loop on the core where it was slowest: mean of the round."""
    waiting: float
    """Share of that time in which the loop had no core, because others had it, 0 to 1."""


class Headline(NamedTuple):
    """A headline figure, round by round."""

    values: Sequence[float]
    """Of the rounds that count; of all rounds where none does."""
    num_counted: int
    quantile: float | None = None
    """Which of the values is the figure, 0 to 1; None is their median, if they agree."""
    dropped: str = ""
    """Why the most of the other rounds don't count."""

    @property
    def figure(self) -> float:
        """Return the figure of all values."""
        return _quantile(self.values, 0.5 if self.quantile is None else self.quantile)


class Findings(NamedTuple):
    """What becomes of headlines."""

    summary: dict[str, float | None]
    """Figures; None for what was not measured, and for what is refused."""
    spread: dict[str, tuple[float, float, float]]
    """The figure, least and most of what was measured, refused or not."""
    counted: dict[str, int]
    """Rounds that count, of what was measured."""
    refused: dict[str, str]
    """Why, by name."""


def reasons(rounds: Sequence[Conditions]) -> list[str | None]:
    """Return of each round why it does not count; None for one that does.

    Args:
        rounds: All so far: the reference loop is held against its median over them.
    """
    if not rounds:
        return []
    usual_s = statistics.median(each.reference_s for each in rounds)
    return [_reason(each, usual_s) for each in rounds]


def _reason(met: Conditions, usual_s: float) -> str | None:
    if met.steal > MAX_STEAL:
        return f"the hypervisor took more than {MAX_STEAL:.0%} of the time"
    if met.waiting > MAX_WAITING:
        return f"the reference loop waited for more than {MAX_WAITING:.0%} of its time"
    if met.reference_s > MAX_SLOWDOWN * usual_s:
        return f"the reference loop took more than {MAX_SLOWDOWN} times its median"
    return None


def spread_of(values: Sequence[float]) -> float:
    """Return the distance of the 10th and the 90th percentile over the median; 0 for one value.

    Percentiles are interpolated between values. The slowest and the fastest tenth are left
    out, so that one round of ten alone does not decide.
    """
    if len(values) < 2:
        return 0.0
    tenths = statistics.quantiles(values, n=10, method="inclusive")
    median = statistics.median(values)
    width = tenths[-1] - tenths[0]
    if not median:
        return float("inf") if width else 0.0
    return width / abs(median)


def refusal(headline: Headline) -> str | None:
    """Return why a headline does not hold; None if it does.

    Values need not agree where a quantile of them is the figure: then two runs of half the
    rounds have to, every other round in each.
    """
    if headline.num_counted < MIN_ROUNDS:
        why = f"rounds that count: {headline.num_counted}, at least {MIN_ROUNDS} are needed"
        return f"{why}; in others {headline.dropped}" if headline.dropped else why
    if headline.quantile is not None:
        halves = headline.values[::2], headline.values[1::2]
        one, other = (_quantile(each, headline.quantile) for each in halves)
        if abs(one - other) <= MAX_SPREAD * abs(headline.figure):
            return None
        return f"it is {one:.3g} in every other round, and {other:.3g} in those between"
    spread = spread_of(headline.values)
    if spread > MAX_SPREAD:
        return (
            f"its spread over {headline.num_counted} rounds is {spread:.2f}, "
            f"and at most {MAX_SPREAD:.2f} is allowed"
        )
    return None


def findings_of(headlines: Mapping[str, Headline | None]) -> Findings:
    """Return what becomes of headlines, by name; None is one that was not measured."""
    found = Findings({}, {}, {}, {})
    for name, headline in headlines.items():
        found.summary[name] = None
        if headline is None:
            continue
        figure = headline.figure
        found.spread[name] = (figure, min(headline.values), max(headline.values))
        found.counted[name] = headline.num_counted
        why = refusal(headline)
        if why is None:
            found.summary[name] = figure
        else:
            found.refused[name] = why
    return found


def _quantile(values: Sequence[float], quantile: float) -> float:
    """Return a quantile of at least one value, interpolated between values."""
    ordered = sorted(values)
    place = quantile * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def quotients(upper: Iterable[float], lower: Iterable[float]) -> list[float]:
    """Return one figure over another, round by round."""
    return [mine / theirs for mine, theirs in zip(upper, lower, strict=True)]
