"""gpubox: passes with rows on a device, in whole jobs of real processes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SCRIPT = "train_passes.py"
OPTIMIZERS = ["sgd", "momentum", "adagrad", "rowwise", "adam", "adamw", "ftrl"]


def result_of(
    jobs: Any, folder: Path, *args: str, workers: int = 1, servers: int = 2
) -> dict[str, Any]:
    """Return what worker 0 prints at the end of a job."""
    more = [*args, "--save", str(folder / "checkpoint")]
    found: dict[str, Any] = jobs.run(SCRIPT, *more, workers=workers, servers=servers).results[0]
    return found


Alone = Callable[..., dict[str, Any]]

KNOWN: dict[tuple[str, ...], dict[str, Any]] = {}
"""By its words: what a job of one worker printed."""


@pytest.fixture
def one_worker(jobs: Any, tmp_path: Path) -> Alone:
    """Return what runs a job of one worker; tests that ask for the same share one run."""

    def run(*args: str) -> dict[str, Any]:
        if args not in KNOWN:
            KNOWN[args] = result_of(jobs, tmp_path / "alone", *args)
        return KNOWN[args]

    return run


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_one_worker_trains_what_sync_does_to_the_bit(
    jobs: Any, one_worker: Alone, tmp_path: Path, optimizer: str
) -> None:
    sync = result_of(jobs, tmp_path / "sync", "--mode=sync", "--optimizer", optimizer)

    whole = one_worker("--optimizer", optimizer)
    split = result_of(jobs, tmp_path / "split", "--optimizer", optimizer, "--budget=4000")

    assert whole == sync
    assert split == sync


def test_rows_with_an_accessor_are_those_of_sync(jobs: Any, tmp_path: Path) -> None:
    args = ["--accessor", "SparseSharedAdamSGDRule"]
    sync = result_of(jobs, tmp_path / "sync", "--mode=sync", *args)

    split = result_of(jobs, tmp_path / "split", *args, "--budget=6000")
    shared = result_of(jobs, tmp_path / "shared", *args, workers=2)

    assert split == sync
    assert_near(shared, sync)


def test_ids_get_rows_and_rows_go_as_in_sync(jobs: Any, tmp_path: Path) -> None:
    evicts = {"max_rows": 64, "headroom": 0.5, "every_steps": 0, "min_rows": 10}
    args = ["--entry=2", "--chance=0.5", "--between=shrinks", "--evicts", json.dumps(evicts)]
    sync = result_of(jobs, tmp_path / "sync", "--mode=sync", *args)

    split = result_of(jobs, tmp_path / "split", *args, "--budget=6000")

    assert split == sync
    assert 0 < len(sync["values"]["items"][0]) <= 64


def test_several_workers_admit_the_ids_that_one_does(jobs: Any, tmp_path: Path) -> None:
    args = ["--entry=3", "--chance=0.5", "--halved=2", "--budget=4000", "--between=shrinks"]
    by_call = ["--evicts", json.dumps({"unseen_steps": 8, "every_steps": 0})]
    alone = result_of(jobs, tmp_path / "alone", *args, *by_call)

    shared = result_of(jobs, tmp_path / "shared", *args, *by_call, "--fewer=2", workers=2)

    assert 0 < len(alone["values"]["items"][0]) < 200
    assert_near(shared, alone)


def test_worker_0_removes_rows_behind_passes_and_the_others_go_on(
    jobs: Any, tmp_path: Path
) -> None:
    args = ["--ids=3000", "--fewer=8", "--halved=8", "--budget=4000", "--epochs=1"]
    evicts = ["--evicts", json.dumps({"unseen_steps": 1, "every_steps": 2})]

    shared = result_of(jobs, tmp_path / "shared", *args, *evicts, workers=2)

    last = shared["values"]["items"][0]
    assert 0 < len(last) < 300, "of some 700 ids"


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
@pytest.mark.parametrize("workers", [2, 4])
def test_several_workers_train_what_one_does(
    jobs: Any, one_worker: Alone, tmp_path: Path, workers: int, optimizer: str
) -> None:
    args = ["--optimizer", optimizer]
    alone = one_worker(*args)

    whole = result_of(jobs, tmp_path / "whole", *args, workers=workers)
    split = result_of(jobs, tmp_path / "split", *args, "--budget=2500", workers=workers)

    assert_near(whole, alone)
    assert_near(split, alone)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("workers", [1, 2])
def test_passes_on_a_gpu_train_what_the_processor_does(
    jobs: Any, one_worker: Alone, tmp_path: Path, workers: int, optimizer: str
) -> None:
    args = ["--optimizer", optimizer]
    alone = one_worker(*args)

    more = [*args, "--device=cuda", "--budget=4000"]
    on_gpu = result_of(jobs, tmp_path / "gpu", *more, workers=workers)

    assert_near(on_gpu, alone)


@pytest.mark.parametrize("more", [["--fewer=5"], ["--leaves=7"]])
def test_the_others_go_on_when_a_worker_has_no_batch_any_more(
    jobs: Any, one_worker: Alone, tmp_path: Path, more: list[str]
) -> None:
    alone = one_worker("--optimizer=momentum", "--halved=5")

    more = [*more, "--optimizer=momentum", "--budget=3500"]
    together = result_of(jobs, tmp_path / "together", *more, workers=2)

    assert_near(together, alone)


def test_gradients_of_a_worker_that_has_left_its_loop_reach_nobody(
    jobs: Any, tmp_path: Path
) -> None:
    args = ["--optimizer=momentum", "--epochs=1", "--budget=3500", "--leaves=7"]
    expected = result_of(jobs, tmp_path / "left", *args, workers=2)

    assert result_of(jobs, tmp_path / "poisoned", *args, "--poisons", workers=2) == expected


def test_a_worker_that_has_finished_goes_along_with_the_others(
    jobs: Any, tmp_path: Path
) -> None:
    args = ["--optimizer=momentum", "--fewer=12", "--halved=12", "--epochs=3"]
    alone = result_of(jobs, tmp_path / "alone", *args)

    together = result_of(jobs, tmp_path / "together", *args, "--shorter=2", workers=2)

    assert_near(together, alone)


def assert_near(together: dict[str, Any], alone: dict[str, Any]) -> None:
    """Pass if rows and dense values are equal but for the order of sums."""
    np.testing.assert_allclose(together["dense"], alone["dense"], rtol=0, atol=1e-6)
    for name, (ids, rows) in alone["values"].items():
        found_ids, found_rows = together["values"][name]
        assert found_ids == ids
        np.testing.assert_allclose(found_rows, rows, rtol=0, atol=1e-6)


def passes_of(log: str) -> list[dict[str, float]]:
    """Return the facts of each pass that a worker has logged."""
    lines = [line for line in log.splitlines() if line.startswith("pass ")]
    return [json.loads(line.removeprefix("pass ")) for line in lines]


def run_with_passes(
    jobs: Any, folder: Path, *args: str
) -> tuple[dict[str, Any], list[dict[str, float]]]:
    """Return what one worker prints at the end of a job, and the facts of its passes."""
    more = [*args, "--save", str(folder / "checkpoint")]
    ended = jobs.run(SCRIPT, *more, workers=1, servers=2)
    (result,) = ended.results
    return result, passes_of(ended.logs["worker0"])


def test_a_table_of_ten_times_the_budget_is_trained_in_passes_that_keep_it(
    jobs: Any, tmp_path: Path
) -> None:
    more = ("--ids=3000", "--steps=40", "--epochs=1")
    whole, (one,) = run_with_passes(jobs, tmp_path / "whole", *more)
    budget = int(one["device_bytes"]) // 10

    split, passes = run_with_passes(jobs, tmp_path / "split", *more, f"--budget={budget}")

    assert split == whole
    assert len(passes) >= 10
    assert max(each["device_bytes"] for each in passes) <= budget


def test_rows_that_two_passes_share_stay_and_others_come_beside_the_training(
    jobs: Any, tmp_path: Path
) -> None:
    more = ("--shared", "--steps=12", "--epochs=1")
    whole, _ = run_with_passes(jobs, tmp_path / "whole", *more)

    split, passes = run_with_passes(jobs, tmp_path / "split", *more, "--budget=2400")

    assert split == whole
    assert len(passes) > 2
    assert passes[0]["hit_share"] == 0
    assert all(0.2 < each["hit_share"] < 0.8 for each in passes[1:]), passes


def test_most_rows_of_zipf_distributed_ids_stay_from_pass_to_pass(
    jobs: Any, tmp_path: Path
) -> None:
    """The part that can stay is the data's: what two passes have in common."""
    more = ("--zipf=1.05", "--ids=10000", "--steps=800", "--epochs=1")
    whole, _ = run_with_passes(jobs, tmp_path / "whole", *more)

    split, passes = run_with_passes(jobs, tmp_path / "split", *more, "--budget=160000")

    assert split == whole
    assert len(passes) == 2
    assert passes[1]["hit_share"] >= 0.5, passes
