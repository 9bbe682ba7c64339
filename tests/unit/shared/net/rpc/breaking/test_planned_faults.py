"""Faults by chance: a seed breaks the same calls again, and the rates are those asked for."""

import re

import pytest

from paramfleet_shared.net.rpc.breaking.planned_faults import (
    FaultRates,
    RandomFaults,
    faults_of,
    read_faults,
)
from paramfleet_shared.net.rpc.faults import NO_FAULTS, Verdict
from paramfleet_shared.settings.config import SettingError
from paramfleet_shared.system.clock import SystemClock


def test_without_the_variable_nothing_is_between_a_call_and_its_pserver() -> None:
    assert faults_of({}, rank=0, clock=SystemClock())(1) is NO_FAULTS


def test_a_text_names_the_rates() -> None:
    found = read_faults("drop=0.01, duplicate=0.02,delay=0.03:40,seed=7")

    assert found == FaultRates(drop=0.01, duplicate=0.02, delay=0.03, delay_s=0.04, seed=7)


@pytest.mark.parametrize(
    "text",
    [
        "lose=0.1", "drop", "drop=much", "drop=-1", "drop=nan", "drop=1.5", "drop=0.1:3",
        "delay=0.1", "delay=0.1:x", "seed=-1", "seed=1.5", "drop=0.1,drop=0.2",
        "drop=0.5,duplicate=0.5", "drop=0.5,reorder=0.5:9", "reorder=0.1", ",",
    ],
)  # fmt: skip
def test_a_text_that_cannot_be_read_is_named(text: str) -> None:
    part = re.escape(repr(text.rsplit(",", maxsplit=1)[-1]))
    whole = re.escape(repr(text))

    with pytest.raises(SettingError, match=f"PARAMFLEET_FAULTS = ({part}|{whole})"):
        read_faults(text)


async def verdicts(stream: str, *, seed: int = 1) -> list[Verdict]:
    rates = FaultRates(drop=0.1, duplicate=0.1, delay=0.1, delay_s=0.0, seed=seed)
    faults = RandomFaults(rates, stream, SystemClock())
    return [
        verdict
        for _ in range(2000)
        for verdict in (faults.on_request("push"), await faults.on_reply("push"))
    ]


async def test_a_seed_breaks_the_same_calls_and_as_many_as_asked_for() -> None:
    found = await verdicts("0/1")

    assert found == await verdicts("0/1")
    assert found != await verdicts("1/0")
    assert found != await verdicts("0/1", seed=2)
    assert 150 < found[::2].count(Verdict.DROP) < 250
    assert 150 < found[::2].count(Verdict.DUPLICATE) < 250
    assert 150 < found[1::2].count(Verdict.DROP) < 250
    assert found[1::2].count(Verdict.DUPLICATE) == 0


async def test_requests_are_held_as_often_as_asked_for_and_arrive() -> None:
    rates = read_faults("drop=0.1,reorder=0.2:0,seed=3")
    assert rates == FaultRates(drop=0.1, reorder=0.2, reorder_s=0.0, seed=3)
    faults = RandomFaults(rates, "0/1", SystemClock())

    found = [faults.on_request("push") for _ in range(2000)]

    assert 330 < found.count(Verdict.HOLD) < 470
    assert 150 < found.count(Verdict.DROP) < 250
    assert await faults.on_hold("push") is Verdict.DELIVER
