"""A job whose groups move and are followed goes back to a checkpoint by command."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.processes.launcher.scaling import ask_job

from paramfleet_shared.errors import FleetError
from paramfleet_shared.settings.config import read_environment
from paramfleet_shared.system.processes.keeping import tied
from paramfleet_shared.testing.patience import LATE_S
from paramfleet_worker.app.checkpoints.diffing import diff

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.forked]

SCRIPT = Path(__file__).parents[1] / "training" / "scripts" / "train_loaded.py"
WITHIN_S = 5 * LATE_S
PAUSE_S = 0.2
"""Between two looks."""


class Job:
    """One launch, and the command line that steers it."""

    def __init__(self, folder: Path) -> None:
        self.name = f"moving-{folder.name}"
        self.folder = folder

    @contextmanager
    def launched(self, mode: str, *options: str) -> Iterator[None]:
        """Train meanwhile, and end well."""
        enough = self.folder / "enough"
        words = ["launch", "--worker_num=2", f"--job={self.name}", *options]
        words += [f"--log-dir={self.folder / 'log'}", str(SCRIPT), f"--mode={mode}"]
        words += [f"--folder={self.folder}", f"--until={enough}"]
        said = (self.folder / "said").open("wb")
        launcher = subprocess.Popen(
            tied([sys.executable, "-m", "paramfleet_worker", *words]),
            cwd=self.folder, env=read_environment(), stdin=subprocess.DEVNULL,
            stdout=said, stderr=said,
        )  # fmt: skip
        with said:
            try:
                yield
                enough.touch()
                assert launcher.wait(timeout=120) == 0, self.story()
            finally:
                launcher.terminate()
                launcher.wait(timeout=60)

    def story(self) -> str:
        return (self.folder / "said").read_text(errors="replace")[-6000:]

    def command(self, *words: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            tied([sys.executable, "-m", "paramfleet_worker", *map(str, words),
                  "--job", self.name, "--json"]),
            env=read_environment(), capture_output=True, text=True, timeout=200, check=False,
        )  # fmt: skip

    def ask(self, *words: object) -> Any:
        done = self.command(*words)
        assert done.returncode == 0, done.stderr + self.story()
        return json.loads(done.stdout)

    def until(self, holds: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
        """Look at the status until it tells."""
        status: dict[str, Any] = {}
        deadline = time.perf_counter() + WITHIN_S
        while time.perf_counter() < deadline:
            with suppress(FleetError):  # until it is there
                status = ask_job(self.name, lambda operator: operator.get("status"))
            if status and holds(status):
                return status
            time.sleep(PAUSE_S)  # noqa: TID251 - leaves the cores to the job
        pytest.fail(f"{status}\n{self.story()}")

    def trained(self, count: int) -> Callable[[dict[str, Any]], bool]:
        return lambda status: (
            [(w["step"] or 0) >= count for w in status["workers"]] == [True, True]
        )


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_load_reaches_groups_that_move_and_those_who_follow_them(
    mode: str, tmp_path: Path
) -> None:
    job = Job(tmp_path)
    with job.launched(mode, "--server_num=2:4", "--replicas=1"):
        job.until(job.trained(10))
        good = Path(job.ask("checkpoint", "write")["dirname"])
        good = good if good.is_absolute() else tmp_path / good
        job.until(job.trained(60))
        job.ask("scale", "pservers=4")  # groups move from now on
        told = job.ask("checkpoint", "load", good)
        assert told["state"] == "loaded"
        plan = job.until(lambda s: {g["owner"] for g in s["plan"]["groups"]} == {0, 1, 2, 3})
        assert plan["plan"]["moves"] >= 2
        job.until(job.trained(told["step"] + 40))
        again = job.ask("checkpoint", "load", good)
        assert (again["number"], again["step"]) == (2, told["step"])

    assert diff(good, tmp_path / "after-1").equal
    assert diff(good, tmp_path / "after-2").equal
