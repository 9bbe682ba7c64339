"""A load that one worker or one pserver refuses."""

import shutil
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SCRIPT = "load_refused.py"


@pytest.fixture
def folder(jobs: Any, tmp_path: Path) -> str:
    where = tmp_path / "kept"
    where.mkdir()
    common = ["--folder", str(where), "--save"]
    ended = jobs.run(SCRIPT, *common, workers=1, servers=1)
    assert set(ended.codes.values()) == {0}, ended.story()
    return str(where)


@pytest.mark.parametrize(
    ("mode", "refusing"), [("sync", 1), ("geo", 0), ("geo", 1), ("async", 0)]
)
def test_a_worker_that_cannot_take_its_states_leaves_the_job_as_it_was(
    jobs: Any, folder: str, mode: str, refusing: int
) -> None:
    common = ["--folder", folder, "--mode", mode, "--refusing", str(refusing)]

    results = jobs.run(SCRIPT, *common, workers=2, servers=2).results

    for result in results:
        load, step, save = result["caught"]
        assert load[0] == "RegisteredStateError"
        assert "'first'" in load[1]
        assert "no such count" in load[1]
        assert result["after"] == result["before"]
        assert [step, save, result["steps"]] == [[], [], 2]


def test_an_error_that_nobody_expects_reaches_the_other_workers_too(
    jobs: Any, folder: str
) -> None:
    common = ["--folder", folder, "--refusing", "1", "--oddly"]

    results = jobs.run(SCRIPT, *common, workers=2, servers=1).results

    (other, _, _), (own, _, _) = (result["caught"] for result in results)
    assert own == ["AssertionError", "no such count"]
    assert other[0] == "LoadRefusedError"
    assert "worker 1 " in other[1]
    assert all(result["after"] == result["before"] for result in results)


def test_a_pserver_that_refuses_ends_the_training_until_another_load(
    jobs: Any, folder: str, tmp_path: Path
) -> None:
    allowed = tmp_path / "allowed"
    shutil.copytree(f"{folder}/one", allowed / "one")
    common = ["--folder", folder, "--allowing", "0", "--again", f"{allowed}/one"]

    results = jobs.run(
        SCRIPT, *common, workers=2, servers=2, PARAMFLEET_CHECKPOINT_DIRS=str(allowed)
    ).results

    for result in results:
        load, step, save, again, more = result["caught"]
        assert load[0] == "FolderNotAllowedError"
        assert step[0] == save[0] == "LoadIncompleteError"
        assert f"{folder}/one" in step[1]
        assert [again, more] == [[], []]
        assert [result["after"]["counts"], result["after"]["rate"]] == [[1, 1], 0.5]
        assert result["steps"] == 4
