"""A warning about something that happens again and again."""

import logging
from typing import Any

import pytest

from paramfleet_shared.telemetry.seldom import SELDOM_S, SeldomWarning
from paramfleet_shared.testing.clock import FakeClock

log = logging.getLogger(__name__)


def facts_of(caplog: pytest.LogCaptureFixture) -> list[tuple[Any, Any]]:
    return [(vars(each)["n"], vars(each).get("left_out")) for each in caplog.records]


def test_one_is_written_every_few_seconds_and_says_how_many_were_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = FakeClock()
    warning = SeldomWarning(log, "thing.happened", clock)

    for n in range(4):
        warning.warn(n=n)
    clock.jump(SELDOM_S)
    warning.warn(n=4)
    clock.jump(SELDOM_S)
    warning.warn(n=5)

    assert facts_of(caplog) == [(0, None), (4, 3), (5, None)]


def test_several_are_written_at_once_where_each_may_be_another(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = FakeClock()
    warning = SeldomWarning(log, "thing.happened", clock, at_once=2)

    for n in range(3):
        warning.warn(n=n)
    clock.jump(SELDOM_S)
    for n in range(3, 6):
        warning.warn(n=n)

    assert facts_of(caplog) == [(0, None), (1, None), (3, 1), (4, None)]
