"""Metrics refuse what they can't count, and count nothing of it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from paramfleet.runner import (
    Accuracy,
    Auc,
    Calibration,
    Gauc,
    LogLoss,
    NdcgAtK,
    NormalizedEntropy,
    Precision,
    Recall,
    RecallAtK,
)
from paramfleet.runner.models.inputs import MetricInputError

CLICKS = [Auc, LogLoss, NormalizedEntropy, Calibration]


@pytest.mark.parametrize("metric", CLICKS)
def test_logits_are_no_probabilities(metric: Callable[[], Any]) -> None:
    labels = torch.tensor([0.0, 0.0, 1.0, 1.0])
    counted, alone = metric(), metric()
    good = torch.tensor([0.1, 0.4, 0.3, 1.00001])
    alone.update(good, labels)

    counted.update(good, labels)
    with pytest.raises(MetricInputError, match=r"one is 5: of logits take `scores\.sigmoid"):
        counted.update(torch.tensor([2.0, 3.0, -3.0, 5.0]), labels)

    assert counted.value() == alone.value()


@pytest.mark.parametrize("metric", [*CLICKS, Accuracy, Precision, Recall])
def test_there_is_a_label_for_each_score(metric: Callable[[], Any]) -> None:
    with pytest.raises(MetricInputError, match=f"{metric.__name__}: 3 scores, but 4 labels"):
        metric().update(torch.rand(3), torch.zeros(4))


def test_groups_are_a_tensor_with_one_id_for_each_score() -> None:
    with pytest.raises(MetricInputError, match="3 scores, but 2 groups"):
        Gauc().update(torch.rand(3), torch.zeros(3), torch.tensor([1, 2]))
    with pytest.raises(MetricInputError, match="groups must be a tensor, not NoneType"):
        Gauc().update(torch.rand(3), torch.zeros(3), None)  # type: ignore[arg-type]


@pytest.mark.parametrize("metric", [RecallAtK, NdcgAtK])
def test_candidates_are_those_of_queries(metric: Callable[[], Any]) -> None:
    with pytest.raises(
        MetricInputError, match=r"\[queries, candidates\], and have the shape \[3\]"
    ):
        metric().update(torch.rand(3), torch.zeros(3))


def test_a_nan_and_no_example_at_all_are_counted_as_before() -> None:
    counted = Auc()

    counted.update(torch.empty(0), torch.empty(0))
    counted.update(torch.tensor([float("nan"), 0.5]), torch.tensor([0.0, 1.0]))

    assert counted.value() == 1.0


def test_groups_are_no_fractions_and_k_is_at_least_one() -> None:
    with pytest.raises(MetricInputError, match=r"whole numbers, not of torch\.float32"):
        Gauc().update(torch.rand(3), torch.zeros(3), torch.rand(3))
    for metric in (RecallAtK, NdcgAtK):
        with pytest.raises(MetricInputError, match="k must be 1 or more, not 0"):
            metric(0)
