"""A model on a CUDA device trains as one on the host does."""

from typing import Any

import numpy as np
import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
]

SCRIPT = "train_tiny.py"
OPTIMIZERS = ["sgd", "adagrad", "adam", "rmsprop"]


def assert_alike(on_device: dict[str, Any], on_host: dict[str, Any]) -> None:
    for key in ("losses", "dense", "rows"):
        np.testing.assert_allclose(on_device[key], on_host[key], rtol=0, atol=1e-5)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_alone(jobs: Any, optimizer: str) -> None:
    args = ["--optimizer", optimizer]

    assert_alike(jobs.local(SCRIPT, *args, "--device", "cuda"), jobs.local(SCRIPT, *args))


@pytest.mark.parametrize("prefetch", [[], ["--prefetch", "watch"]])
def test_sync_with_pservers(jobs: Any, prefetch: list[str]) -> None:
    args = ["--mode", "sync", "--optimizer", "adagrad"]

    first, second = jobs.run(SCRIPT, *args, *prefetch, "--device", "cuda").results

    assert first["losses"] == second["losses"]
    assert_alike(first, jobs.local(SCRIPT, *args))


@pytest.mark.parametrize("optimizer", ["adagrad", "rmsprop"])
def test_geo_with_pservers(jobs: Any, optimizer: str) -> None:
    args = ["--mode", "geo", "--optimizer", optimizer]

    (only,) = jobs.run(SCRIPT, *args, "--device", "cuda", workers=1).results

    assert_alike(only, jobs.local(SCRIPT, *args))


def test_async_with_pservers_learns(jobs: Any) -> None:
    args = ["--mode", "async", "--steps", "150", "--prefetch", "watch", "--device", "cuda"]

    first, second = jobs.run(SCRIPT, *args).results

    assert np.mean(first["losses"][-20:]) < np.mean(first["losses"][:20]) - 0.01
    assert first["rows"] == second["rows"]
