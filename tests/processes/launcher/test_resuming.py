"""One command line starts a job, and after its end continues it from its last checkpoint."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paramfleet_shared.system.processes.keeping import tied
from paramfleet_worker.app.checkpoints.diffing import diff
from paramfleet_worker.app.checkpoints.verifying import verify

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.forked]

SCRIPT = Path(__file__).parent / "train_resumed.py"
STEPS = 24
AT = 10
"""The step after which the job is killed."""


@pytest.fixture
def train(tmp_path: Path, launch: Callable[..., Any]) -> Callable[..., Any]:
    """Return what launches the script with two workers, resuming from ``saved``."""
    (tmp_path / "saved").mkdir()
    files = []
    for part in range(2):
        path = tmp_path / f"part-{part}"
        first = part * 4 * STEPS
        path.write_text("".join(f"1 {n % 50}\n" for n in range(first, first + 4 * STEPS)))
        files.append(str(path))

    def run(*words: str, servers: int = 2, workers: int = 2, mode: str = "sync") -> Any:
        sizes = (f"--server_num={servers}", f"--worker_num={workers}", "--resume=saved")
        given = ("--files", *files, "--mode", mode, *words)
        return launch(SCRIPT.read_text(), *sizes, words=given)

    return run


def results(launched: Any) -> list[dict[str, Any]]:
    """Wait for a job's end; return what its workers have said, by rank."""
    code = launched.read_to_end()
    assert code == 0, launched.text
    found = {}
    for line in launched.lines:
        head, _, rest = line.partition("] ")
        if rest.startswith("{"):
            found[head] = json.loads(rest)
    return [found[f"[worker {rank}"] for rank in range(len(found))]


def killed(launched: Any) -> None:
    """Kill the whole job when its workers have taken some steps."""
    launched.read_until(*(f"[worker {rank}] stands still after {AT}" for rank in range(2)))
    os.kill(launched.process.pid, signal.SIGKILL)
    launched.read_to_end()


def spoiled_copy(folder: Path) -> Path:
    """Make a newer copy of the newest checkpoint, with a file that was cut off."""
    copy = folder / f"999999-step-{AT + 1}"
    shutil.copytree((folder / "latest").resolve(), copy)
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["written_at"] = "2999-01-01T00:00:00+00:00"
    (copy / "manifest.json").write_text(json.dumps(manifest))
    next(copy.glob("dense*")).write_bytes(b"")
    return copy


def test_sync_continues_as_if_never_interrupted_on_any_number_of_servers(
    train: Callable[..., Any], tmp_path: Path
) -> None:
    saved, kept = tmp_path / "saved", tmp_path / "kept"
    whole = train("--final", "whole")
    expected = results(whole)
    assert (
        f"resume: no checkpoint in {saved} yet: the job starts from the beginning" in whole.said
    )
    shutil.rmtree(saved)
    saved.mkdir()
    killed(train("--stop_after", str(AT), "--final", "never"))
    spoiled = spoiled_copy(saved)
    saved.rename(kept)

    for servers in (1, 2, 3):
        shutil.copytree(kept, saved, symlinks=True)
        words = ["--final", f"with{servers}", "--pretrained", "is-not-read"]
        resumed = train(*words, servers=servers)
        found = results(resumed)

        assert any(line.startswith(f"resume: skipped {spoiled}") for line in resumed.said)
        for one, other in zip(found, expected, strict=True):
            assert one["began"] == AT
            assert one["resumed_from"].endswith(f"-step-{AT}")
            assert one["numbers"] == other["numbers"][4 * AT :]
            assert one["losses"] == pytest.approx(other["losses"][AT:], abs=1e-6)
        same = diff(tmp_path / "whole", tmp_path / f"with{servers}")
        assert verify(tmp_path / f"with{servers}").problems == ()
        for table in same.tables:
            assert (table.changes.only_in_a, table.changes.only_in_b) == (0, 0)
            assert table.changes.largest < 1e-5
        shutil.rmtree(saved)


@pytest.mark.parametrize("ends", ["is stopped", "fails"])
def test_a_job_that_ends_early_says_from_where_it_may_go_on(
    train: Callable[..., Any], tmp_path: Path, ends: str
) -> None:
    launched = train("--stop_after", str(AT), "--final", "never")
    launched.read_until(*(f"[worker {rank}] stands still after {AT}" for rank in range(2)))
    command = [sys.executable, "-m", "paramfleet_worker", "status", "--json"]
    while (
        '"periodic_checkpoint": null'
        in subprocess.run(tied(command), capture_output=True, text=True, check=True).stdout
    ):
        pass  # a heartbeat brings it
    if ends == "fails":
        started = (tmp_path / "log" / "serverlog.0").read_text()
        os.kill(int(re.findall(r"pserver\.started pid=(\d+)", started)[0]), signal.SIGKILL)
    else:
        launched.process.send_signal(signal.SIGINT)

    assert launched.read_to_end() != 0

    newest = (tmp_path / "saved" / "latest").resolve()
    said = [line for line in launched.said if line.startswith("newest checkpoint: ")]
    assert said == launched.said[-2:-1], launched.text
    begin = f"newest checkpoint: {newest} (step {AT}); go on with: "
    options = f"paramfleet launch --resume {newest} --server_num=2 --worker_num=2"
    assert said[0].startswith(f"{begin}{options} {tmp_path / 'train.py'} --files ")
    assert said[0].endswith(" --final never")


def test_one_worker_continues_with_what_two_have_left(train: Callable[..., Any]) -> None:
    killed(train("--stop_after", str(AT), "--final", "never"))

    (found,) = results(train("--final", "whole", servers=3, workers=1))

    assert found["began"] == AT
    left = [*range(4 * AT, 4 * STEPS), *range(4 * (STEPS + AT), 8 * STEPS)]
    assert sorted(found["numbers"]) == sorted(n % 50 for n in left)


@pytest.mark.parametrize("mode", ["async", "geo"])
def test_other_modes_continue_with_steps_and_positions(
    train: Callable[..., Any], tmp_path: Path, mode: str
) -> None:
    killed(train("--stop_after", str(AT), "--final", "never", mode=mode))

    found = results(train("--final", "whole", servers=1, mode=mode))

    assert verify(tmp_path / "whole").problems == ()
    assert all(0 < each["began"] <= AT for each in found)
    assert all(each["numbers"] for each in found)
