"""A pserver is killed, and started again: the training goes on as if it had not been."""

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SCRIPT = "train_returned.py"


class Lives:
    """A job whose pservers are killed and started again."""

    def __init__(self, jobs: Any, folder: Path, *args: str, **env: str) -> None:
        self.running = jobs.new(
            **{
                "PARAMFLEET_PSERVER__DURABILITY": "async",
                "PARAMFLEET_PSERVER__DATA_DIR": str(folder / "data"),
                **env,
            }
        )
        self._args = args
        self._killed: list[str] = []
        self._names = {index: f"pserver{index}" for index in (0, 1)}
        self.running.start_all(SCRIPT, *args)

    def kill(self, index: int, *, starts: bool = True) -> None:
        """Kill a pserver, and start it again."""
        former = self._names[index]
        self.running.send(former, signal.SIGKILL)
        assert self.running.code(former) == -signal.SIGKILL, self.running.story()
        self._killed.append(former)
        if starts:
            self.start(index)

    def start(self, index: int) -> None:
        """Start a pserver again."""
        name = self._names[index] = f"pserver{index}.{len(self._killed)}"
        self.running.start_pserver(index, SCRIPT, *self._args, name=name)

    def results(self) -> list[dict[str, Any]]:
        """Wait for the end; return what each worker found."""
        ended = self.running.end()
        codes = {code for name, code in ended.codes.items() if name not in self._killed}
        assert codes == {0}, ended.story()
        return [ended.last_json(f"worker{rank}") for rank in (0, 1)]


def differences(found: Any, expected: Any) -> dict[str, tuple[Any, Any]]:
    """Return what differs by more than rounding, by its place: a change adds 0.5 at least."""
    places = zip(leaves(found), leaves(expected), strict=True)
    return {
        place: (have, want)
        for (place, have), (_, want) in places
        if have != pytest.approx(want, abs=0.01)
    }


def leaves(value: Any, place: str = "") -> list[tuple[str, Any]]:
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    else:
        return [(place, value)]
    return [leaf for key, each in items for leaf in leaves(each, f"{place}/{key}")]


@pytest.mark.parametrize("mode", ["sync", "async", "geo", "localsgd"])
def test_every_change_is_in_once_after_a_pserver_was_killed(
    jobs: Any, tmp_path: Path, mode: str
) -> None:
    args = (f"--mode={mode}", "--steps=300")
    expected = jobs.run(SCRIPT, *args).results

    lives = Lives(jobs, tmp_path, *args)
    lives.running.wait_for("worker0", "step 50.")
    lives.kill(1)
    lives.running.wait_for("worker0", "step 150.")
    lives.kill(0)

    assert differences(lives.results(), expected) == {}


def test_syncs_losses_and_values_are_those_of_a_run_without_deaths_to_the_bit(
    jobs: Any, tmp_path: Path
) -> None:
    args = ("--mode=sync", "--steps=300", "--learns")
    expected = jobs.run(SCRIPT, *args).results

    lives = Lives(jobs, tmp_path, *args)
    for number in range(4):
        lives.running.wait_for("worker0", f"step {50 + 60 * number}.")
        lives.kill(number % 2)
    found = lives.results()

    assert found == expected
    assert len(set(found[0]["losses"])) > 100


@pytest.mark.parametrize(
    "args",
    [
        ("--mode=async", "--wire_dtype=int8"),
        ("--mode=async", "--max_staleness=2"),
        ("--mode=geo", "--wire_dtype=bfloat16"),
    ],
)
def test_both_pservers_may_be_killed_at_once(
    jobs: Any, tmp_path: Path, args: tuple[str, ...]
) -> None:
    lives = Lives(jobs, tmp_path, "--steps=300", *args)
    for step in (50, 150):
        lives.running.wait_for("worker0", f"step {step}.")
        for index in (0, 1):
            lives.kill(index, starts=False)
        for index in (0, 1):
            lives.start(index)

    for found in lives.results():
        for table in found["rows"].values():
            assert np.array(table[:24]) == pytest.approx(600.0, rel=0.02)
            assert np.array(table[24:88]) == pytest.approx(300.0, rel=0.02)


def test_a_pserver_that_is_asked_to_end_leaves_its_training_to_the_next_process(
    jobs: Any, tmp_path: Path
) -> None:
    lives = Lives(jobs, tmp_path, "--mode=sync", "--steps=400")
    lives.running.wait_for("worker0", "step 50.")
    lives.running.send("pserver1", signal.SIGTERM)
    assert lives.running.code("pserver1") == 0
    lives.start(1)

    assert {tuple(found["dense"]) for found in lives.results()} == {(200.0,) * 64}


def test_a_job_whose_pserver_does_not_come_back_ends_by_name(jobs: Any, tmp_path: Path) -> None:
    lives = Lives(
        jobs, tmp_path, "--steps=100000", PARAMFLEET_COORDINATOR__SERVER_RETURN_S="2",
        PARAMFLEET_LEASE_TTL_S="3",
    )  # fmt: skip
    lives.running.wait_for("worker0", "step 50.")
    lives.kill(1, starts=False)

    for name in ("worker0", "worker1", "pserver0", "coordinator"):
        assert lives.running.code(name) != 0
    assert "pserver 1" in lives.running.log("worker0")
    assert "no process came back with its data" in lives.running.log("worker0")
