"""Jobs that train by days: they wait for data together, die, are ended, and go on."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file
from tests.unit.client.runner.online.streams import COUNTING, write_pass, write_stream

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SCRIPT = "model_folder.py"
LAST = "20260103/0"


def words(folder: Path, *options: str) -> list[str]:
    given = ["runner.print_interval=1", "runner.model_save_path=saved", *options]
    return ["train", "-m", str(folder / "config.yaml"), *(f"-o{each}" for each in given)]


def numbers_of(checkpoint: Path) -> dict[str, NDArray[Any]]:
    """Return what a job's checkpoint has: rows in the order of their ids, and the rest."""
    parts: dict[str, list[dict[str, NDArray[Any]]]] = {}
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    for file in manifest["files"]:
        parts.setdefault(file["table"], []).append(load_file(checkpoint / file["name"]))
    found = {}
    for table, files in parts.items():
        for name in files[0]:
            axis = 0 if "ids" in files[0] else -1
            array = np.concatenate([each[name] for each in files], axis=axis)
            found[f"{table}/{name}"] = array
        if "ids" in files[0]:
            order = np.argsort(found[f"{table}/ids"])
            for name in files[0]:
                found[f"{table}/{name}"] = found[f"{table}/{name}"][order]
    return found


def test_a_job_goes_on_with_the_same_numbers_from_what_is_on_the_disk(
    jobs: Any, tmp_path: Path
) -> None:
    folder, copy = write_stream(tmp_path / "whole"), tmp_path / "copy"
    (folder / "model.py").write_text(COUNTING)  # rows go at the end of a day
    for name in ("20260101/0000", "20260101/1200", "20260102/0000"):
        (folder / "data" / name / "done").write_text("")
    waits = ["runner.data_donefile=done", "runner.data_sleep_second=0.1"]

    running = jobs.start(SCRIPT, *words(folder, *waits))
    running.wait_for("worker0", "day 20260102, pass 2: waits for", within_s=240)
    shutil.copytree(folder, copy)  # what would be there if all processes died now
    for each in (folder, copy):
        (each / "data/20260102/1200/done").write_text("")
    again = jobs.run(SCRIPT, *words(copy, *waits, "runner.prefetch=true"))
    whole = running.end()

    assert set(whole.codes.values()) == {0}, whole.story()
    assert set(again.codes.values()) == {0}, again.story()
    results = [each.last_json("worker0") for each in (whole, again)]
    assert [result["by_days"]["passes"] for result in results] == [4, 1]
    assert results[0]["mean"] == results[1]["mean"]
    one, other = numbers_of(folder / "saved" / LAST), numbers_of(copy / "saved" / LAST)
    assert one.keys() == other.keys()
    for name, array in one.items():
        np.testing.assert_array_equal(array, other[name], name)


def test_rows_that_are_asked_for_before_their_pass_change_no_number(
    jobs: Any, tmp_path: Path
) -> None:
    folder, copy = write_stream(tmp_path / "disk"), tmp_path / "memory"
    for number, name in enumerate(("20260101/0000", "20260101/1200", "20260102/0000")):
        shutil.rmtree(folder / "data" / name)
        write_pass(folder / "data" / name, seed=number, rows=160)
    shutil.copytree(folder, copy)
    sizes = {"workers": 1, "servers": 1}
    on_disk = {
        "PARAMFLEET_PSERVER__MEMORY_BUDGET_BYTES": "250",  # three rows: less than a batch needs
        "PARAMFLEET_PSERVER__COLD_DIR": str(tmp_path / "cold"),
    }

    running = jobs.start(SCRIPT, *words(folder, "runner.prefetch=true"), **sizes, **on_disk)
    ended = running.end()
    plain = jobs.run(SCRIPT, *words(copy, "runner.prefetch=true"), **sizes)

    assert set(ended.codes.values()) == {0}, ended.story()
    assert ended.last_json("worker0")["mean"] == plain.last_json("worker0")["mean"]
    one, other = numbers_of(folder / "saved" / LAST), numbers_of(copy / "saved" / LAST)
    assert one.keys() == other.keys()
    for name, array in one.items():
        np.testing.assert_array_equal(array, other[name], name)


@pytest.mark.parametrize("mode", ["async", "geo"])
def test_a_job_that_is_ended_while_it_waits_keeps_what_it_trained(
    jobs: Any, tmp_path: Path, mode: str
) -> None:
    folder = write_stream(tmp_path)
    for name in ("20260101/0000", "20260101/1200", "20260102/0000"):
        (folder / "data" / name / "done").write_text("")
    options = ["runner.data_donefile=done", "runner.data_sleep_second=0.1"]
    options += [f"runner.sync_mode={mode}", "runner.checkpoint_per_pass=0"]
    if mode == "async":
        options.append("runner.a_sync_configs={max_staleness: 2}")
    running = jobs.start(SCRIPT, *words(folder, *options), PARAMFLEET_BARRIER_TIMEOUT_S="3")
    running.wait_for("worker0", "day 20260102, pass 2: waits for", within_s=240)
    admin = running.admin()
    waiting = admin.wait(
        lambda s: all((w["by_days"] or {}).get("waits_for") for w in s["workers"])
    )
    assert waiting["workers"][0]["by_days"]["state"] == "waiting for data"
    file = folder / "data/20260102/1200/done"
    reason = f"waits for data: {file}"  # when that has taken most of the time of late
    admin.wait(lambda s: all(w["lag_reason"] == reason for w in s["workers"]))
    assert not (folder / "saved/20260102/1").exists()

    assert admin.post("pause")[0] == 200
    paused = admin.wait(lambda s: any(w["phase"] == "pause" for w in s["workers"]))
    admin.wait(lambda s: s["now_s"] > paused["now_s"] + 4)
    assert admin.post("resume")[0] == 200
    assert admin.post("end")[0] == 200

    ended = running.end()
    assert set(ended.codes.values()) == {0}, ended.story()
    assert ended.last_json("worker0")["by_days"] == {
        "passes": 3,
        "day": "20260102",
        "pass": 1,
    }
    assert (folder / "saved/20260102/1/manifest.json").exists()
    assert (folder / "saved/donefile.txt").read_text().splitlines()[-1].startswith("20260102\t")


def test_workers_that_come_and_go_do_not_train_by_days(jobs: Any, tmp_path: Path) -> None:
    folder = write_stream(tmp_path)
    elastic = {"PARAMFLEET_COORDINATOR__ELASTIC": "true"}
    options = ["runner.sync_mode=async", "runner.save_first_base=false"]

    running = jobs.start(SCRIPT, *words(folder, *options), workers=1, servers=1, **elastic)

    assert running.code("worker0") == 2, running.story()
    assert "an elastic job can't train by days" in running.log("worker0")
