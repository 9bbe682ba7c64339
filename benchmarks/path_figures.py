"""What bursts of whole paths come to: records, and headline figures round by round."""

import statistics
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from conditions import Headline, quotients
from peer.work import Burst, Work
from rounds import Ratio, Turns

__all__ = [
    "BF16",
    "LIMITS",
    "LIMIT_PARTS",
    "OURS",
    "OURS_TCP",
    "PEERS",
    "Case",
    "Found",
    "Measured",
    "headlines_of",
    "rows_of",
]

OURS = "ours"
OURS_TCP = "ours_tcp"
"""Ours, with pservers that listen on TCP alone."""
BF16 = "ours_bf16"
"""Ours, with ``wire_dtype`` bfloat16."""
LIMITS = "limits"
LIMIT_PARTS = ("transport", "unix", "table")
"""What the limits are asked for, all in one turn: bare TCP, a bare Unix socket, kernels."""

PEERS = {
    "torch_rpc": "torch_rpc_tcp",
    "grpcio": "grpcio",
    "redis": "redis",
    "redis_c": "redis_c",
}
"""The systems that ours is compared with, as they come; and the same on TCP."""


class Case(NamedTuple):
    """One kind of burst."""

    system: str
    about: int | str
    """Steps in flight; of the limits, which half."""


class Measured(NamedTuple):
    """A burst with its processor time; 0 where nobody counts it."""

    burst: Burst
    server_ms: float = 0.0
    """Of a step, of all processes that serve."""
    client_ms: float = 0.0

    @property
    def rate(self) -> float:
        """Return steps a second."""
        return len(self.burst.step_ms) / self.burst.wall_s

    @property
    def cpu_ms(self) -> float:
        """Return the processor milliseconds of a step, of all processes."""
        return self.server_ms + self.client_ms

    @property
    def typical_ms(self) -> float:
        """Return the median step: a short burst must not count one interruption."""
        return statistics.median(self.burst.step_ms)


Found = dict[Case, list[Measured]]
"""By case, one of each round."""


def rows_of(found: Found, work: Work, turns: Turns) -> list[dict[str, Any]]:
    """Return the records of all cases, of the rounds that count."""
    kept = {case: turns.kept(mine) for case, mine in found.items()}
    return [_row(case, kept, work) for case in kept]


def _row(case: Case, kept: Found, work: Work) -> dict[str, Any]:
    mine = kept[case]
    rate = Ratio.of([each.rate for each in mine])
    steps = np.concatenate([each.burst.step_ms for each in mine])
    pulls = np.concatenate([each.burst.pull_ms for each in mine])
    cpu_ms = statistics.median(each.cpu_ms for each in mine)
    row: dict[str, Any] = {
        "system": case.system,
        "in flight": case.about,
        "steps/s": rate,
        "M rows/s each way": round(work.rows * rate.median / 1e6, 3),
        "step p50 ms": round(float(np.percentile(steps, 50)), 3),
        "step p99 ms": round(float(np.percentile(steps, 99)), 3),
        "pull p50 ms": round(float(np.percentile(pulls, 50)), 3),
        "cpu ms a step": cpu_ms or None,
        "of it server": statistics.median(each.server_ms for each in mine) or None,
    }
    for name in (OURS, OURS_TCP):
        ours = kept.get(Case(name, case.about))
        row[f"{name} is times"] = Ratio.of(_times(ours, mine)) if ours else None
        cpu = _cpu_times(ours, mine) if ours else None
        row[f"{name} is times by cpu"] = Ratio.of(cpu) if cpu else None
    return row


def headlines_of(found: Found, turns: Turns) -> dict[str, Headline | None]:
    """Return the headline ratios, round by round; None for what was not measured."""

    def ratio(
        over: Callable[[Sequence[Measured], Sequence[Measured]], list[float] | None],
        ours: Case | None,
        theirs: Case | None,
    ) -> Headline | None:
        if ours not in found or theirs not in found:
            return None
        values = over(found[ours], found[theirs])
        return turns.headline(values) if values else None

    best = {name: _better_depth(found, turns, name) for name in {case.system for case in found}}
    headlines: dict[str, Headline | None] = {}
    for name, on_tcp in PEERS.items():
        for suffix, ours, theirs in (("", OURS, name), ("_tcp", OURS_TCP, on_tcp)):
            pair = (best.get(ours), best.get(theirs))
            headlines[f"path_vs_{name}{suffix}"] = ratio(_times, *pair)
            headlines[f"path_vs_{name}{suffix}_cpu"] = ratio(_cpu_times, *pair)
            headlines[f"path_vs_{name}{suffix}_one_in_flight"] = ratio(
                _times, Case(ours, 1), Case(theirs, 1)
            )
    headlines["path_bf16_vs_torch_rpc"] = ratio(_times, best.get(BF16), best.get("torch_rpc"))
    headlines["path_bf16_vs_float32"] = ratio(_times, best.get(BF16), best.get(OURS))
    limits = (("path_vs_limits", "transport"), ("path_vs_unix_limits", "unix"))
    for headline, transport in limits:
        ours_ms = [each.typical_ms for each in found[Case(OURS, 1)]]
        headlines[headline] = turns.headline(quotients(_limit_ms(found, transport), ours_ms))
    tcp_ms = [each.typical_ms for each in found[Case(OURS_TCP, 1)]]
    headlines["path_tcp_vs_limits"] = turns.headline(
        quotients(_limit_ms(found, "transport"), tcp_ms)
    )
    return headlines


def _times(ours: Sequence[Measured], theirs: Sequence[Measured]) -> list[float]:
    """Return how many times their steps a second ours are."""
    return quotients([each.rate for each in ours], [each.rate for each in theirs])


def _cpu_times(ours: Sequence[Measured], theirs: Sequence[Measured]) -> list[float] | None:
    """Return how many times our processor time a step theirs is; None where nobody counts."""
    if not all(each.cpu_ms for each in (*ours, *theirs)):
        return None
    return quotients([each.cpu_ms for each in theirs], [each.cpu_ms for each in ours])


def _better_depth(found: Found, turns: Turns, system: str) -> Case | None:
    """Return the case of a system that made more steps a second, by the medians."""

    def median(case: Case) -> float:
        return statistics.median(each.rate for each in turns.kept(found[case]))

    return max((case for case in found if case.system == system), key=median, default=None)


def _limit_ms(found: Found, transport: str) -> list[float]:
    """Return a step's bytes by a bare transport and its kernels, round by round."""
    halves = [
        [each.typical_ms for each in found[Case(LIMITS, part)]] for part in (transport, "table")
    ]
    return [sum(pair) for pair in zip(*halves, strict=True)]
