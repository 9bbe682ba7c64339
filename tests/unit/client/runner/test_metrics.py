"""Metrics that are counted batch by batch."""

import numpy as np
import pytest
import torch

from paramfleet.runner import Auc, Mean


def exact_auc(scores: torch.Tensor, labels: torch.Tensor) -> float:
    """Return the share of pairs that are in order; a tie is half a pair."""
    positive, negative = scores[labels > 0.5], scores[labels <= 0.5]
    difference = positive.unsqueeze(1) - negative
    return float(((difference > 0).double() + 0.5 * (difference == 0)).mean())


def test_the_area_is_that_of_all_pairs() -> None:
    generator = torch.Generator().manual_seed(1)
    labels = (torch.rand(4000, generator=generator) > 0.7).float()
    scores = (torch.rand(4000, generator=generator) + 0.3 * labels).clamp(0, 1)
    metric = Auc()

    for part in range(0, 4000, 512):
        metric.update(scores[part : part + 512], labels[part : part + 512])

    assert metric.value() == pytest.approx(exact_auc(scores, labels), abs=1e-4)


def test_scores_of_one_bucket_are_tied() -> None:
    metric = Auc(num_buckets=10)

    metric.update(torch.tensor([0.51, 0.59, 0.9]), torch.tensor([1.0, 0.0, 1.0]))

    assert metric.value() == pytest.approx(0.75)


@pytest.mark.parametrize("label", [0.0, 1.0])
def test_one_class_alone_says_nothing(label: float) -> None:
    metric = Auc()

    metric.update(torch.tensor([0.2, 1.0]), torch.full((2,), label))

    assert metric.value() == 0.5


def test_a_score_that_is_no_number_is_counted_as_the_lowest() -> None:
    metric = Auc()

    metric.update(torch.tensor([float("nan"), 0.5]), torch.tensor([0.0, 1.0]))

    assert metric.value() == 1.0


def test_a_mean_is_of_all_examples_and_of_none_no_number() -> None:
    metric = Mean()
    assert np.isnan(metric.value())

    metric.update(torch.tensor([1.0, 2.0]))
    metric.update(torch.tensor([6.0]))

    assert metric.value() == 3.0
