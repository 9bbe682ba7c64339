"""A process that is killed at any moment leaves a tier with all that it was told was taken.

``python -m tests.unit.shared.tables.disk.test_kill 50`` kills so many times.
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
from tests.unit.shared.tables.disk.crashing import apply
from tests.unit.shared.tables.disk.ledger import Rows, check, content, opened

from paramfleet_shared.system.processes.keeping import tied

KILLS = 12
CHECKOUT = Path(__file__).parents[5]


def survive(folder: Path, kills: int, seed: int) -> list[int]:
    """Kill a process that changes rows again and again; return how many changes each made."""
    rows, number, made = Rows(), 0, []
    rng = np.random.default_rng(seed)
    command = [sys.executable, "-m", "tests.unit.shared.tables.disk.crashing"]
    with subprocess.Popen(
        tied([*command, str(folder), str(seed)]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=CHECKOUT,
    ) as forks:
        for _ in range(kills):
            lines = _lines_of_one(forks, number, int(rng.integers(4, 60)), rng.random())
            done = sum(line.startswith("done") for line in lines)
            begun = sum(line.startswith("begin") for line in lines)
            made.append(done)
            for each in range(number, number + done):
                apply(rows, seed, each)
            number += done
            number += _is_there(folder, rows, seed, number, is_begun=begun > done)
        assert forks.stdin is not None
        forks.stdin.close()
    return made


def _lines_of_one(
    forks: "subprocess.Popen[str]", number: int, wanted: int, when: float
) -> list[str]:
    """Let a fork change rows, kill it behind some lines, and return all of its lines."""
    assert forks.stdin is not None
    assert forks.stdout is not None
    forks.stdin.write(f"{number}\n")
    forks.stdin.flush()
    process = int(forks.stdout.readline().split()[1])
    lines = [forks.stdout.readline() for _ in range(wanted)]
    # Somewhere in the change that is under way by now, or in the merge behind it.
    threading.Event().wait(0.02 * when)
    os.kill(process, signal.SIGKILL)
    while lines[-1] != "ended\n":
        lines.append(forks.stdout.readline())
    return lines


def _is_there(folder: Path, rows: Rows, seed: int, number: int, *, is_begun: bool) -> int:
    """Compare a tier with what must be there; return 1 if it has the change under way, too."""
    tier = opened(folder)
    found = content(tier)
    if found != rows and is_begun:
        apply(rows, seed, number)
        assert found == rows
        is_begun = True
    else:
        assert found == rows
        is_begun = False
    check(tier, rows, np.arange(20_000, 20_100, dtype=np.uint64))
    tier.close()
    return int(is_begun)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])  # the log at once, and by ranges
def test_a_killed_process_leaves_what_was_acknowledged(tmp_path: Path, seed: int) -> None:
    made = survive(tmp_path, KILLS, seed)

    assert sum(made) > KILLS


def main() -> None:
    """Kill as many times as the argument says."""
    with tempfile.TemporaryDirectory() as folder:
        made = survive(Path(folder), int(sys.argv[1]), 8)
    sys.stdout.write(f"{len(made)} kills, {sum(made)} changes acknowledged, none lost\n")


if __name__ == "__main__":
    main()
