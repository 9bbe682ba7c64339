"""The period follows loss and learning rate by both formulas."""

import math

import pytest

from paramfleet.training.localsgd.core.intervals import AdaptiveInterval, LossError

RECORDED = [  # loss, learning rate: of a ResNet on MNIST, K0 = 8
    (2.31, 0.1), (0.94, 0.1), (0.36, 0.1), (0.21, 0.05), (0.15, 0.02), (0.11, 0.005),
    (0.09, 0.0005),
]  # fmt: skip
BY_PAPER = [8, 6, 4, 4, 5, 8, 16]  # ceil(8 * sqrt(lr0 / lr * loss / loss0))
BY_FLEET = [8, 2, 2, 2, 2, 3, 8]  # ceil(sqrt(8 * lr0 / lr * loss / loss0))


@pytest.mark.parametrize(("variant", "expected"), [("paper", BY_PAPER), ("fleet", BY_FLEET)])
def test_the_period_follows_a_recorded_run(variant: str, expected: list[int]) -> None:
    interval = AdaptiveInterval(variant, first=8, most=16)

    chosen = [
        interval.choose(step=step, loss=loss, rate=rate)
        for step, (loss, rate) in enumerate(RECORDED)
    ]

    assert chosen == expected


def test_a_period_is_at_least_one_step_and_at_most_the_cap() -> None:
    interval = AdaptiveInterval("paper", first=4, most=10)
    interval.choose(step=1, loss=2.0, rate=0.1)

    assert interval.choose(step=2, loss=1e-9, rate=0.1) == 1
    assert interval.choose(step=3, loss=2.0, rate=1e-9) == 10
    assert interval.choose(step=4, loss=2.0, rate=0.0) == 10


def test_the_first_period_is_capped_too() -> None:
    assert AdaptiveInterval("fleet", first=20, most=16).choose(step=1, loss=1.0, rate=1.0) == 16


@pytest.mark.parametrize("loss", [0.0, -1.0, math.nan, math.inf])
def test_no_period_follows_from_such_a_loss(loss: float) -> None:
    interval = AdaptiveInterval("paper", first=4, most=16)

    with pytest.raises(LossError, match="step 7") as raised:
        interval.choose(step=7, loss=loss, rate=0.1)

    assert raised.value.step == 7
