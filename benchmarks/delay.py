"""GEO, async and its prefetching over a long way: ``python benchmarks/delay.py``.

Two workers and one pserver train skip-gram with a wire between them that delays every
byte, or doesn't. See README.md beside this file.
"""

import asyncio
import sys
from typing import Any, NamedTuple

from harness import Ratio, Suite, in_turns, run_script
from jobs import JobShape, run_jobs, training_jobs

__all__ = ["measure"]

BUDGET_S = 60.0
QUICK_S = 20.0
"""A smaller budget takes a tiny shape: it shows that everything works, and no speed."""

ROUND_TRIP_S = 0.020
PERIODS = (10, 50, 200, 400, 800)
DEPTHS = (1, 16)
"""Batches that async is ahead by under ``fleet.prefetch``."""
HEADLINE_PERIOD = 400
SEND_QUEUE = "--send_queue_size=16"
"""The strategy's default."""

METHOD = """\
Pairs/s of GEO, and of async whose rows are prefetched, over those of async, 2 workers + 1
pserver, one torch thread each: skip-gram over 354,051 words, rows of 300, batches of 100 pairs
in the order of a Zipf distributed text, 5 negatives shared in the batch, SGD. Between workers
and pserver is a proxy in user space that hands every byte on 10 ms after it came (round trip
20 ms), or at once (round trip 0). It limits no bandwidth and loses nothing. All jobs stay
warm, and their windows are taken in turns; a window ends when what was sent is applied. A
window of GEO is a whole number of periods, with its exchanges in the middle of them. Ratios are
of windows of one round; bytes are both ways."""


class _Job(NamedTuple):
    """What is compared."""

    mode: str = "async"
    k_steps: int = 0
    prefetch: int = 0
    """Batches to be ahead by; 0 asks for rows when the forward does."""

    @property
    def is_slow(self) -> bool:
        """Return whether steps wait for the wire: those of async do for their pushes' turn."""
        return self.mode == "async"


class _Case(NamedTuple):
    """A job at a distance."""

    job: _Job
    round_trip_s: float


def measure(*, budget_s: float = BUDGET_S) -> Suite:
    """Measure async, and GEO with every period, with and without the delay."""
    rows = run_jobs(_measure(budget_s=budget_s, quick=budget_s < QUICK_S))
    far = [row for row in rows if row["round_trip_ms"]]
    spread = {
        "geo_vs_async_rtt20ms": _ratio_of(far, k_steps=HEADLINE_PERIOD),
        "prefetch_vs_async_rtt20ms": _ratio_of(far, prefetch=max(DEPTHS)),
    }
    return {
        "benchmark": "delay",
        "rows": rows,
        "summary": {name: ratio[0] for name, ratio in spread.items()},
        "method": METHOD,
        "details": {"spread": spread},
    }


def _ratio_of(rows: list[dict[str, Any]], **facts: int) -> list[float]:
    """Return the ratio of the one row of which these facts are true."""
    (found,) = (row["vs_async"] for row in rows if facts.items() <= row.items())
    ratio: list[float] = found
    return ratio


def _shapes(*, quick: bool) -> dict[_Job, JobShape]:
    """Return the processes of each job."""
    tiny = ("--dim=8", "--batches=40") if quick else ()
    periods = (10, HEADLINE_PERIOD) if quick else PERIODS
    options: dict[_Job, tuple[str, ...]] = {_Job(): (SEND_QUEUE,)}
    for depth in DEPTHS[-1:] if quick else DEPTHS:
        options[_Job(prefetch=depth)] = (SEND_QUEUE, f"--prefetch={depth}")
    for period in periods:
        options[_Job("geo", k_steps=period)] = (f"--k_steps={period}",)
    return {
        job: JobShape(
            script="word_pairs", mode=job.mode, arguments=(*more, *tiny), distant=True
        )
        for job, more in options.items()
    }


def _steps(case: _Case, *, quick: bool) -> int:
    """Return the steps of a case's window: about a second; GEO makes whole periods of them."""
    if quick:
        return 4
    return 50 if case.job.is_slow and case.round_trip_s else 800


async def _measure(*, budget_s: float, quick: bool) -> list[dict[str, Any]]:
    now = asyncio.get_running_loop().time
    begun = now()
    shapes = _shapes(quick=quick)
    cases = [_Case(job, trip_s) for trip_s in (ROUND_TRIP_S, 0.0) for job in shapes]
    found: dict[_Case, list[dict[str, float]]] = {case: [] for case in cases}
    warm_steps = 20 if quick else 1000
    async with training_jobs(list(shapes.values()), warm_steps=warm_steps) as running:
        jobs = dict(zip(shapes, running, strict=True))
        names = {str(case): case for case in cases}
        left_s = budget_s - (now() - begun)
        for name in in_turns(list(names), budget_s=left_s, max_rounds=1 if quick else 1000):
            case = names[name]
            jobs[case.job].delay(case.round_trip_s / 2)
            figures = await jobs[case.job].window(steps=_steps(case, quick=quick))
            jobs[case.job].delay(0.0)
            found[case].append(figures)
    return [_row(case, found) for case in cases]


def _row(case: _Case, found: dict[_Case, list[dict[str, float]]]) -> dict[str, Any]:
    rates = [window["samples_per_s"] for window in found[case]]
    asyncs = [window["samples_per_s"] for window in found[_Case(_Job(), case.round_trip_s)]]
    ratios = [mine / other for mine, other in zip(rates, asyncs, strict=True)]
    num_bytes = sum(window["bytes"] for window in found[case])
    num_pairs = sum(window["samples_per_s"] * window["seconds"] for window in found[case])
    return {
        "round_trip_ms": round(case.round_trip_s * 1e3),
        **case.job._asdict(),
        "pairs_per_s": [round(value) for value in Ratio.of(rates)],
        "vs_async": [round(value, 2) for value in Ratio.of(ratios)],
        "bytes_per_pair": round(num_bytes / num_pairs),
        "rounds": len(ratios),
    }


if __name__ == "__main__":
    sys.exit(run_script(measure, description=__doc__ or "", budget_s=BUDGET_S))
