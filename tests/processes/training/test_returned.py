"""A pserver is killed, and started again: the training goes on as if it had not been."""

import signal
from pathlib import Path
from typing import Any

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
    args = (f"--mode={mode}", "--steps=600")
    expected = jobs.run(SCRIPT, *args).results

    lives = Lives(jobs, tmp_path, *args)
    lives.running.wait_for("worker0", "step 100.")
    lives.kill(1)
    lives.running.wait_for("worker0", "step 300.")
    lives.kill(0)

    assert differences(lives.results(), expected) == {}
