"""Which part of the grid the quality benchmark measures, and that logical jobs train."""

import json
from collections import Counter
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

import quality
from logical import Alone, LogicalJob, LogicalWorker
from paramfleet.config.strategy import DistributedStrategy
from quality import (
    Case,
    Plan,
    Run,
    batches,
    cases_of,
    floors_of,
    interval,
    measure,
    read_runs,
    rows_of,
    summary_of,
    train,
    train_bare,
)
from quality_models import DeepFM
from quality_tasks import TASKS, area_under_curve, planted


def test_each_optimizer_meets_each_number_of_workers_and_of_epochs() -> None:
    cases = cases_of(list(TASKS))

    pairs = Counter((case.optimizer, case.workers) for case in cases)
    assert len(cases) == 21
    assert set(pairs.values()) == {2, 3}
    assert len(pairs) == 9
    assert len({(case.optimizer, case.epochs) for case in cases}) == 6
    assert Counter(case.task for case in cases) == dict.fromkeys(TASKS, 3)


def test_an_interval_is_student_s() -> None:
    low, high = interval([0.001, 0.002, 0.003, 0.004, 0.005])

    reach = 2.776 * np.std([1, 2, 3, 4, 5], ddof=1) / 5**0.5 / 1000
    assert (low, high) == pytest.approx((0.003 - reach, 0.003 + reach))
    assert interval([0.25]) == (0.25, 0.25)


def test_headlines_are_over_all_runs_and_rows_over_seeds() -> None:
    first, second = Case("a", "sgd", 2, 1), Case("b", "adam", 6, 3)
    bare = {"sync": 0.65, "delayed": 0.6}
    runs = [
        Run(first, 0, 0.7, {"async": 0.6, "geo": 0.7, **bare}),
        Run(second, 0, 0.8, {"async": 0.8, "geo": 0.9, **bare}),
        Run(first, 1, 0.7, {"async": 0.4, "geo": 0.7, **bare}),
    ]

    rows, summary = rows_of(runs), summary_of(runs)

    assert [(row["task"], row["mode"], row["seeds"]) for row in rows] == [
        ("a", "async", 2), ("a", "geo", 2), ("b", "async", 1), ("b", "geo", 1),
    ]  # fmt: skip
    assert rows[0]["loss"][0] == pytest.approx(0.2)
    assert rows[0]["worst"] == pytest.approx(0.3)
    assert (rows[0]["floor"], rows[0]["floor_loss"]) == ("sync", pytest.approx(0.05))
    assert rows[0]["over_floor"][0] == pytest.approx(0.15)
    assert rows[1]["over_floor"][0] == pytest.approx(-0.05)
    assert summary["quality_async_mean_loss"] == pytest.approx(0.4 / 3)
    assert summary["quality_async_worst_loss"] == pytest.approx(0.3)
    assert summary["quality_geo_worst_loss"] == pytest.approx(0.0)
    assert summary_of([])["quality_geo_mean_loss"] is None


def test_a_case_s_floor_is_the_bare_loop_that_is_better_in_the_mean_of_its_seeds() -> None:
    first, second = Case("a", "sgd", 2, 1), Case("b", "adam", 6, 3)
    runs = [
        Run(first, 0, 0.7, {"sync": 0.6, "delayed": 0.5}),
        Run(first, 1, 0.7, {"sync": 0.6, "delayed": 0.8}),
        Run(second, 0, 0.7, {"sync": 0.6, "delayed": 0.5}),
    ]

    assert floors_of(runs) == {first: "delayed", second: "sync"}
    assert summary_of(runs)["quality_sync_worst_over_floor"] == pytest.approx(0.2)
    assert summary_of(runs)["quality_sync_mean_over_floor"] == pytest.approx(0.1 / 3)


def test_one_process_and_all_workers_take_the_same_examples_in_each_epoch() -> None:
    task, case = planted()._replace(num_train=1024), Case("planted", "sgd", 2, 2)

    alone = np.concatenate(list(batches(task, case, 3, 128)))
    apart = np.concatenate(list(batches(task, case, 3, 256)))
    other = np.concatenate(list(batches(task, case, 3, 128, reordered=True)))

    np.testing.assert_array_equal(alone, apart)
    assert (alone != other).any()
    assert sorted(alone[:1024]) == sorted(other[:1024]) == list(range(1024))


@pytest.mark.parametrize(
    ("optimizer", "loop"), list(product(["sgd", "adagrad", "adam"], ["sync", "delayed"]))
)
def test_a_bare_loop_of_one_worker_is_one_process(
    monkeypatch: pytest.MonkeyPatch, optimizer: str, loop: str
) -> None:
    monkeypatch.setitem(quality.BATCHES, 1, 64)
    whole, case = planted(), Case("planted", optimizer, 1, 1)
    task = whole._replace(ids=whole.ids[:3000], labels=whole.labels[:3000], num_train=640)

    alone, bare = train(task, case, None, 5), train_bare(task, case, loop, 5)

    assert bare == pytest.approx(alone, abs=1e-4)
    assert train(task, case, None, 6) != pytest.approx(alone, abs=1e-4), "or all are alike"


def test_the_area_counts_ties_half_and_a_diverged_run_as_chance() -> None:
    labels = np.array([0, 1, 0, 1], np.float32)

    assert area_under_curve(labels, np.array([1.0, 2.0, 3.0, 4.0])) == 0.75
    assert area_under_curve(labels, np.zeros(4)) == 0.5
    assert area_under_curve(labels, np.array([1.0, np.nan, 0.0, 1.0])) == 0.5


def trained(mode: str | None, *, num: int, steps: int = 12) -> list[np.ndarray]:
    """Train on made-up examples; return the logits that each worker gives some of them."""
    task = planted()
    ids, labels = torch.from_numpy(task.ids), torch.from_numpy(task.labels)
    workers = []
    for _ in range(num):
        model = DeepFM(ids.shape[1], seed=7)
        workers.append(LogicalWorker(model, torch.optim.Adam(model.parameters(), lr=0.01)))
    job: Alone | LogicalJob = Alone(workers[0])
    if mode is not None:
        strategy = DistributedStrategy()
        strategy.a_sync_configs = {"k_steps": 4} if mode == "geo" else {}
        job = LogicalJob(workers, strategy.resolve())
    for step in range(steps):
        for place, worker in enumerate(workers):
            rows = slice((step * num + place) * 8, (step * num + place + 1) * 8)
            logits = worker.model(ids[rows])
            torch.nn.functional.binary_cross_entropy_with_logits(
                logits, labels[rows]
            ).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        job.deliver()
        for worker in workers:
            worker.step(examples=8)
    job.finish()
    with torch.no_grad():
        found = [worker.model.eval()(ids[:400]).numpy() for worker in workers]
    job.close()
    return found


@pytest.mark.parametrize("mode", ["async", "geo"])
def test_first_steps_of_one_worker_are_those_of_one_process(mode: str) -> None:
    (alone,), (served,) = trained(None, num=1), trained(mode, num=1)

    np.testing.assert_allclose(served, alone, atol=1e-5)


@pytest.mark.parametrize("mode", ["async", "geo"])
def test_a_logical_job_is_the_same_each_time_and_its_workers_end_alike(mode: str) -> None:
    first, again = trained(mode, num=3), trained(mode, num=3)

    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(one, first[0])
    assert np.abs(first[0]).max() > 0.01, "it learned something"


def test_a_benchmark_that_was_stopped_goes_on_from_what_it_printed(tmp_path: Path) -> None:
    losses = {"async": 0.6, "geo": 0.7, "control": 0.7, "sync": 0.65, "delayed": 0.6}
    printed = [
        Run(case, seed, 0.7, losses) for case in cases_of(list(TASKS)) for seed in (0, 1)
    ]
    log = tmp_path / "log"
    log.write_text("\n".join(["a warning", *map(json.dumps, printed)]), encoding="utf-8")
    plan = Plan(tmp_path, {}, quick=True)

    known = read_runs(log)
    result = measure(plan, list(TASKS), seeds=2, known=known)

    assert known == printed
    assert result["details"]["known"] == 42
    assert result["rows"] == rows_of(printed), "nothing was made again"
