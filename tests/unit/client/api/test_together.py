"""What workers compute together: metrics, reductions, file shards."""

import re
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paramfleet.api.all_to_all import Outgoing, Receive
from paramfleet.api.collectives import (
    SumOverflowError,
    UnequalCallsError,
    UnknownModeError,
    Util,
)
from paramfleet.telemetry.job_metrics import Metrics
from paramfleet_shared.errors import ContractError
from paramfleet_shared.testing.patience import LATE_S


class Synchronizer:
    """Lets threads stand for workers: each hands in a payload and gets all of them."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._payloads: dict[int, bytes] = {}
        self._all_in = threading.Barrier(size)
        self._all_out = threading.Barrier(size)

    def worker(self, rank: int) -> Util:
        def gather(_: str, payload: bytes) -> list[bytes]:
            self._payloads[rank] = payload
            self._all_in.wait(timeout=LATE_S)
            found = [self._payloads[other] for other in range(self.size)]
            self._all_out.wait(timeout=LATE_S)
            return found

        def barrier(name: str) -> None:
            gather(name, b"")

        return Util(
            gather=gather,
            barrier=barrier,
            rank=lambda: rank,
            size=lambda: self.size,
            exchange=refuse_exchange,
        )


def refuse_exchange(name: str, outgoing: Outgoing, receive: Receive, *, in_flight: int) -> None:
    raise AssertionError(name)


def together(size: int, act: Callable[[int, Util], Any]) -> list[Any]:
    """Run ``act`` as each worker at once; return the results by rank."""
    synchronizer, found = Synchronizer(size), dict[int, Any]()

    def run(rank: int) -> None:
        try:
            found[rank] = act(rank, synchronizer.worker(rank))
        except Exception as error:  # noqa: BLE001 - handed to the test
            found[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=LATE_S)
    return [found[rank] for rank in range(size)]


def alone() -> Util:
    return Synchronizer(1).worker(0)


@pytest.mark.parametrize(
    ("mode", "expected"), [("sum", [3, 6]), ("max", [2, 4]), ("min", [0, 0])]
)
def test_all_reduce_is_the_same_everywhere(mode: str, expected: list[int]) -> None:
    results = together(3, lambda rank, util: util.all_reduce([rank, 2 * rank], mode).tolist())

    assert results == [expected] * 3


def test_tensors_and_numbers_reduce_too() -> None:
    assert alone().all_reduce(torch.tensor([[1.5]])).tolist() == [[1.5]]
    assert float(alone().all_reduce(2)) == 2


def test_different_shapes_are_refused_everywhere() -> None:
    results = together(2, lambda rank, util: util.all_reduce([0] * (rank + 1)))

    assert all(isinstance(result, ContractError) for result in results)
    assert "shapes differ" in str(results[0])


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (
            lambda rank, util: util.all_reduce([1.0], mode="max" if rank else "sum"),
            "modes differ: sum in worker 0, max in worker 1",
        ),
        (
            lambda rank, util: util.all_reduce(np.zeros(1, np.int64 if rank else np.uint64)),
            "dtypes differ: uint64 in worker 0, int64 in worker 1",
        ),
        (
            lambda rank, util: util.all_reduce(np.zeros(1 + rank)),
            r"shapes differ: \(1,\) in worker 0, \(2,\) in worker 1",
        ),
    ],
)
def test_calls_that_differ_are_refused_and_name_both_workers(
    act: Callable[[int, Util], Any], said: str
) -> None:
    results = together(2, act)

    assert all(isinstance(result, UnequalCallsError) for result in results)
    assert re.search(said, str(results[1]))


def test_plain_numbers_may_be_integers_here_and_floats_there() -> None:
    results = together(2, lambda rank, util: util.all_reduce(1.5 if rank else 1))

    assert [float(result) for result in results] == [2.5, 2.5]


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_a_sum_of_integers_that_does_not_fit_is_refused(dtype: Any) -> None:
    half = np.array([np.iinfo(dtype).max // 2 + 1], dtype)

    results = together(2, lambda _, util: util.all_reduce(half))

    assert all(isinstance(result, SumOverflowError) for result in results)
    assert f"{2 * int(half[0])} doesn't fit into {half.dtype}" in str(results[0])


def test_large_integers_that_cancel_are_summed_exactly() -> None:
    most = np.iinfo(np.int64).max
    parts = [most, most, -most]

    results = together(3, lambda rank, util: util.all_reduce(np.array([parts[rank]])))

    assert [result.tolist() for result in results] == [[most]] * 3


def test_bfloat16_is_reduced_as_float32() -> None:
    reduced = alone().all_reduce(torch.tensor([1.5], dtype=torch.bfloat16))

    assert (reduced.tolist(), reduced.dtype.name) == ([1.5], "float32")


def test_what_is_no_number_is_refused() -> None:
    with pytest.raises(ContractError, match="takes numbers"):
        alone().all_reduce(["a"])


def test_all_gather_keeps_plain_values_by_rank() -> None:
    results = together(2, lambda rank, util: util.all_gather({"rank": rank, "name": "w"}))

    assert results[0] == [{"rank": 0, "name": "w"}, {"rank": 1, "name": "w"}]
    assert results[0] == results[1]


@pytest.mark.parametrize(
    "act",
    [
        lambda util: util.all_reduce(1, "median"),
        lambda util: util.all_reduce(1, "sum", "server"),
        lambda util: util.all_gather(1, "all"),
        lambda util: util.barrier("server"),
    ],
)
def test_unknown_modes_and_worlds_are_named(act: Callable[[Util], Any]) -> None:
    with pytest.raises(UnknownModeError):
        act(alone())


def test_a_barrier_lets_everybody_through() -> None:
    assert together(2, lambda _, util: util.barrier()) == [None, None]


@given(files=st.integers(0, 30), size=st.integers(1, 7))
def test_file_shards_are_contiguous_and_complete(files: int, size: int) -> None:
    names = [f"part-{number}" for number in range(files)]
    shares = [Synchronizer(size).worker(rank).get_file_shard(names) for rank in range(size)]

    assert [name for share in shares for name in share] == names
    lengths = [len(share) for share in shares]
    assert lengths == sorted(lengths, reverse=True)
    assert max(lengths) - min(lengths) <= 1


def test_files_must_be_a_list() -> None:
    with pytest.raises(TypeError, match="list"):
        alone().get_file_shard("part-0")


def test_one_rank_prints(capsys: pytest.CaptureFixture[str]) -> None:
    alone().print_on_rank("here", 0)
    alone().print_on_rank("nowhere", 1)

    assert capsys.readouterr().out == "here\n"


@given(
    st.lists(st.tuples(st.integers(0, 7), st.booleans()), min_size=2, max_size=40).filter(
        lambda rows: len({label for _, label in rows}) == 2
    )
)
def test_auc_is_the_share_of_pairs_in_order(rows: list[tuple[int, bool]]) -> None:
    pos = np.bincount([score for score, label in rows if label], minlength=8)
    neg = np.bincount([score for score, label in rows if not label], minlength=8)
    positives = [score for score, label in rows if label]
    negatives = [score for score, label in rows if not label]
    wins = sum((p > n) + 0.5 * (p == n) for p in positives for n in negatives)

    auc = Metrics(alone().all_reduce).auc(pos, neg)

    assert auc == pytest.approx(wins / (len(positives) * len(negatives)))


def test_metrics_add_up_over_workers() -> None:
    def act(rank: int, util: Util) -> list[float]:
        metrics = Metrics(util.all_reduce)
        return [
            metrics.acc(rank + 1, 2),
            metrics.mae([1.0, 2.0], 4),
            metrics.mse(9.0 * rank, 1),
            metrics.rmse(9.0 * rank, 0.5),
            metrics.auc([0, 1], [1, 0]),
            float(metrics.sum(rank)),
            float(metrics.max(rank)),
            float(metrics.min(rank)),
        ]

    results = together(2, act)

    assert results[0] == results[1] == pytest.approx([0.75, 0.75, 4.5, 3.0, 1.0, 1, 1, 0])


def test_metrics_of_nothing_are_no_number() -> None:
    metrics = Metrics(alone().all_reduce)

    assert metrics.auc([0], [3]) == 0.5
    assert np.isnan(metrics.acc(0, 0))
