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
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
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
from paramfleet_shared.system.processes.keeping import tied
from served import COMMAND, Asked, Asker, serving
from train_days import new_model, scored

SCRIPT = Path(__file__).with_name("train_days.py")
YEAR_DAYS = 365
WARM_UP = 30
LINE_EVERY = 30
"""Days between two lines where nobody watches a terminal."""

ALONE_DAYS = 40
"""Days that are trained once more, with nobody who follows."""

EQUAL_WITHIN_S = 30.0
STOP_WITHIN_S = 60.0
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
    """Steps/s of the first days without a server and who asks it, over those with them."""
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
        slowdown = None
        if num_days > ALONE_DAYS:
            alone = train_alone(ALONE_DAYS, folder, log_dir)
            slowdown = _rate(alone[-1]) / _rate(followed.lines[ALONE_DAYS - 1])
        retrained_days = _spread(warm_up, num_days, num_retrained)
        retrained = retrain(retrained_days, days, folder)
    whole, same = [*range(warm_up, num_days)], retrained_days
    return Result(
        next_day_auc=auc_over(days, whole, online_scores),
        next_day_auc_by_day=mean_auc(days, whole, online_scores),
        next_day_auc_same_days=auc_over(days, same, online_scores) if same else None,
        next_day_auc_same_days_by_day=mean_auc(days, same, online_scores) if same else None,
        retrained_auc=auc_over(days, same, retrained) if same else None,
        retrained_auc_by_day=mean_auc(days, same, retrained) if same else None,
        retrained_days=[day + 1 for day in retrained_days],
        served_age_p99_s=followed.asked.age_p99,
        deltas=followed.changes,
        versions_seen=len(followed.asked.versions),
        lookups=len(followed.asked.ages),
        lookup_errors=len(followed.asked.errors),
        served_is_equal=followed.equal_after_s is not None,
        served_is_equal_after_s=followed.equal_after_s,
        served_slowdown=slowdown,
        days=num_days,
        flights=len(days.examples),
        train_seconds=followed.lines[-1]["seconds"],
        seconds=time.perf_counter() - began,
    )


def train_and_serve(days: Days, folder: Path, log_dir: Path) -> Followed:
    """Train all days, with a server that follows and somebody who asks it all along."""
    job, follower = f"online-{uuid.uuid4().hex[:8]}", folder / "followed"
    words = ["--days", str(len(days)), "--follower", str(follower)]
    lines: list[dict[str, Any]] = []
    with ExitStack() as stack:
        told = stack.enter_context(launched(job, words, folder, log_dir))
        next(told)  # it waits for a follower
        client = stack.enter_context(serving(job, folder))
        asker = Asker(client, days)
        asker.start()
        follower.touch()
        with shown_line() as show:
            for line in told:
                if "trained" in line:
                    asker.end()  # what is served gets older now
                else:
                    lines.append(line)
                    show(line, len(days), asker.asked)
        after_s = equal_after_s(client, days, folder)
        changes = client.version().number
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


def train_alone(num_days: int, folder: Path, log_dir: Path) -> list[dict[str, Any]]:
    """Train the first days as a job that nobody follows; return what it told."""
    alone = folder / "alone"
    alone.mkdir()
    words = ["--days", str(num_days)]
    with launched(f"alone-{uuid.uuid4().hex[:8]}", words, alone, log_dir) as told:
        return [line for line in told if "day" in line]


@contextmanager
def launched(
    job: str, words: Sequence[str], folder: Path, log_dir: Path
) -> Iterator[Iterator[dict[str, Any]]]:
    """Launch the training on two pservers and two workers.

    Yields:
        What worker 0 tells, until the job has ended well.

    Raises:
        RuntimeError: It failed.
    """
    data = folder if (folder / "days.npz").exists() else folder.parent
    options = ["--server_num=2", "--worker_num=2", f"--job={job}", f"--log_dir={log_dir}"]
    options.append(f"--checkpoint_dirs={folder}")  # where the model is exported to
    script = [str(SCRIPT), "--data", str(data / "days.npz"), "--folder", str(folder), *words]
    output = folder / "launch.log"
    with output.open("wb") as errors:
        process = subprocess.Popen(
            tied([*COMMAND, "launch", *options, *script]), stdout=subprocess.PIPE, stderr=errors
        )
    assert process.stdout is not None
    stdout = process.stdout

    def told() -> Iterator[dict[str, Any]]:
        for line in stdout:
            if line.startswith(b"{"):
                yield json.loads(line)
        if process.wait() != 0:
            last = output.read_text(errors="replace").splitlines()[-30:]
            raise RuntimeError("\n".join([f"the job {job} failed:", *last]))

    try:
        yield told()
    finally:
        process.terminate()
        process.wait(STOP_WITHIN_S)
        stdout.close()


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
    return float(np.nanmean([auc_over(days, [day], scores) for day in chosen]))


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


def _rate(told: dict[str, Any]) -> float:
    return float(told["steps"] / told["seconds"])


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
