"""What deaths cost a long training: ``python benchmarks/goodput.py --minutes 30 --every 30``.

The same job runs without kills, half of the time before and half after, and for so many minutes
with a pserver that is killed again and again. The last line is JSON: steps a second of both,
their ratio (the goodput), and what memory and descriptors were at the begin and at the end. The
job is that of ``recovery.py``, with fewer rows.
"""

import argparse
import contextlib
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recovery import SERVERS, WORKERS, RecoveringJob, running

SAMPLE_S = 1.0
TAIL = 0.25
"""Part of the samples that counts as the begin, and as the end."""

ROLES = ("launch", "coordinator", "standby", "pserver", "worker")


@dataclass(frozen=True, slots=True)
class Sample:
    """What the processes of a role have, all together."""

    num_bytes: int
    """Of memory that is theirs alone."""
    descriptors: int


@dataclass(slots=True)
class Run:
    """One job."""

    seconds: float = 0.0
    steps: int = 0
    kills: list[float] = field(default_factory=list)
    """Seconds that recoveries took."""
    samples: dict[str, list[Sample]] = field(default_factory=dict)

    @property
    def steps_per_s(self) -> float:
        """Return how fast it was."""
        return self.steps / self.seconds


def run(seconds: float, every_s: float, options: Sequence[str]) -> Run:
    """Run a job.

    Args:
        seconds: That are measured, behind its start.
        every_s: Seconds between two kills; 0 for none.
        options: Of the training.
    """
    done, pause = Run(), threading.Event()
    with running((*options, f"--longest={seconds + 600:.0f}")) as job:
        job.wait_ready(50)
        begun, next_kill, next_sample = time.perf_counter(), every_s, 0.0
        while (now := time.perf_counter() - begun) < seconds:
            if every_s and now >= next_kill:
                done.kills.append(job.kill(len(done.kills) % SERVERS).total_s)
                next_kill += every_s
            if now >= next_sample:
                take_sample(job, done)
                next_sample = now + SAMPLE_S
            pause.wait(0.1)
        ended = time.perf_counter()
        done.seconds = ended - begun
        steps = (step for rank in range(WORKERS) for step in job.steps(rank))
        done.steps = sum(begun <= end <= ended for _, end in steps)
    return done


def take_sample(job: RecoveringJob, done: Run) -> None:
    """Note what each role has."""
    found: dict[str, list[Sample]] = {}
    for pid, role in members_of(job.pid):
        with contextlib.suppress(OSError):  # it has just ended
            found.setdefault(role, []).append(sample_of(pid))
    for role, samples in found.items():
        whole = Sample(
            sum(each.num_bytes for each in samples), sum(each.descriptors for each in samples)
        )
        if role not in {"pserver", "worker"} or len(samples) == WORKERS:
            done.samples.setdefault(role, []).append(whole)


def members_of(launcher: int) -> Iterator[tuple[int, str]]:
    """Yield the processes of a job and their roles.

    Args:
        launcher: With --no-share-imports: processes are told by what they began with.
    """
    yield launcher, "launch"
    for text in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split():
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{text}/cmdline").read_bytes()
            variables = Path(f"/proc/{text}/environ").read_bytes()
            if b"paramfleet_coordinator" in words:
                yield int(text), "coordinator"
            elif b".standby\0" in words and not is_taken(int(text)):
                yield int(text), "standby"
            elif b"\0TRAINING_ROLE=PSERVER\0" in variables:
                yield int(text), "pserver"
            elif b"\0TRAINING_ROLE=TRAINER\0" in variables:
                yield int(text), "worker"


def is_taken(standby: int) -> bool:
    """Tell whether a standby process has become a pserver, which has no input."""
    return Path(f"/proc/{standby}/fd/0").readlink() == Path(os.devnull)


def sample_of(pid: int) -> Sample:
    """Return what a process has now."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    kib = sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))
    return Sample(1024 * kib, len(list(Path(f"/proc/{pid}/fd").iterdir())))


def drift_of(samples: Sequence[Sample]) -> dict[str, list[float]]:
    """Return memory and descriptors at the begin and at the end: medians of some samples."""
    part = max(1, int(len(samples) * TAIL))
    ends = (samples[part : 2 * part] or samples[:part], samples[-part:])
    return {
        "memory_mb": [
            round(statistics.median(each.num_bytes for each in end) / 1e6, 1) for end in ends
        ],
        "descriptors": [statistics.median(each.descriptors for each in end) for end in ends],
    }


def summary_of(calm: Sequence[Run], hurt: Run, every_s: float) -> dict[str, Any]:
    """Return the last line."""
    rates = [each.steps_per_s for each in calm]
    without = statistics.mean(rates)
    last = calm[-1]
    return {
        "minutes": round(hurt.seconds / 60, 2),
        "every_s": every_s,
        "kills": len(hurt.kills),
        "goodput": round(hurt.steps_per_s / without, 4),
        "steps_per_s": round(hurt.steps_per_s, 2),
        "steps_per_s_without": [round(each, 2) for each in rates],
        "recovery_s": [round(each, 2) for each in hurt.kills],
        "drift": {role: drift_of(hurt.samples[role]) for role in ROLES if role in hurt.samples},
        "drift_without": {
            role: drift_of(last.samples[role]) for role in ROLES if role in last.samples
        },
    }


def main() -> None:
    """Run both."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=30.0, help="of the job with kills")
    parser.add_argument("--without", type=float, help="minutes without kills; as many")
    parser.add_argument("--every", type=float, default=30.0, help="seconds between two kills")
    parser.add_argument("--ids", type=int, default=100_000, help="rows of the table")
    parser.add_argument("--batch", type=int, default=4096, help="ids of a step")
    options = parser.parse_args()
    training = (f"--ids={options.ids}", f"--batch={options.batch}")
    without = options.minutes if options.without is None else options.without
    calm = [run(30 * without, 0.0, training)]
    print(f"without kills: {calm[0].steps_per_s:.2f} steps/s", file=sys.stderr, flush=True)
    hurt = run(60 * options.minutes, options.every, training)
    calm.append(run(30 * without, 0.0, training))
    print(json.dumps(summary_of(calm, hurt, options.every)))


if __name__ == "__main__":
    main()
