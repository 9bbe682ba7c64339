"""The time of a batch is that of its phases."""

from collections.abc import Iterator

import pytest
import torch

import paramfleet as fleet
from paramfleet.runner.showing.profile import PHASES, Profile
from paramfleet_shared.testing.clock import FakeClock


def test_a_phase_inside_another_counts_for_itself_alone() -> None:
    clock = FakeClock()
    profile = Profile(clock)

    def reading() -> Iterator[int]:
        for number in range(2):
            clock.jump(0.003)
            yield number

    for _ in profile.reading(reading()):
        with profile.phase("forward"):
            clock.jump(0.005)
            with profile.phase("pull"):
                clock.jump(0.002)
            clock.jump(0.001)
        clock.jump(0.5)  # in no phase
        profile.close_batch()

    result = profile.result()
    assert list(result) == list(PHASES)
    assert result["data"] == pytest.approx({"mean_ms": 3, "most_ms": 3, "share": 0.273})
    assert result["forward"]["mean_ms"] == pytest.approx(6)
    assert result["pull"]["mean_ms"] == pytest.approx(2)
    assert result["push"]["mean_ms"] == 0


def test_lookups_are_the_pull() -> None:
    clock = FakeClock()
    profile = Profile(clock, settle=lambda: clock.jump(0.001))
    net = torch.nn.Sequential(fleet.nn.Embedding(10, 2), torch.nn.Linear(2, 1))
    profile.watch(net)

    with profile.phase("forward"):
        net(torch.tensor([1, 2]))
    profile.close_batch()

    assert profile.result()["pull"]["mean_ms"] == pytest.approx(1)
    assert profile.result()["forward"]["mean_ms"] == pytest.approx(2)
