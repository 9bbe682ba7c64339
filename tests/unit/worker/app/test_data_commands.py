"""What pservers have left is listed and removed, unless a process has it."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from paramfleet_pserver.durability.data_folder import DataFolder
from paramfleet_worker.app.commands.data import data


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    for job, index, run in (("failed", 0, 7), ("failed", 1, 7), ("old", 0, 3)):
        folder = DataFolder(tmp_path, job, index)
        folder.begin(run)
        (folder.run(run) / "snapshot").write_bytes(bytes(100_000))
        folder.close()
    for path in (tmp_path / "old").rglob("*"):
        os.utime(path, (1e9, 1e9))
    (tmp_path / "notes").mkdir()
    running = DataFolder(tmp_path, "running", 0)
    running.begin(9)
    yield tmp_path
    running.close()


def asked(*words: str) -> Result:
    return CliRunner().invoke(data, words)


def listed(root: Path, *words: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(asked("list", str(root), "--json", *words).output)
    return found


def names(found: list[dict[str, Any]]) -> list[tuple[str, int, int]]:
    return [(each["job"], each["index"], each["run"]) for each in found]


def test_all_runs_are_listed_with_their_size_and_use(root: Path) -> None:
    found = listed(root)

    everything = [("failed", 0, 7), ("failed", 1, 7), ("old", 0, 3), ("running", 0, 9)]
    assert names(found) == everything
    assert [each["in_use"] for each in found] == [False, False, False, True]
    assert all(each["bytes"] >= 100_000 for each in found[:3])
    assert found[2]["days"] > 100 > found[0]["days"]
    text = asked("list", str(root)).output
    assert "running pserver 0 run 9" in text
    assert "in use" in text
    assert text.splitlines()[-1].startswith("4 runs, ")


def test_what_is_named_is_removed(root: Path) -> None:
    assert names(listed(root, "--job=failed")) == [("failed", 0, 7), ("failed", 1, 7)]
    done = asked("remove", str(root), "--job=failed")
    assert done.exit_code == 0, done.output
    assert done.output.splitlines()[-1] == "2 runs removed"

    assert asked("remove", str(root), "--older-than=30").exit_code == 0
    assert names(listed(root)) == [("running", 0, 9)]


def test_what_a_process_has_stays(root: Path) -> None:
    done = asked("remove", str(root), "--job=running", "--json")

    assert (done.exit_code, json.loads(done.output)) == (0, [])
    assert ("running", 0, 9) in names(listed(root))
    said = asked("remove", str(root), "--job=running").output
    assert said.splitlines()[-1] == "0 runs removed; 1 in use stay"


def test_nothing_is_removed_that_is_not_named(root: Path) -> None:
    refused = asked("remove", str(root))

    assert refused.exit_code != 0
    assert len(listed(root)) == 4
