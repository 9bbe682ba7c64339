"""What the test of the cluster does where its engine refuses, and where the machine is slow."""

import importlib.util
import os
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "compose" / "cluster.py"
SPEC = importlib.util.spec_from_file_location("cluster", PROGRAM)
assert SPEC is not None
assert SPEC.loader is not None
cluster = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(cluster)

ENGINE = """#!/bin/sh
# Refuses to pause and to kill as often as the file 'refuses' has lines; tells what it did.
echo "$*" >> "$0.did"
case "$1" in
pause | unpause | kill)
    if [ -s "$0.refuses" ]; then
        sed -i 1d "$0.refuses"
        echo "Cannot $1 container c: runtime error: unable to freeze: unknown" >&2
        exit 1
    fi
    ;;
esac
"""


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "docker"
    program.write_text(ENGINE)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(cluster, "AGAIN_AFTER_S", 0.0)
    return program


def did(engine: Path) -> list[str]:
    return engine.with_name("docker.did").read_text().splitlines()


def refuse(engine: Path, *, times: int) -> None:
    engine.with_name("docker.refuses").write_text("no\n" * times)


def test_a_fault_that_the_engine_refuses_once_is_tried_again(engine: Path) -> None:
    refuse(engine, times=1)

    cluster.act("pause", "c")

    assert did(engine) == ["pause c", "pause c"]


@pytest.mark.parametrize(("fault", "signal"), [("pause", "STOP"), ("unpause", "CONT")])
def test_a_pause_that_the_engine_always_refuses_is_made_by_a_signal(
    engine: Path, fault: str, signal: str
) -> None:
    refuse(engine, times=9)

    cluster.act(fault, "c")

    assert did(engine) == [f"{fault} c"] * 3 + [f"exec c sh -c kill -{signal} -1"]


def test_a_fault_that_no_signal_makes_ends_with_what_the_engine_said(engine: Path) -> None:
    refuse(engine, times=9)

    with pytest.raises(cluster.ClusterError, match="unable to freeze"):
        cluster.act("kill", "c")


class Slow(cluster.Cluster):  # type: ignore[name-defined, misc]
    """Takes a step whenever it is looked at, until it stands still."""

    def __init__(self, *, stands_still_after: int) -> None:
        super().__init__("slow", {"ADMIN_PORT": "1"})
        self.step = 0
        self._most = stands_still_after

    def progress(self) -> object:
        self.step = min(self._most, self.step + 1)
        return self.step


def test_a_cluster_that_goes_on_is_waited_for_and_one_that_stands_still_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster, "POLL_S", 0.001)
    slow = Slow(stands_still_after=200)

    slow.wait_until("it has taken 50 steps", lambda: slow.step >= 50, still_s=0.1)
    with pytest.raises(
        cluster.ClusterError, match=r"without progress until it has taken 201 steps"
    ):
        slow.wait_until("it has taken 201 steps", lambda: slow.step > 200, still_s=0.1)

    assert slow.step == 200
