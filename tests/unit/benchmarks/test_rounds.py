"""Rounds in turns, the figures of those that count, and ratios of one round."""

import threading
import time
from collections.abc import Iterator, Sequence
from itertools import count

from conditions import Conditions, Headline
from rounds import Ratio, Rounds, Turn, Turns, in_turns

FREE = Conditions(steal=0.0, reference_s=0.02, waiting=0.0)
TAKEN = FREE._replace(steal=0.5)


class Script:
    """A watch that says what it was told to."""

    def __init__(self, conditions: Sequence[Conditions]) -> None:
        self._conditions = iter(conditions)
        self.log: list[str] = []

    def begin(self) -> None:
        self.log.append("begin")

    def look(self) -> None:
        self.log.append("look")

    def end(self) -> Conditions:
        self.log.append("end")
        return next(self._conditions)


def ticking(step_s: float) -> Iterator[float]:
    return count(0.0, step_s)


def measured(figures: dict[str, list[Turn]], conditions: Sequence[Conditions]) -> Rounds:
    """Return rounds that have met these conditions."""
    rounds = Rounds(
        list(figures), budget_s=60.0, max_rounds=len(conditions), watch=Script(conditions)
    )
    places = {name: iter(turns) for name, turns in figures.items()}
    for name in rounds.turns:
        rounds.figures[name].append(next(places[name]))
    return rounds


def test_each_round_runs_every_case_once_and_begins_with_another() -> None:
    turns = list(in_turns(["a", "b", "c"], budget_s=60.0, max_rounds=4))

    assert turns == [*"abc", *"bca", *"cab", *"abc"]


def test_the_first_round_runs_even_without_time() -> None:
    assert list(in_turns(["a", "b"], budget_s=0.0)) == ["a", "b"]


def test_no_round_begins_that_would_end_too_late() -> None:
    seconds = ticking(1.0)  # the clock is read before and after each round

    turns = list(in_turns(["a"], budget_s=6.5, now=lambda: next(seconds)))

    assert turns == ["a"] * 3  # begun at 1, 3 and 5; the next would end at 8


def test_every_round_is_watched_from_its_first_case_to_its_last() -> None:
    script = Script([FREE, TAKEN])
    turns = Turns(["a", "b"], budget_s=60.0, max_rounds=2, watch=script)

    assert list(turns) == ["a", "b", "b", "a"]

    assert script.log == ["begin", "look", "end"] * 2
    assert turns.conditions == [FREE, TAKEN]


def test_rounds_go_on_until_enough_of_them_count() -> None:
    script = Script([FREE, TAKEN, FREE, TAKEN, FREE])
    turns = Turns(["a"], budget_s=60.0, enough=3, watch=script)

    assert list(turns) == ["a"] * 5

    assert turns.num_counted == 3


def test_rounds_end_with_the_time_even_when_none_counts() -> None:
    seconds = ticking(1.0)
    turns = Turns(["a"], budget_s=6.5, watch=Script([TAKEN] * 9), now=lambda: next(seconds))

    assert list(turns) == ["a"] * 3

    assert turns.num_counted == 0
    assert turns.kept([1.0, 2.0, 3.0]) == [1.0, 2.0, 3.0]
    assert turns.headline([1.0, 2.0, 3.0]).num_counted == 0


def test_rounds_that_must_count_go_on_beyond_the_time() -> None:
    seconds = ticking(1.0)
    script = Script([FREE, TAKEN, FREE, TAKEN, FREE, FREE])
    turns = Turns(["a"], budget_s=0.0, least=3, watch=script, now=lambda: next(seconds))

    assert list(turns) == ["a"] * 5

    assert turns.num_counted == 3


def test_where_none_counts_twice_as_many_as_must_are_tried() -> None:
    turns = Turns(["a"], budget_s=0.0, least=3, watch=Script([TAKEN] * 9))

    assert list(turns) == ["a"] * 6


def test_figures_are_of_the_rounds_that_count() -> None:
    turns = Turns(["a"], budget_s=60.0, max_rounds=3, watch=Script([FREE, TAKEN, FREE]))
    assert list(turns) == ["a"] * 3

    assert turns.kept(["first", "second", "third"]) == ["first", "third"]
    why = "the hypervisor took more than 3% of the time"
    assert turns.headline([1.0, 2.0, 3.0]) == Headline([1.0, 3.0], 2, None, why)


def test_the_report_says_how_many_rounds_count_and_why_others_do_not() -> None:
    turns = Turns(["a"], budget_s=60.0, max_rounds=3, watch=Script([FREE, TAKEN, TAKEN]))
    assert list(turns) == ["a"] * 3

    assert turns.report() == {
        "run": 3,
        "counted": 1,
        "dropped": {"the hypervisor took more than 3% of the time": 2},
        "steal": [0.0, 0.5, 0.5],
        "reference_ms": [20.0] * 3,
        "waiting": [0.0] * 3,
    }


def test_ratios_are_of_figures_of_the_same_round() -> None:
    rounds = measured(
        {
            "ours": [Turn(10.0, 0.5), Turn(1.0, 0.5), Turn(4.0, 0.25)],
            "theirs": [Turn(5.0, 1.0), Turn(1.0, 0.5), Turn(1.0, 1.0)],
        },
        [FREE] * 3,
    )

    assert rounds.ratio("ours", "theirs") == Ratio(2.0, 1.0, 4.0)
    assert rounds.cpu_ratio("ours", "theirs") == Ratio(2.0, 1.0, 4.0)
    assert rounds.figure("ours") == Ratio(4.0, 1.0, 10.0)
    assert rounds.cpu_s("ours") == 0.5
    assert rounds.rate_headline("ours") == Headline([10.0, 1.0, 4.0], 3)
    assert str(rounds.ratio("ours", "theirs")) == "2.00 (1.00..4.00)"


def test_ratios_leave_out_rounds_that_do_not_count() -> None:
    rounds = measured(
        {"ours": [Turn(2.0, 1.0), Turn(9.0, 9.0)], "theirs": [Turn(1.0, 1.0)] * 2},
        [FREE, TAKEN],
    )

    assert rounds.ratio("ours", "theirs") == Ratio(2.0, 2.0, 2.0)
    assert rounds.cpu_ratio("ours", "theirs") == Ratio(1.0, 1.0, 1.0)


def test_there_is_no_ratio_of_processor_time_that_nobody_counts() -> None:
    rounds = measured({"ours": [Turn(2.0, 1.0)], "theirs": [Turn(1.0, 0.0)]}, [FREE])

    assert rounds.cpu_ratio("ours", "theirs") is None


def test_a_case_of_this_process_has_its_processor_time() -> None:
    def spin() -> float:
        begun = time.process_time()
        while time.process_time() - begun < 0.02:
            pass
        return 1 / 0.02  # one unit in 20 ms

    def wait() -> float:
        threading.Event().wait(0.02)
        return 1 / 0.02

    rounds = Rounds(["spin", "wait"], max_rounds=1, watch=Script([FREE]))

    rounds.run({"spin": spin, "wait": wait})

    (spun,), (waited,) = rounds.figures["spin"], rounds.figures["wait"]
    assert spun.rate == 50.0
    assert 0.0 < spun.cpu_s < 0.03
    assert waited.cpu_s < spun.cpu_s
