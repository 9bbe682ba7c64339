"""What workers make of what all have said when they come together for a load."""

from typing import Any

import pytest

from paramfleet.session.coming_together import Arrival, Verdict, judge_arrivals


def arrival(**more: Any) -> Arrival:
    fields = {"number": 1, "step": 5, "ended": False, "waits_at": "", "known_s": 0.1, **more}
    return Arrival(**fields)


def judged(*arrivals: Arrival) -> Verdict:
    return judge_arrivals(arrivals, patience_s=10.0)


def test_all_load_behind_the_last_step_that_one_has_begun() -> None:
    assert judged(arrival(step=5), arrival(step=6), arrival(step=5)) == Verdict("load", step=6)


def test_who_has_ended_or_comes_too_late_has_the_load_dropped_by_name() -> None:
    ended = judged(arrival(), arrival(ended=True), arrival(waits_at="x"))
    late = judged(arrival(known_s=11.0), arrival(known_s=12.4))
    held = judged(arrival(), arrival(known_s=12.4, waits_at="fleet.barrier_worker"))

    assert ended == Verdict("drop", reason="worker 1 has ended its training")
    assert late.kind == held.kind == "drop"
    assert late.reason == "worker 1 came to the end of a step only after 12 s"
    assert held.reason == f"{late.reason}, and waits at 'fleet.barrier_worker'"


@pytest.mark.parametrize("other", [{"waits_at": "fleet.barrier_worker"}, {"number": 2}])
def test_who_waits_for_all_or_knows_another_load_has_all_arrive_again(
    other: dict[str, Any],
) -> None:
    assert judged(arrival(), arrival(**other)) == Verdict("again")


def test_what_is_said_travels() -> None:
    said = arrival(waits_at="a", ended=True)

    assert Arrival.unpacked(said.packed()) == said
