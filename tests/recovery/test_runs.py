"""The protocol keeps its promises in random schedules of faults."""

import json
from collections import Counter

import pytest
from tests.recovery.__main__ import main
from tests.recovery.protocol import Durability, Mode
from tests.recovery.run import Run

RUNS = 20


@pytest.mark.slow
@pytest.mark.parametrize("durability", Durability)
@pytest.mark.parametrize("mode", Mode)
def test_no_promise_is_broken(mode: Mode, durability: Durability) -> None:
    counts: Counter[str] = Counter()

    for seed in range(RUNS):
        run = Run(seed, mode, durability, frozenset())
        run.play()
        counts.update(run.world.counts)

    happened = {"crashes", "recoveries", "worker_deaths", "terms"}
    assert happened <= set(counts)


@pytest.mark.parametrize("seed", [276, 1024])
def test_no_promise_is_broken_in_a_schedule_that_broke_one_once(seed: int) -> None:
    run = Run(seed, Mode.GEO_ROWS, Durability.BOTH, frozenset())

    run.play()

    assert run.world.counts["recoveries"] > 1


def test_a_seed_gives_the_same_events_again() -> None:
    first, second = (Run(3, Mode.GEO, Durability.BOTH, frozenset()) for _ in range(2))

    first.play()
    second.play()

    assert first.world.counts["events"] > 0
    assert first.world.counts == second.world.counts
    assert first.world.random.random() == second.world.random.random()


def test_the_last_line_of_the_command_counts_what_happened(
    capsys: pytest.CaptureFixture[str],
) -> None:
    chosen = ["--runs", "1", "--mode", "async", "--durability", "disk"]

    kept = main(chosen)
    broken = main([*chosen, "--break", "memory_is_durable"])

    *_, without, violation, last = capsys.readouterr().out.splitlines()
    assert (kept, broken) == (0, 1)
    assert json.loads(without)["violations"] == 0
    assert violation.startswith("violation async disk 1 claim")
    assert json.loads(last)["kinds"] == {"claim": 1}
