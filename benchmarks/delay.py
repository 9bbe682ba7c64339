"""GEO, async and its prefetching over a long way: ``python benchmarks/delay.py``.

Two workers and one pserver train skip-gram with a wire between them that delays every
byte, or doesn't. See README.md beside this file.
"""

import asyncio
import statistics
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from conditions import MIN_ROUNDS
from harness import Suite, run_script, suite_of
from jobs import JobShape, run_jobs, training_jobs, turn_of
from rounds import Rounds

if TYPE_CHECKING:
    from conditions import Headline

__all__ = ["measure"]

BUDGET_S = 60.0
QUICK_S = 20.0
"""A smaller budget takes a tiny shape: it shows that everything works, and no speed."""

ROUND_TRIP_S = 0.020
PERIODS = (50, 400)
DEPTH = 16
"""Batches that async is ahead by under ``fleet.prefetch``."""
HEADLINE_PERIOD = 400
SEND_QUEUE = "--send_queue_size=16"
"""As many as the strategy's default may come to."""

METHOD = """\
Pairs/s of GEO, and of async whose rows are prefetched, over those of async, 2 workers + 1
pserver, one torch thread each, workers on a core each: skip-gram over 354,051 words, rows of
300, batches of 100 pairs in the order of a Zipf distributed text, 5 negatives shared in the
batch, SGD. Between workers and pserver is a proxy in user space that hands every byte on 10 ms
after it came (round trip 20 ms), or at once (round trip 0). It limits no bandwidth and loses
nothing. All jobs stay warm, and their windows are taken in turns; a window ends when what was
sent is applied. A window of GEO is a whole number of periods, with its exchanges in the middle
of them. Ratios are of windows of one round; `_cpu` is async's processor time a pair over that
of all the job's processes but the registry; bytes are both ways."""


class _Job(NamedTuple):
    """What is compared."""

    mode: str = "async"
    k_steps: int = 0
    prefetch: int = 0
    """Batches to be ahead by; 0 asks for rows when the forward does."""

    @property
    def is_slow(self) -> bool:
        """Return whether steps wait for the wire: those of async do for their rows."""
        return self.mode == "async" and not self.prefetch


class _Case(NamedTuple):
    """A job at a distance."""

    job: _Job
    round_trip_s: float


def measure(*, budget_s: float = BUDGET_S) -> Suite:
    """Measure async, and GEO with every period, with and without the delay."""
    found = run_jobs(_measure(budget_s=budget_s, quick=budget_s < QUICK_S))
    headlines: dict[str, Headline | None] = {}
    for name, job in {
        "geo_vs_async_rtt20ms": _Job("geo", k_steps=HEADLINE_PERIOD),
        "prefetch_vs_async_rtt20ms": _Job(prefetch=DEPTH),
    }.items():
        pair = str(_Case(job, ROUND_TRIP_S)), str(_Case(_Job(), ROUND_TRIP_S))
        headlines[name] = found.rounds.headline(*pair)
        headlines[f"{name}_cpu"] = found.rounds.cpu_headline(*pair)
    return suite_of(
        "delay",
        rows=[_row(case, found) for case in found.bytes_of],
        headlines=headlines,
        method=METHOD,
        turns={"delay": found.rounds.turns},
    )


class _Found(NamedTuple):
    """What the windows of all cases came to."""

    rounds: Rounds
    """By the text of the case."""
    bytes_of: dict[_Case, list[float]]
    """Bytes of a pair, round by round."""


def _shapes(*, quick: bool) -> dict[_Job, JobShape]:
    """Return the processes of each job."""
    tiny = ("--dim=8", "--batches=40") if quick else ()
    periods = (10, HEADLINE_PERIOD) if quick else PERIODS
    options: dict[_Job, tuple[str, ...]] = {_Job(): (SEND_QUEUE,)}
    options[_Job(prefetch=DEPTH)] = (SEND_QUEUE, f"--prefetch={DEPTH}")
    for period in periods:
        options[_Job("geo", k_steps=period)] = (f"--k_steps={period}",)
    return {
        job: JobShape(
            script="word_pairs", mode=job.mode, arguments=(*more, *tiny), distant=True
        )
        for job, more in options.items()
    }


def _steps(case: _Case, *, quick: bool) -> int:
    """Return the steps of a case's window: below a second; GEO makes whole periods of them."""
    if quick:
        return 4
    if case.job.is_slow and case.round_trip_s:
        return 20
    if case.job.mode == "async":
        return 150
    return HEADLINE_PERIOD


async def _measure(*, budget_s: float, quick: bool) -> _Found:
    now = asyncio.get_running_loop().time
    begun = now()
    shapes = _shapes(quick=quick)
    cases = [_Case(job, trip_s) for trip_s in (ROUND_TRIP_S, 0.0) for job in shapes]
    bytes_of: dict[_Case, list[float]] = {case: [] for case in cases}
    warm_steps = 20 if quick else 1000
    async with training_jobs(list(shapes.values()), warm_steps=warm_steps) as running:
        jobs = dict(zip(shapes, running, strict=True))
        names = {str(case): case for case in cases}
        left_s = budget_s - (now() - begun)
        rounds = Rounds(
            list(names), budget_s=left_s, max_rounds=1 if quick else 1000, least=MIN_ROUNDS
        )
        for name in rounds.turns:
            case = names[name]
            jobs[case.job].delay(case.round_trip_s / 2)
            window = await jobs[case.job].window(steps=_steps(case, quick=quick))
            jobs[case.job].delay(0.0)
            rounds.figures[name].append(turn_of(window))
            num_pairs = window["samples_per_s"] * window["seconds"]
            bytes_of[case].append(window["bytes"] / num_pairs)
    return _Found(rounds, bytes_of)


def _row(case: _Case, found: _Found) -> dict[str, Any]:
    rounds, name = found.rounds, str(case)
    beside = str(case._replace(job=_Job()))
    return {
        "round_trip_ms": round(case.round_trip_s * 1e3),
        **case.job._asdict(),
        "pairs_per_s": [round(value) for value in rounds.figure(name)],
        "vs_async": rounds.ratio(name, beside),
        "cpu_us_per_pair": 1e6 * rounds.cpu_s(name),
        "vs_async_cpu": rounds.cpu_ratio(name, beside),
        "bytes_per_pair": round(statistics.median(rounds.turns.kept(found.bytes_of[case]))),
        "rounds": rounds.turns.num_counted,
    }


if __name__ == "__main__":
    sys.exit(run_script(measure, description=__doc__ or "", budget_s=BUDGET_S))
