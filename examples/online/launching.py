"""The job as ``paramfleet launch`` starts it, who follows it, and what that costs it."""

import json
import os
import signal
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from flights_by_day import Days
from paramfleet_shared.system.processes.keeping import tied
from served import COMMAND, Asker, Served, serving

__all__ = ["SCRIPT", "followed", "launched", "train_in_turns"]

SCRIPT = Path(__file__).with_name("train_days.py")

PAIRED_DAYS = 160
"""Days that are trained once more, while the server is stopped and goes on in turns."""

BLOCK_DAYS = 10
"""Days of a turn."""

FIRST_DAYS = 20
"""Before the first turn."""

STOP_WITHIN_S = 60.0


@contextmanager
def followed(
    days: Days, num_days: int, folder: Path, log_dir: Path
) -> Iterator[tuple[Iterator[dict[str, Any]], Served, Asker]]:
    """Launch a training that a server follows, and somebody who asks that.

    Yields:
        What worker 0 tells, the server, and who asks.
    """
    job, follower = f"online-{uuid.uuid4().hex[:8]}", folder / "followed"
    words = ["--days", str(num_days), "--follower", str(follower)]
    with ExitStack() as stack:
        told = stack.enter_context(launched(job, words, folder, log_dir))
        next(told)  # it waits for a follower
        served = stack.enter_context(serving(job, folder))
        asker = Asker(served.client, days)
        asker.start()
        stack.callback(asker.end)
        follower.touch()
        yield told, served, asker


def train_in_turns(days: Days, folder: Path, log_dir: Path) -> list[float]:
    """Train the first days once more, while the server is stopped and goes on in turns.

    Returns:
        Of each pair of turns the steps/s of the one without the server over those of the one
        with it. Which comes first changes from pair to pair.
    """
    num_days, turns = min(len(days), PAIRED_DAYS), folder / "turns"
    num_pairs = (num_days - FIRST_DAYS) // (2 * BLOCK_DAYS)
    if num_pairs < 1:
        return []
    turns.mkdir()
    stopped = [turn for pair in range(num_pairs) for turn in ((0, 1), (1, 0))[pair % 2]]
    rates: list[float] = []
    began: dict[str, Any] = {}
    with (
        followed(days, num_days, turns, log_dir) as (told, served, asker),
        ExitStack() as stack,
    ):
        for line in told:
            turn, day = divmod(line.get("day", -1) + 1 - FIRST_DAYS, BLOCK_DAYS)
            if day == 0 and 0 <= turn < len(stopped):
                stack.close()
                if stopped[turn]:
                    stack.enter_context(_stopped(served, asker))
            elif day == 1:
                began = line  # what it missed has come by now
            elif day == BLOCK_DAYS - 1 and 0 <= turn < len(stopped):
                steps, seconds = (line[each] - began[each] for each in ("steps", "seconds"))
                rates.append(steps / seconds)
        stack.close()
    pairs = zip(stopped[::2], rates[::2], rates[1::2], strict=True)
    return [one / other if first else other / one for first, one, other in pairs]


@contextmanager
def _stopped(served: Served, asker: Asker) -> Iterator[None]:
    """Stop a server and who asks it for the block."""
    with asker.turn:
        os.kill(served.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(served.pid, signal.SIGCONT)


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
