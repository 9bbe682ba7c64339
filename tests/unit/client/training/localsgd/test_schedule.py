"""When the exchanges begin and end."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paramfleet.training.localsgd.core.schedule import Action, Schedule
from paramfleet.training.localsgd.core.settings import LocalSgdSettings


def beginnings(schedule: Schedule, num_steps: int) -> list[int]:
    """Return the steps after which an exchange begins."""
    return [
        step
        for step in range(1, num_steps + 1)
        if any(action.kind == "begin" for action in schedule.after_step())
    ]


def both(fragment: int = 0) -> list[Action]:
    return [Action("begin", fragment), Action("end", fragment)]


def test_each_step_ends_with_a_synchronization_at_first() -> None:
    assert beginnings(Schedule(LocalSgdSettings()), 4) == [1, 2, 3, 4]


def test_a_period_is_counted_from_the_first_step_as_fleet_does() -> None:
    assert beginnings(Schedule(LocalSgdSettings(k_steps=4)), 14) == [1, 5, 9, 13]


def test_post_local_meets_after_each_step_until_it_begins() -> None:
    schedule = Schedule(LocalSgdSettings(k_steps=4, begin_step=3))

    assert beginnings(schedule, 12) == [1, 2, 3, 7, 11]


def test_without_overlap_an_exchange_ends_where_it_began() -> None:
    schedule = Schedule(LocalSgdSettings(k_steps=2, begin_step=0))

    assert [schedule.after_step() for _ in range(4)] == [[], both(), [], both()]


def test_an_overlapped_exchange_ends_some_steps_later() -> None:
    schedule = Schedule(LocalSgdSettings(k_steps=3, begin_step=0, overlap_steps=2))

    assert [schedule.after_step() for _ in range(6)] == [
        [], [], [Action("begin", 0)], [], [Action("end", 0)], [Action("begin", 0)],
    ]  # fmt: skip


def test_an_exchange_ends_before_the_next_of_its_fragment() -> None:
    schedule = Schedule(LocalSgdSettings(k_steps=2, begin_step=0, overlap_steps=100))

    assert [schedule.after_step() for _ in range(4)] == [
        [], [Action("begin", 0)], [], [Action("end", 0), Action("begin", 0)],
    ]  # fmt: skip


def test_fragments_take_turns_within_a_period() -> None:
    schedule = Schedule(LocalSgdSettings(k_steps=6, begin_step=0, fragments=3))

    assert [schedule.after_step() for _ in range(8)] == [
        [], both(1), [], both(2), [], both(0), [], both(1),
    ]  # fmt: skip


@given(
    k_steps=st.integers(1, 12),
    fragments=st.integers(1, 5),
    begin_step=st.integers(0, 3),
    overlap_steps=st.integers(0, 15),
)
def test_each_fragment_is_exchanged_once_a_period(
    k_steps: int, fragments: int, begin_step: int, overlap_steps: int
) -> None:
    schedule = Schedule(
        LocalSgdSettings(
            k_steps=k_steps, fragments=fragments, begin_step=begin_step,
            overlap_steps=overlap_steps,
        )
    )  # fmt: skip
    for _ in range(begin_step):
        schedule.after_step()

    actions = [action for _ in range(3 * k_steps) for action in schedule.after_step()]
    actions += schedule.end_all()

    begun = [action.fragment for action in actions if action.kind == "begin"]
    assert all(begun.count(fragment) == 3 for fragment in range(fragments))
    for fragment in range(fragments):
        kinds = [action.kind for action in actions if action.fragment == fragment]
        kinds = kinds[kinds.index("begin") :]
        assert kinds == ["begin", "end"] * 3


def adaptive(variant: str, begin_step: int) -> Iterator[tuple[int, int]]:
    """Yield the steps that ask for a loss, and the period from then on."""
    schedule = Schedule(
        LocalSgdSettings(k_steps=4, begin_step=begin_step, interval=variant)  # type: ignore[arg-type]
    )
    losses = {1: 4.0, 2: 3.0, 3: 2.0}
    for step in range(1, 30):
        begins = bool(schedule.after_step())
        if begins and schedule.wants_loss:
            loss = losses.get(step, 0.5)
            yield step, schedule.choose(loss=loss, rate=0.1)


def test_adaptive_periods_of_the_paper_compare_with_the_end_of_the_warm_up() -> None:
    # ceil(4 * sqrt(0.5 / 2)) = 2 from the first period on
    assert list(adaptive("paper", 3))[:4] == [(3, 4), (7, 2), (9, 2), (11, 2)]


def test_adaptive_periods_of_fleet_compare_with_the_first_step() -> None:
    # ceil(sqrt(4 * 0.5 / 4)) = 1
    assert list(adaptive("fleet", 3))[:4] == [(1, 4), (7, 1), (8, 1), (9, 1)]


def test_adaptive_periods_begin_at_the_first_synchronization_without_a_warm_up() -> None:
    assert list(adaptive("paper", 0))[:3] == [(4, 4), (8, 4), (12, 4)]


def test_only_adaptive_periods_need_losses() -> None:
    assert not Schedule(LocalSgdSettings()).needs_losses
    assert Schedule(LocalSgdSettings(interval="fleet")).needs_losses


def test_closing_exchanges_what_is_left() -> None:
    schedule = Schedule(LocalSgdSettings(k_steps=3, begin_step=0))
    for _ in range(4):
        schedule.after_step()

    assert schedule.close() == both()
    assert schedule.close() == []
    assert beginnings(schedule, 3) == [3]  # a new period


def test_closing_ends_what_is_under_way_and_then_exchanges_all() -> None:
    schedule = Schedule(LocalSgdSettings(k_steps=3, begin_step=0, overlap_steps=2))
    for _ in range(4):
        schedule.after_step()

    assert schedule.close() == [Action("end", 0), *both()]
    assert schedule.close() == []


def test_closing_exchanges_nothing_anew_when_no_step_was_taken_since() -> None:
    schedule = Schedule(LocalSgdSettings(k_steps=3, begin_step=0, overlap_steps=2))
    for _ in range(3):
        schedule.after_step()

    assert schedule.close() == [Action("end", 0)]


def test_one_who_joins_late_is_behind_the_first_steps() -> None:
    schedule = Schedule(LocalSgdSettings(k_steps=3, begin_step=10))

    schedule.join(50)

    assert [len(schedule.after_step()) for _ in range(6)] == [0, 0, 2, 0, 0, 2]
    assert schedule.close() == []


def test_an_exchange_may_end_before_it_is_due() -> None:
    schedule = Schedule(LocalSgdSettings(k_steps=1, begin_step=0, overlap_steps=1))
    schedule.after_step()

    assert schedule.end_early(0) == Action("end", 0)
    assert schedule.after_step() == [Action("begin", 0)]


def test_closing_exchanges_all_fragments() -> None:
    schedule = Schedule(LocalSgdSettings(k_steps=4, begin_step=0, fragments=2))
    schedule.after_step()

    assert schedule.close() == [
        Action("begin", 0), Action("begin", 1), Action("end", 0), Action("end", 1),
    ]  # fmt: skip


@pytest.mark.parametrize("interval", ["fixed", "paper"])
def test_a_restored_schedule_goes_on(interval: str) -> None:
    settings = LocalSgdSettings(k_steps=4, interval=interval)  # type: ignore[arg-type]
    schedules = [Schedule(settings), Schedule(settings)]
    for _ in range(6):
        schedules[0].after_step()
        if schedules[0].wants_loss and schedules[0].step in {1, 5}:
            schedules[0].choose(loss=1.0 / schedules[0].step, rate=0.1)

    schedules[1].load_state_dict(schedules[0].state_dict())

    assert schedules[1].k_steps == schedules[0].k_steps
    assert beginnings(schedules[1], 20) == beginnings(schedules[0], 20)
    if interval == "paper":
        chosen = [schedule.choose(loss=0.3, rate=0.1) for schedule in schedules]
        assert chosen[0] == chosen[1]
