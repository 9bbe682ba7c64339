"""What a loss's graph shows of its reduction."""

import logging
from collections.abc import Callable, Iterator

import pytest
import torch
from torch.nn import functional

from paramfleet.training.stepping.reductions import ReductionWatch, reduction_of

BATCH = 5


@pytest.fixture
def logits() -> torch.Tensor:
    return torch.zeros(BATCH, 3, requires_grad=True)


LABELS = torch.zeros(BATCH, 3)
CLASSES = torch.zeros(BATCH, dtype=torch.int64)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_losses_of_torch_say_how_they_are_reduced(logits: torch.Tensor, reduction: str) -> None:
    for loss in (
        functional.binary_cross_entropy_with_logits(logits, LABELS, reduction=reduction),
        functional.binary_cross_entropy(logits.sigmoid(), LABELS, reduction=reduction),
        functional.mse_loss(logits, LABELS, reduction=reduction),
        functional.cross_entropy(logits, CLASSES, reduction=reduction),
        functional.l1_loss(logits, LABELS, reduction=reduction),
        logits.square().mean() if reduction == "mean" else logits.square().sum(),
    ):
        assert reduction_of(loss, examples=BATCH) == reduction


def test_what_isnt_known_is_not_guessed(logits: torch.Tensor) -> None:
    for loss in (
        logits.square().mean(0).sum(),
        logits.square().sum() / BATCH,
        logits.square().sum() + logits.sum(),
        logits.square(),
        torch.zeros(()),
        logits[0, 0],
    ):
        assert reduction_of(loss, examples=BATCH) is None


@pytest.fixture
def watch() -> Iterator[ReductionWatch]:
    made = ReductionWatch("mean", lambda: BATCH)
    yield made
    made.end()


def test_a_loss_that_is_reduced_otherwise_is_warned_of_once(
    watch: ReductionWatch, logits: torch.Tensor, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            torch.autograd.backward(logits.square().mean())
            torch.autograd.backward([logits.square().sum()])
            logits.square().sum().backward()  # type: ignore[no-untyped-call]  # torch's

    (record,) = caplog.records
    assert record.message == "worker.loss_reduction"
    assert "strategy.loss_reduction = 'sum'" in vars(record)["reason"]
    assert logits.grad is not None


def test_who_watches_no_more_leaves_torch_as_it_was(logits: torch.Tensor) -> None:
    plain: Callable[..., None] = torch.autograd.backward
    watch = ReductionWatch("sum", lambda: BATCH)
    assert torch.autograd.backward is not plain

    watch.end()
    watch.end()

    assert torch.autograd.backward is plain
