"""Metrics that are counted batch by batch."""

import numpy as np
import pytest
import torch

from paramfleet.runner import (
    Accuracy,
    Auc,
    Calibration,
    Gauc,
    LogLoss,
    Mae,
    Mean,
    Mse,
    NdcgAtK,
    NormalizedEntropy,
    Precision,
    Recall,
    RecallAtK,
    Rmse,
)


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


def test_the_accuracy_of_probabilities_is_the_share_on_the_right_side() -> None:
    metric = Accuracy()
    assert np.isnan(metric.value())

    metric.update(torch.tensor([0.9, 0.2]), torch.tensor([1.0, 1.0]))
    metric.update(torch.tensor([[0.4], [0.6]]), torch.tensor([[0], [0]]))

    assert metric.value() == metric.merged() == 0.5


def test_the_accuracy_of_classes_is_the_share_whose_label_is_among_the_best() -> None:
    scores = torch.tensor([[0.1, 0.7, 0.2], [0.5, 0.3, 0.2], [0.2, 0.3, 0.5]])
    labels = torch.tensor([1, 1, 0])
    best, two = Accuracy(), Accuracy(topk=2)

    for metric in (best, two):
        metric.update(scores, labels)
        metric.update(scores[:1], labels[:1].unsqueeze(1))

    assert (best.value(), two.value()) == (0.5, 0.75)


def test_more_places_than_classes_are_all_of_them() -> None:
    metric = Accuracy(topk=9)

    metric.update(torch.tensor([[0.1, 0.9]]), torch.tensor([0]))

    assert metric.value() == 1.0


def test_precision_and_recall_are_of_what_was_said_and_what_was_true() -> None:
    scores = torch.tensor([0.9, 0.8, 0.6, 0.1, 0.2])
    labels = torch.tensor([1, 0, 1, 1, 0])
    precision, recall = Precision(), Recall()

    for part in (slice(0, 2), slice(2, 5)):
        precision.update(scores[part], labels[part])
        recall.update(scores[part], labels[part])

    assert precision.value() == precision.merged() == pytest.approx(2 / 3)
    assert recall.value() == recall.merged() == pytest.approx(2 / 3)


def test_precision_and_recall_of_nothing_are_no_numbers() -> None:
    precision, recall = Precision(), Recall()

    for metric in (precision, recall):
        metric.update(torch.tensor([0.1]), torch.tensor([0]))

    assert np.isnan(precision.value())
    assert np.isnan(recall.value())


def test_errors_are_of_all_examples() -> None:
    metrics = (Mae(), Mse(), Rmse())
    assert all(np.isnan(metric.value()) for metric in metrics)

    for metric in metrics:
        metric.update(torch.tensor([1.0, 2.0]), torch.tensor([[1.0], [5.0]]))
        metric.update(torch.tensor([[0.0], [4.0]]), torch.tensor([0, 0]))

    assert [metric.value() for metric in metrics] == [7 / 4, 25 / 4, 2.5]
    assert [metric.merged() for metric in metrics] == [7 / 4, 25 / 4, 2.5]


def test_how_sure_a_model_is_is_counted_batch_by_batch() -> None:
    generator = torch.Generator().manual_seed(1)
    labels = (torch.rand(1000, generator=generator) > 0.7).float()
    scores = torch.rand(1000, generator=generator)
    metrics = (LogLoss(), NormalizedEntropy(), Calibration())
    assert all(np.isnan(metric.value()) for metric in metrics)

    for metric in metrics:
        for part in (slice(0, 300), slice(300, None)):
            metric.update(scores[part].unsqueeze(1), labels[part])

    loss = float(torch.nn.functional.binary_cross_entropy(scores.double(), labels.double()))
    rate = float(labels.mean())
    of_rate = -(rate * np.log(rate) + (1 - rate) * np.log(1 - rate))
    expected = [loss, loss / of_rate, float(scores.sum() / labels.sum())]
    assert [metric.value() for metric in metrics] == pytest.approx(expected, rel=1e-6)
    assert [metric.merged() for metric in metrics] == pytest.approx(expected, rel=1e-6)


def test_the_area_inside_groups_is_the_mean_of_theirs_by_their_examples() -> None:
    metric = Gauc(num_buckets=100)

    metric.update(
        torch.tensor([0.9, 0.1, 0.8, 0.7, 0.6, 0.5]),
        torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0, 1.0]),
        torch.tensor([7, 7, -3, -3, -3, 5]),
    )

    assert metric.value() == metric.merged() == pytest.approx((2 * 1.0 + 3 * 0.0) / 5)
    assert metric.share == 1


def test_rankings_are_counted_batch_by_batch() -> None:
    recall, ndcg = RecallAtK(1), NdcgAtK(2)
    batches = [
        ([[0.9, 0.1, 0.2]], [[1, 1, 0]]),
        ([[0.1, 0.3, 0.2], [0, 0, 0]], [[0, 0, 1]] * 2),
    ]

    for scores, labels in batches:
        recall.update(torch.tensor(scores), torch.tensor(labels))
        ndcg.update(torch.tensor(scores), torch.tensor(labels))

    second = 1 / np.log2(3)
    gains = [1 / (1 + second), second, (1 + second) / 3]
    assert recall.value() == recall.merged() == pytest.approx((0.5 + 0 + 1 / 3) / 3)
    assert ndcg.value() == ndcg.merged() == pytest.approx(np.mean(gains))
