"""What the rounds say: medians, spreads, ratios."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from peer.work import Burst

__all__ = ["OURS", "Spread", "row_of", "summary", "table_lines"]

OURS = "ours"


class Spread(NamedTuple):
    """A figure over the rounds."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Return the spread of at least one value."""
        return cls(statistics.median(values), min(values), max(values))


def row_of(
    bursts: Sequence[Burst], ours: Sequence[Burst], *, rows: int
) -> dict[str, float | list[float]]:
    """Return the figures of one system with so many steps in flight.

    Args:
        bursts: One a round.
        ours: Ours of the same rounds: each ratio is of two bursts that ran side by side.
        rows: Rows of a step, pulled and pushed.
    """
    rates = [len(burst.step_ms) / burst.wall_s for burst in bursts]
    our_rates = [len(burst.step_ms) / burst.wall_s for burst in ours]
    rate = Spread.of(rates)
    ratio = Spread.of([mine / theirs for mine, theirs in zip(our_rates, rates, strict=True)])
    steps = np.concatenate([burst.step_ms for burst in bursts])
    pulls = np.concatenate([burst.pull_ms for burst in bursts])
    return {
        "steps_per_s": [round(figure, 1) for figure in rate],
        "rows_per_s": round(rows * rate.median),
        "p50_ms": round(float(np.percentile(steps, 50)), 2),
        "p99_ms": round(float(np.percentile(steps, 99)), 2),
        "pull_p50_ms": round(float(np.percentile(pulls, 50)), 2),
        "ours_is_times": [round(figure, 2) for figure in ratio],
    }


def summary(runs: Mapping[tuple[str, int], Mapping[str, Any]]) -> dict[str, float]:
    """Return the headline: our rate, and how many times each peer's it is."""
    found: dict[str, float] = {}
    for (system, in_flight), run in runs.items():
        suffix = "" if in_flight == 1 else f"_{in_flight}_in_flight"
        if system == OURS:
            found[f"ours_rows_per_s{suffix}"] = run["rows_per_s"]
        else:
            found[f"vs_{system}{suffix}"] = run["ours_is_times"][0]
    return found


def table_lines(runs: Mapping[tuple[str, int], Mapping[str, Any]]) -> list[str]:
    """Return the figures for people."""
    head = (
        f"{'system':10} {'in flight':>9} {'steps/s':>8} {'(min..max)':>14} "
        f"{'M rows/s each way':>18} {'p50 ms':>7} {'p99 ms':>7}  ours is (min..max) times"
    )
    lines = [head]
    for (system, in_flight), run in sorted(runs.items(), key=lambda item: item[0][1]):
        median, least, most = run["steps_per_s"]
        times, times_least, times_most = run["ours_is_times"]
        ratio = "" if system == OURS else f"{times:.2f} ({times_least:.2f}..{times_most:.2f})"
        lines.append(
            f"{system:10} {in_flight:9} {median:8.1f} {f'({least:.0f}..{most:.0f})':>14} "
            f"{run['rows_per_s'] / 1e6:18.2f} {run['p50_ms']:7.2f} {run['p99_ms']:7.2f}  "
            f"{ratio}"
        )
    return lines
