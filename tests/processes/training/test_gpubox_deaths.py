"""gpubox: the worker is killed, and started again; the result is that of a run without."""

import random
import re
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from paramfleet_shared.settings.config import read_environment
from paramfleet_shared.testing.patience import LATE_S

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SCRIPT = "train_passes_killed.py"
EXAMPLES = int(read_environment().get("KILL_EXAMPLES", "0"))
"""Random points at which workers are killed; thousands take hours."""

TIMES = {
    "PARAMFLEET_COORDINATOR__ELASTIC": "true",
    "PARAMFLEET_COORDINATOR__WORKER_GRACE_S": "60",
    "PARAMFLEET_LEASE_TTL_S": "3",
}
"""A successor has the rank when the one before was silent for half a lease."""

POINTS = [
    "read_pass:before:1:3",
    "step:before:0:8",
    "prepare_pass:before:0:1",
    "prepare_pass:before:1:1",
    "prepare_pass:after:1:4",
    "commit_pass:before:0:1",
    "commit_pass:alone:0:1",
    "commit_pass:alone:1:2",
    "commit_pass:after:1:1",
]


class Lives:
    """One worker of a job, again and again under its rank."""

    def __init__(self, jobs: Any, folder: Path, *args: str) -> None:
        self.running = jobs.new(workers=1, servers=2, **TIMES)
        self._args = [*args, "--save", str(folder / "checkpoint")]
        self._num = 0
        self._killed: list[str] = []
        self.running.start_coordinator()
        for index in (0, 1):
            self.running.start_pserver(index, SCRIPT, *self._args)

    def live(self, *args: str) -> str:
        """Start the worker; return its name."""
        self._num += 1
        name = f"worker{self._num}"
        self.running.start_worker(0, SCRIPT, *self._args, *args, name=name)
        return name

    def live_until_killed(self, *args: str) -> bool:
        """Start the worker; return whether it is killed before its work is done."""
        name = self.live(*args)
        code: int = self.running.code(name)
        assert code in {0, -signal.SIGKILL}, self.running.story()
        self._killed += [name] * (code != 0)
        return code != 0

    def end(self) -> dict[str, Any]:
        """Let the worker end its work, unless it has; return what it says of the result."""
        name = f"worker{self._num}"
        if not self._num or name in self._killed:
            name = self.live()
        assert self.running.code(name) == 0, self.running.story()
        ended = self.running.end()
        codes = {code for who, code in ended.codes.items() if who not in self._killed}
        assert codes == {0}, ended.story()
        found = ended.last_json(name)
        return {"dense": found["dense"], "hashes": found["hashes"]}

    def died_at(self) -> list[str]:
        """Return the points at which it was killed."""
        return [
            self.running.log(name).rsplit("dies at ", 1)[1].strip() for name in self._killed
        ]


def result_of(jobs: Any, folder: Path, *args: str) -> tuple[dict[str, Any], int]:
    """Return the result of a worker that nobody kills, and its number of events."""
    lives = Lives(jobs, folder, *args)
    result = lives.end()
    said = lives.running.log("worker1")
    return result, int(said.rsplit("events=", 1)[1])


def test_a_worker_killed_at_any_point_of_a_pass_ends_as_if_it_had_not_been(
    jobs: Any, tmp_path: Path
) -> None:
    expected, _ = result_of(jobs, tmp_path / "whole")

    for number, point in enumerate(POINTS):
        lives = Lives(jobs, tmp_path / f"killed{number}")
        assert lives.live_until_killed(f"--die={point}"), point
        assert lives.end() == expected, point


def test_a_successor_splits_the_data_as_its_former_self_did(jobs: Any, tmp_path: Path) -> None:
    args = ("--budget=3400",)  # rows that stay from one loop to the next must not count
    expected, _ = result_of(jobs, tmp_path / "whole", *args)

    lives = Lives(jobs, tmp_path / "killed", *args)
    assert lives.live_until_killed("--die=commit_pass:after:1:13")
    assert lives.end() == expected


@pytest.mark.parametrize("does", ["scores", "removes"])
def test_a_successor_repeats_nothing_that_its_former_self_did_between_passes(
    jobs: Any, tmp_path: Path, does: str
) -> None:
    args = (f"--between={does}", "--epochs=3")
    expected, _ = result_of(jobs, tmp_path / "whole", *args)

    lives = Lives(jobs, tmp_path / "killed", *args)
    assert lives.live_until_killed("--die=step:before:0:30")
    assert lives.end() == expected


def test_a_worker_whose_peer_stands_still_ends_by_name_when_the_lease_has_ended(
    jobs: Any, tmp_path: Path
) -> None:
    running = jobs.start(
        "train_passes.py",
        *("--epochs=100000", "--save", str(tmp_path / "checkpoint")),
        workers=2,
        servers=2,
        PARAMFLEET_LEASE_TTL_S="3",
    )
    running.wait_for("worker0", "an epoch ended")
    running.wait_for("worker1", "an epoch ended")

    running.send("worker1", signal.SIGSTOP)
    code = running.code("worker0", within_s=5 * 3 + LATE_S)
    running.send("worker1", signal.SIGKILL)

    assert code == 1, running.story()
    log = running.log("worker0")
    assert re.search(r"(GroupLostError|PeerLostError): |worker\.job_failed ", log), log
    running.end()


@pytest.mark.skipif(not EXAMPLES, reason="takes minutes: KILL_EXAMPLES says how many")
@pytest.mark.timeout(0)
def test_workers_killed_at_random_points_end_as_if_they_had_not_been(
    jobs: Any, tmp_path: Path
) -> None:
    draw = random.Random(EXAMPLES)
    args = ("--budget=9000",)
    expected, num_events = result_of(jobs, tmp_path / "whole", *args)
    died: Counter[str] = Counter()
    while died.total() < EXAMPLES:
        lives = Lives(jobs, tmp_path / f"killed{died.total()}", *args)
        points = []
        for _ in range(min(draw.randint(1, 4), EXAMPLES - died.total())):
            points.append((draw.randint(1, num_events), draw.randint(0, 40)))
            if not lives.live_until_killed(
                f"--die_at={points[-1][0]}", f"--turns={points[-1][1]}"
            ):
                break
        assert lives.end() == expected, points
        died.update(lives.died_at())
    print(f"{died.total()} deaths: {dict(sorted(died.items()))}")
