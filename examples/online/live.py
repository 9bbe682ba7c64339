"""Train online, serve the model meanwhile, and compare with training from scratch.

    python examples/online/live.py

Starts a job that trains the flights of 2013 day by day, a server that follows it, and a thread
that asks the server. The last line on standard output is one JSON object with the result.
"""

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.live import Live
from rich.text import Text

import paramfleet as fleet
from flights_by_day import Days, auc_of, load_days
from launching import SCRIPT, followed, train_in_turns
from paramfleet_shared.system.processes.keeping import tied
from served import COMMAND, Asked
from train_days import new_model, scored

YEAR_DAYS = 365
WARM_UP = 30
LINE_EVERY = 30
"""Days between two lines where nobody watches a terminal."""

EQUAL_WITHIN_S = 30.0
AT_A_TIME = 2
"""Trainings from scratch that run beside each other."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """What a run came to, in the order it is printed."""

    next_day_auc: float
    """Of all flights behind the warm-up, each scored before its day was trained."""
    next_day_auc_by_day: float
    """The mean of each day's own."""
    next_day_auc_same_days: float | None
    """The same, of the days of ``retrained_auc`` alone."""
    next_day_auc_same_days_by_day: float | None
    retrained_auc: float | None
    """Of some days, each scored by a model that was trained from scratch on all days before."""
    retrained_auc_by_day: float | None
    retrained_days: list[int]
    by_day_gain: float | None
    """How much greater a day's own AUC is online than from scratch: the mean of these days."""
    by_day_gain_error: float | None
    """The standard error of that mean; None of less than two days."""
    served_age_p99_s: float
    deltas: int
    """Changes that the server took."""
    versions_seen: int
    """Versions that somebody was answered from."""
    lookups: int
    lookup_errors: int
    served_is_equal: bool
    """Whether the served model's logits of the last day are the job's, to the bit."""
    served_is_equal_after_s: float | None
    """Seconds from the job's end until they were."""
    served_slowdown: float | None
    """Steps/s while the server and who asks it are stopped, over those while they are not: the
    median of pairs of turns in one job."""
    served_slowdowns: list[float]
    """Of each pair."""
    days: int
    flights: int
    train_seconds: float
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Followed:
    """A training that was served."""

    lines: list[dict[str, Any]]
    asked: Asked
    changes: int
    """Of the stream, at its end."""
    equal_after_s: float | None


def online(num_days: int, num_retrained: int, log_dir: Path) -> Result:
    """Train, serve and compare.

    Raises:
        RuntimeError: A process failed; its output says why.
    """
    began = time.perf_counter()
    warm_up = min(WARM_UP, num_days // 2)
    days = load_days(num_days, warm_up=warm_up)
    with tempfile.TemporaryDirectory(prefix="paramfleet-online-") as name:
        folder = Path(name)
        days.write(folder / "days.npz")
        followed = train_and_serve(days, folder, log_dir)
        online_scores = scores_of(folder, len(days.examples))
        slowdowns = train_in_turns(days, folder, log_dir)
        retrained_days = _spread(warm_up, num_days, num_retrained)
        retrained = retrain(retrained_days, days, folder)
    whole, same = [*range(warm_up, num_days)], retrained_days
    gains = aucs_by_day(days, same, online_scores) - aucs_by_day(days, same, retrained)
    gains = gains[~np.isnan(gains)]
    return Result(
        next_day_auc=auc_over(days, whole, online_scores),
        next_day_auc_by_day=mean_auc(days, whole, online_scores),
        next_day_auc_same_days=auc_over(days, same, online_scores) if same else None,
        next_day_auc_same_days_by_day=mean_auc(days, same, online_scores) if same else None,
        retrained_auc=auc_over(days, same, retrained) if same else None,
        retrained_auc_by_day=mean_auc(days, same, retrained) if same else None,
        retrained_days=[day + 1 for day in retrained_days],
        by_day_gain=float(gains.mean()) if len(gains) else None,
        by_day_gain_error=standard_error(gains) if len(gains) > 1 else None,
        served_age_p99_s=followed.asked.age_p99,
        deltas=followed.changes,
        versions_seen=len(followed.asked.versions),
        lookups=len(followed.asked.ages),
        lookup_errors=len(followed.asked.errors),
        served_is_equal=followed.equal_after_s is not None,
        served_is_equal_after_s=followed.equal_after_s,
        served_slowdown=float(np.median(slowdowns)) if slowdowns else None,
        served_slowdowns=[round(each, 3) for each in slowdowns],
        days=num_days,
        flights=len(days.examples),
        train_seconds=followed.lines[-1]["seconds"],
        seconds=time.perf_counter() - began,
    )


def train_and_serve(days: Days, folder: Path, log_dir: Path) -> Followed:
    """Train all days, with a server that follows and somebody who asks it all along."""
    lines: list[dict[str, Any]] = []
    with followed(days, len(days), folder, log_dir) as (told, served, asker):
        with shown_line() as show:
            for line in told:
                if "trained" in line:
                    asker.end()  # what is served gets older now
                else:
                    lines.append(line)
                    show(line, len(days), asker.asked)
        after_s = equal_after_s(served.client, days, folder)
        changes = served.client.version().number
        return Followed(lines=lines, asked=asker.end(), changes=changes, equal_after_s=after_s)


def equal_after_s(client: fleet.serving.Client, days: Days, folder: Path) -> float | None:
    """Score the last day with the served model until it is what the job said of it.

    Returns:
        Seconds until then; None if that didn't come in time.
    """
    began = time.perf_counter()
    expected = np.load(folder / "predictions.npy")
    rows = days.rows(len(days) - 1)
    torch.set_num_threads(1)
    model = fleet.serving.load(str(folder / "export"), new_model(days), remote=client)
    pause = threading.Event()
    while time.perf_counter() - began < EQUAL_WITHIN_S:
        fleet.serving.refresh(model, client)
        if np.array_equal(scored(model, days.examples, rows), expected):
            return time.perf_counter() - began
        pause.wait(0.05)
    return None


def retrain(chosen: Sequence[int], days: Days, folder: Path) -> NDArray[np.float32]:
    """Train from scratch before each of some days.

    Returns:
        float32 ``[flights]``: logits of these days' flights, NaN of all others.

    Raises:
        RuntimeError: A training failed.
    """
    for first in range(0, len(chosen), AT_A_TIME):
        running = []
        for day in chosen[first : first + AT_A_TIME]:
            words = ["--data", str(folder / "days.npz"), "--folder", str(folder)]
            words += ["--days", str(day), "--before", str(day)]
            command = [COMMAND[0], str(SCRIPT), *words]
            running.append(subprocess.Popen(tied(command)))
        if sum(process.wait() != 0 for process in running):
            msg = "a training from scratch failed; see above"
            raise RuntimeError(msg)
    scores = np.full(len(days.examples), np.nan, np.float32)
    for day in chosen:
        scores[days.rows(day)] = np.load(folder / f"retrained-{day}.npy")
    return scores


def auc_over(days: Days, chosen: Sequence[int], scores: NDArray[np.float32]) -> float:
    """Return the AUC of all flights of some days, whose scores are float32 ``[flights]``."""
    rows = np.concatenate([days.rows(day) for day in chosen])
    return auc_of(scores[rows], days.examples.labels[rows])


def mean_auc(days: Days, chosen: Sequence[int], scores: NDArray[np.float32]) -> float:
    """Return the mean of each day's own AUC, which levels of days don't change."""
    return float(np.nanmean(aucs_by_day(days, chosen, scores)))


def aucs_by_day(
    days: Days, chosen: Sequence[int], scores: NDArray[np.float32]
) -> NDArray[np.float64]:
    """Return each day's own AUC, float64 ``[days]``; NaN where all of a day have one label."""
    return np.array([auc_over(days, [day], scores) for day in chosen], dtype=np.float64)


def standard_error(values: NDArray[np.float64]) -> float:
    """Return the standard error of the mean of at least two values."""
    return float(values.std(ddof=1) / np.sqrt(len(values)))


def scores_of(folder: Path, num_flights: int) -> NDArray[np.float32]:
    """Return what all workers scored, float32 ``[flights]``; NaN of flights of the warm-up."""
    scores = np.full(num_flights, np.nan, np.float32)
    for file in folder.glob("scores-*.npz"):
        with np.load(file, allow_pickle=False) as part:
            scores[part["rows"]] = part["logits"]
    return scores


@contextmanager
def shown_line() -> Iterator[Any]:
    """Show the last day in a live line of a terminal, or now and then in a log."""
    console = Console(stderr=True)

    def line_of(told: dict[str, Any], num_days: int, asked: Asked) -> str:
        auc = "warm-up" if told["auc"] is None else f"AUC of the last days {told['auc']:.3f}"
        age = f"{asked.ages[-1]:.2f} s old" if asked.ages else "not asked yet"
        changes = len(asked.versions)
        return f"day {told['day'] + 1}/{num_days} | {auc} | served {age}, {changes} changes"

    if not console.is_terminal:

        def show(told: dict[str, Any], num_days: int, asked: Asked) -> None:
            if (told["day"] + 1) % LINE_EVERY == 0 or told["day"] + 1 == num_days:
                line = line_of(told, num_days, asked)
                console.print(line, soft_wrap=True, highlight=False)

        yield show
        return
    with Live(console=console, refresh_per_second=8) as live:
        yield lambda told, num_days, asked: live.update(Text(line_of(told, num_days, asked)))


def _spread(first: int, end: int, count: int) -> list[int]:
    """Return ``count`` days with equal spaces between them, the last day for the last."""
    return [first + (end - first) * (number + 1) // count - 1 for number in range(count)]


@click.command(context_settings={"show_default": True})
@click.option("--days", type=click.IntRange(2, YEAR_DAYS), default=YEAR_DAYS)
@click.option(
    "--retrained",
    type=click.IntRange(0, 50),
    default=8,
    help="Days before which the model is trained from scratch, to compare.",
)
@click.option("--log_dir", type=click.Path(path_type=Path), default=Path("log"))
def main(days: int, retrained: int, log_dir: Path) -> None:
    """Train online, serve meanwhile, compare with training from scratch."""
    result = online(days, retrained, log_dir)
    print(json.dumps(asdict(result)), flush=True)
    if not result.served_is_equal:
        sys.exit("the served model isn't the job's")


if __name__ == "__main__":
    main()
