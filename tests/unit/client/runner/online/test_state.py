"""A checkpoint says itself where its training was."""

from typing import Any

import pytest

from paramfleet.model_state.plain import pack, unpack
from paramfleet.runner.online.calendar import Calendar, Place
from paramfleet.runner.online.errors import OtherPassesError
from paramfleet.runner.online.state import OnlineState

CALENDAR = Calendar(days=("20260101",), split_interval=60, split_per_pass=2, num_passes=12)


def test_what_is_saved_is_loaded() -> None:
    state, other = OnlineState(CALENDAR), OnlineState(CALENDAR)
    assert state.loaded is None
    state.is_at(Place("20260101", 3), base_key=7, inside=True)

    other.load_state_dict(unpack(pack(state.state_dict())))

    assert other.loaded is not None
    assert other.loaded.place == Place("20260101", 3)
    assert (other.loaded.base_key, other.loaded.inside) == (7, True)
    other.loaded.check(CALENDAR, "/m")


def test_a_load_moves_no_training() -> None:
    state = OnlineState(CALENDAR)
    state.is_at(Place("20260101", 3), base_key=7)
    before = state.state_dict()
    state.load_state_dict(OnlineState(CALENDAR).state_dict())

    assert state.state_dict() == before
    assert state.loaded is not None
    assert state.loaded.place is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"version": 2},
        {"day": 20260101},
        {"number": -1},
        {"base_key": "x"},
        {"split_interval": 1.5},
    ],
)
def test_another_state_is_refused(wrong: dict[str, Any]) -> None:
    state = OnlineState(CALENDAR)
    with pytest.raises((ValueError, TypeError)):
        state.load_state_dict({**state.state_dict(), **wrong})

    assert state.loaded is None


@pytest.mark.parametrize(
    ("now", "word"),
    [
        ({"split_interval": 30}, "split_interval = 60"),
        ({"split_per_pass": 1}, "split_per_pass = 2"),
        ({"num_passes": 2}, "has 2 passes now"),
    ],
)
def test_other_passes_begin_with_a_day(now: dict[str, int], word: str) -> None:
    facts = {"days": CALENDAR.days, "split_interval": 60, "split_per_pass": 2}
    calendar = Calendar(**{**facts, "num_passes": 12, **now})  # type: ignore[arg-type]
    state = OnlineState(CALENDAR)
    for number in (3, 0):
        state.is_at(Place("20260101", number), base_key=0)
        state.load_state_dict(state.state_dict())
        assert state.loaded is not None
        if not number:
            state.loaded.check(calendar, "/m")
            continue
        with pytest.raises(OtherPassesError, match=word):
            state.loaded.check(calendar, "/m")
