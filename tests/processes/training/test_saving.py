"""Checkpoints of whole jobs: any number of servers, alone or not, and without us."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SCRIPT = "train_tiny.py"
HALF = ["--mode", "sync", "--steps", "10"]


def far(a: dict[str, Any], b: dict[str, Any], key: str) -> float:
    return float(np.abs(np.subtract(a[key], b[key])).max())


@pytest.mark.parametrize("optimizer", ["adam", "each", "several"])
def test_training_goes_on_from_a_checkpoint_on_another_number_of_servers(
    jobs: Any, optimizer: str, tmp_path: Path
) -> None:
    folder = str(tmp_path / "half")
    args = [*HALF, "--optimizer", optimizer]
    whole = jobs.local_once(SCRIPT, "--optimizer", optimizer, "--steps", "20")
    half = len(whole["losses"]) // 2

    jobs.run(SCRIPT, *args, "--save", folder, servers=2).results  # noqa: B018 - asserts success
    by_server = jobs.run(
        SCRIPT, *args, "--skip", "10", "--server_load", folder, servers=3, workers=1
    )
    by_worker = jobs.run(SCRIPT, *args, "--skip", "10", "--load", folder, servers=1)
    alone = jobs.local(SCRIPT, *args, "--skip", "10", "--load", folder)

    for result in [*by_server.results, *by_worker.results, alone]:
        assert far(result, {"losses": whole["losses"][half:]}, "losses") <= 1e-6
        assert far(result, whole, "dense") <= 1e-5
        assert far(result, whole, "rows") <= 1e-5


def test_what_was_trained_alone_goes_on_in_a_job(jobs: Any, tmp_path: Path) -> None:
    folder = str(tmp_path / "half")
    whole = jobs.local_once(SCRIPT, "--optimizer", "adam", "--steps", "20")

    jobs.local(SCRIPT, "--optimizer", "adam", "--steps", "10", "--save", folder)
    (result,) = jobs.run(
        SCRIPT, *HALF, "--optimizer", "adam", "--skip", "10", "--load", folder, workers=1
    ).results

    assert far(result, {"losses": whole["losses"][10:]}, "losses") <= 1e-6


def test_geo_goes_on_from_its_checkpoint(jobs: Any, tmp_path: Path) -> None:
    folder = str(tmp_path / "geo")
    args = ["--mode", "geo", "--steps", "10"]

    saved = jobs.run(SCRIPT, *args, "--save", folder, workers=1).results
    loaded = jobs.run(SCRIPT, "--mode", "geo", "--steps", "0", "--server_load", folder).results

    for result in loaded:
        assert far(result, saved[0], "dense") <= 1e-5
        assert far(result, saved[0], "rows") <= 1e-5


def test_geo_goes_on_with_what_rows_have_counted(jobs: Any, tmp_path: Path) -> None:
    folder = str(tmp_path / "half")
    args = ["--accessor", "SparseAdaGradSGDRule", "--days", "6", "--batch", "16"]
    whole = jobs.local_once(SCRIPT, *args, "--steps", "12")
    half = ["--mode", "geo", "--k_steps", "1", *args, "--steps", "6"]

    jobs.run(SCRIPT, *half, "--save", folder, workers=1).results  # noqa: B018 - asserts success
    again = ["--skip", "6", "--first_day", "1"]
    (result,) = jobs.run(SCRIPT, *half, *again, "--reload", folder, workers=1).results

    assert far(result, {"losses": whole["losses"][6:]}, "losses") <= 1e-6
    assert far(result, whole, "rows") <= 1e-5
    assert result["gone"] == whole["gone"]


@pytest.mark.parametrize(("mode", "how"), [("sync", "--load"), ("geo", "--server_load")])
def test_tables_that_checkpoint_and_model_do_not_share_are_named(
    jobs: Any, mode: str, how: str, tmp_path: Path
) -> None:
    folder = tmp_path / "former"
    jobs.local(SCRIPT, "--steps", "2", "--save", str(folder))
    path = folder / "manifest.json"
    path.write_text(path.read_text().replace('"deep"', '"shallow"'))

    ended = jobs.run(SCRIPT, "--mode", mode, "--steps", "0", how, str(folder), servers=1)

    assert ended.results
    logs = ended.logs["worker0"]
    assert logs.count("worker.tables_not_in_checkpoint") == 1
    assert "deep" in logs
    assert logs.count("worker.tables_not_in_model") == 1
    assert "shallow" in logs
    assert "tables_not_in" not in ended.logs["worker1"]


def test_states_that_no_checkpoint_has_are_named_in_geo(jobs: Any, tmp_path: Path) -> None:
    folder = str(tmp_path / "geo")
    args = ["--mode", "geo", "--optimizer", "rmsprop"]
    jobs.run(SCRIPT, *args, "--steps", "4", "--save", folder).results  # noqa: B018 - asserts success

    ended = jobs.run(SCRIPT, *args, "--steps", "0", "--load", folder)

    assert ended.results
    assert ended.logs["worker0"].count("worker.states_begin_anew") == 1
    assert "RMSprop" in ended.logs["worker0"]


@pytest.mark.parametrize("mode", ["sync", "async", "geo"])
def test_an_inference_model_loads_without_us(jobs: Any, mode: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    args = ["--mode", mode, "--steps", "12", "--inference", str(folder)]

    result = jobs.run(SCRIPT, *args, workers=1).results[0]

    state = torch.load(folder / "model.pt", weights_only=True)  # noqa: TID251 - the safe kind
    dense = torch.cat([value.flatten() for value in state.values()])
    assert np.abs(np.subtract(dense.tolist(), result["dense"])).max() <= 1e-6
    deep = load_file(folder / "rows.deep.safetensors")
    assert (np.diff(deep["ids"]) > 0).all()
    trained = np.reshape(result["rows"], (200, 5))[deep["ids"], :4]
    place = torch.searchsorted(torch.from_numpy(deep["ids"]), torch.from_numpy(deep["ids"]))
    found = torch.nn.functional.embedding(place, torch.from_numpy(deep["rows"]))
    assert np.abs(found.numpy() - trained).max() <= 1e-6


def test_a_damaged_checkpoint_is_refused_by_name(jobs: Any, tmp_path: Path) -> None:
    folder = tmp_path / "half"
    jobs.local(SCRIPT, "--steps", "5", "--save", str(folder))
    manifest = json.loads((folder / "manifest.json").read_text())
    victim = folder / manifest["files"][0]["name"]
    content = bytearray(victim.read_bytes())
    content[-1] ^= 1
    victim.write_bytes(bytes(content))

    ended = jobs.run(SCRIPT, *HALF, "--load", str(folder), workers=1, servers=1)

    assert ended.codes["worker0"] != 0
    assert "CheckpointDamagedError" in ended.logs["worker0"]
    assert victim.name in ended.logs["worker0"]


def test_a_checkpoint_is_whole_or_not_there(jobs: Any, tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    jobs.local(SCRIPT, "--steps", "2", "--save", str(folder))
    jobs.local(SCRIPT, "--steps", "3", "--save", str(folder))

    assert json.loads((folder / "manifest.json").read_text())["tables"][0]["version"] == 3
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["saved"]


@pytest.mark.parametrize("mode", ["sync", "async", "geo"])
def test_loading_in_the_middle_forgets_what_was_trained_since(
    jobs: Any, mode: str, tmp_path: Path
) -> None:
    folder = str(tmp_path / "saved")
    args = ["--mode", mode]
    saved = jobs.run(SCRIPT, *args, "--steps", "8", "--save", folder).results[0]

    results = jobs.run(SCRIPT, *args, "--steps", "0", "--reload", folder).results

    for result in results:
        assert far(result, saved, "dense") <= 1e-6
        assert far(result, saved, "rows") <= 1e-6


def test_a_checkpoint_that_is_not_there_is_an_error_in_every_worker(
    jobs: Any, tmp_path: Path
) -> None:
    ended = jobs.run(SCRIPT, *HALF, "--load", str(tmp_path / "none"))

    for name in ("worker0", "worker1"):
        assert ended.codes[name] != 0
        assert "ManifestError" in ended.logs[name]


def test_pservers_save_and_load_below_their_folders_only_and_name_the_setting(
    jobs: Any, tmp_path: Path
) -> None:
    allowed, elsewhere = tmp_path / "allowed", tmp_path / "elsewhere"
    options = {"PARAMFLEET_CHECKPOINT_DIRS": str(allowed), "servers": 1}
    few = ["--mode", "sync", "--steps", "2"]
    jobs.local(SCRIPT, *few, "--save", str(elsewhere))
    before = sorted(elsewhere.iterdir())

    saving = jobs.run(SCRIPT, *few, "--save", str(tmp_path / "new"), workers=1, **options)
    loading = jobs.run(SCRIPT, *few, "--load", str(elsewhere), **options)

    for ended, name in ((saving, "worker0"), (loading, "worker0"), (loading, "worker1")):
        assert ended.codes[name] != 0
        assert "FolderNotAllowedError" in ended.logs[name]
        assert str(allowed) in ended.logs[name]
        assert "PARAMFLEET_CHECKPOINT_DIRS" in ended.logs[name]
    assert f"folder '{tmp_path / 'new'}' is not below" in saving.logs["worker0"]
    assert not (tmp_path / "new").exists()
    assert not list(tmp_path.glob(".*"))
    assert sorted(elsewhere.iterdir()) == before
