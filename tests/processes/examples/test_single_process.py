"""The examples learn, as whole programs in one process."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from paramfleet_shared.system.processes.keeping import tied

EXAMPLES = Path(__file__).parents[3] / "examples"

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.forked]


def result_of(example: str, *arguments: str) -> dict[str, Any]:
    """Run the program and return what its last line says."""
    run = subprocess.run(
        tied([sys.executable, str(EXAMPLES / example / "train.py"), *arguments]),
        capture_output=True,
        check=True,
        text=True,
    )
    result: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return result


@pytest.mark.forked(False)
def test_flights_are_learnt(tmp_path: Path) -> None:
    words = ["--cache_dir", str(tmp_path), "--epochs", "1"]
    result = result_of("wide_and_deep", *words)
    in_a_pass = result_of("wide_and_deep", *words, "--mode", "gpubox")

    assert result["test_auc"] > 0.80
    assert result | {"mode": "local", "servers": 0, "workers": 1, "epochs": 1} == result
    assert in_a_pass["test_auc"] == result["test_auc"]


@pytest.mark.parametrize("model", ["two_tower", "dlrm"])
def test_other_models_learn_the_census_as_passes_too(
    model: str, data_dir: Path, tmp_path: Path
) -> None:
    words = ["--data", "census", "--data_dir", str(data_dir), "--cache_dir", str(tmp_path)]
    words += ["--model", model, "--epochs", "2"]
    result = result_of("wide_and_deep", *words)
    in_passes = result_of("wide_and_deep", *words, "--mode", "gpubox")

    assert result["test_auc"] > 0.90
    assert in_passes["test_auc"] == result["test_auc"]


def test_the_census_is_learnt(data_dir: Path, tmp_path: Path) -> None:
    result = result_of(
        "wide_and_deep",
        *("--data", "census", "--data_dir", str(data_dir), "--cache_dir", str(tmp_path)),
    )

    assert result["test_auc"] > 0.912


def test_the_same_seed_gives_the_same_result() -> None:
    first, second = (result_of("mlp", "--steps", "50", "--seed", "3") for _ in range(2))

    assert first["last_loss"] == second["last_loss"]


def test_the_generated_data_are_learnt() -> None:
    result = result_of("mlp")

    assert result["test_accuracy"] > 0.9
    assert result["last_loss"] < result["first_loss"] / 2
