"""BatchNorm's statistics are part of the model: agreed, saved, loaded and exported."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis
import torch

from paramfleet_shared.discovery.redis.embedded import EmbeddedRedis
from paramfleet_shared.discovery.redis.scripts import Keys

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SCRIPT = "train_normed.py"
MODES = pytest.mark.parametrize("mode", ["sync", "async", "geo", "localsgd"])
STATISTICS = ("norm.running_mean", "norm.running_var")


def mean_of(results: list[dict[str, Any]], when: str, name: str) -> Any:
    return np.mean([result[when][name] for result in results], axis=0)


@MODES
def test_workers_end_with_the_mean_of_their_statistics_and_evaluate_alike(
    jobs: Any, mode: str
) -> None:
    results = jobs.run(SCRIPT, "--mode", mode).results

    first, second = results
    assert first["own"][STATISTICS[0]] != second["own"][STATISTICS[0]]
    ended = [{k: v for k, v in r["ended"].items() if k != "scratch"} for r in results]
    assert ended[0] == ended[1]
    for name in STATISTICS:
        np.testing.assert_allclose(ended[0][name], mean_of(results, "own", name), rtol=1e-6)
    assert ended[0]["norm.num_batches_tracked"] == [12]
    assert [r["ended"]["scratch"] for r in results] == [[0.0, 0.0], [1.0, 1.0]]


def test_buffers_of_many_megabytes_are_agreed_on(jobs: Any) -> None:
    results = jobs.run(SCRIPT, "--queue", str(7 << 20), "--steps", "2").results

    assert [result["own"]["queue"] for result in results] == [[2.0] * 8, [4.0] * 8]
    assert [result["ended"]["queue"] for result in results] == [[3.0] * 8] * 2


async def test_workers_keep_their_own_and_say_so_if_redis_forgets_them(
    jobs: Any, own_redis: EmbeddedRedis, tmp_path: Path
) -> None:
    await own_redis.start()
    enough = tmp_path / "enough"
    running = jobs.start(SCRIPT, "--until", str(enough), PARAMFLEET_REDIS=own_redis.url)
    with redis.Redis.from_url(own_redis.url) as client:
        deadline = time.perf_counter() + 60.0
        key = Keys(running.job).of_run(1, "gather:1:fleet.finish")[-1]
        while not client.exists(key):
            assert time.perf_counter() < deadline, running.story()
            await asyncio.sleep(0.02)

    own_redis.kill()
    await own_redis.start()
    enough.touch()

    ended = await asyncio.to_thread(running.end)
    for rank, result in enumerate(ended.results):
        assert result["ended"] == result["own"]
        assert "worker.buffers_differ" in ended.logs[f"worker{rank}"]


def test_workers_begin_with_the_buffers_of_worker_0(jobs: Any) -> None:
    results = jobs.run(SCRIPT, "--steps", "0").results

    expected = torch.randn(3, generator=torch.Generator().manual_seed(0)).tolist()
    assert [result["began"]["drawn"] for result in results] == [expected, expected]


@pytest.mark.parametrize("mode", ["sync", "geo"])
def test_a_loaded_model_is_the_one_that_was_saved(jobs: Any, mode: str, tmp_path: Path) -> None:
    folder = str(tmp_path / "saved")
    saved = jobs.run(SCRIPT, "--mode", mode, "--save", folder).results[0]["ended"]
    few = ["--mode", mode, "--steps", "0"]

    loaded = jobs.run(SCRIPT, *few, "--load", folder, servers=1).results
    served = jobs.run(SCRIPT, *few, "--server_load", folder).results
    alone = [] if mode == "geo" else [jobs.local(SCRIPT, *few, "--load", folder)]

    assert saved["seen"] == [192]
    for result in [*loaded, *served, *alone]:
        for name in ("outputs", "seen", "drawn", "norm.num_batches_tracked", *STATISTICS):
            np.testing.assert_allclose(result["began"][name], saved[name], atol=1e-6)
            np.testing.assert_allclose(result["ended"][name], saved[name], atol=1e-6)


def test_a_model_for_inference_has_the_agreed_statistics(jobs: Any, tmp_path: Path) -> None:
    folder = tmp_path / "model"

    ended = jobs.run(SCRIPT, "--inference", str(folder)).results[0]["ended"]

    state = torch.load(folder / "model.pt", weights_only=True)  # noqa: TID251 - the safe kind
    for name in STATISTICS:
        assert state[name].tolist() == ended[name]
    assert state["_extra_state"] == {"seen": 192}


def test_what_is_saved_between_steps_is_worker_0s_own_unless_all_agree_before(
    jobs: Any, tmp_path: Path
) -> None:
    own = tmp_path / "own"
    agreed = tmp_path / "agreed"
    trained = jobs.run(SCRIPT, "--save_early", str(own)).results[0]
    averaged = jobs.run(SCRIPT, "--average", "--save_early", str(agreed)).results

    for folder, statistics in ((own, trained["own"]), (agreed, averaged[1]["averaged"])):
        loaded = jobs.local(SCRIPT, "--steps", "0", "--load", str(folder))["began"]
        np.testing.assert_allclose(loaded[STATISTICS[0]], statistics[STATISTICS[0]], rtol=1e-6)
    assert averaged[0]["averaged"][STATISTICS[1]] == averaged[1]["averaged"][STATISTICS[1]]


def test_a_checkpoint_of_before_buffers_were_saved_loads_and_says_so(
    jobs: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "old"
    jobs.run(SCRIPT, "--save", str(folder)).results  # noqa: B018 - asserts success
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["module"]
    (folder / "manifest.json").write_text(json.dumps(manifest))

    ended = jobs.run(SCRIPT, "--steps", "0", "--load", str(folder))

    for result in ended.results:
        assert result["began"][STATISTICS[0]] == [0.0] * 4
        assert {*STATISTICS, "drawn", "_extra_state"} <= set(result["lacking"])
    assert "buffers_not_in_checkpoint" in ended.logs["worker0"]
    assert "norm.running_mean" in ended.logs["worker0"]
