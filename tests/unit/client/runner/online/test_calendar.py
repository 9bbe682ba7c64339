"""Days and passes: every folder of a day is in one pass, or is named as not read."""

import pytest

from paramfleet.runner.config.days import day_after, days_of
from paramfleet.runner.config.online_settings import OnlineSettings
from paramfleet.runner.online.calendar import Calendar, Place
from paramfleet_shared.settings.config import SettingError


@pytest.mark.parametrize(
    ("words", "days"),
    [
        (["{20260130..20260202}"], ["20260130", "20260131", "20260201", "20260202"]),
        (["20240228..20240301"], ["20240228", "20240229", "20240301"]),
        (["20260101", "20260103..20260104"], ["20260101", "20260103", "20260104"]),
        (["{20260101,20260103} 20260105"], ["20260101", "20260103", "20260105"]),
        (["20251231..20260101"], ["20251231", "20260101"]),
    ],
)
def test_days_are_those_of_the_calendar(words: list[str], days: list[str]) -> None:
    assert list(days_of(words)) == days


@pytest.mark.parametrize(
    ("word", "rule"),
    [
        ("20260230", "20260230 isn't"),
        ("2026013", "days as"),
        ("$(date)", "days as"),
        ("{20260101..20260103..2}", "days as"),
        ("{20260101..20260103", "days as"),
        ("20260103..20260101", "doesn't end before it begins"),
        ("20260101 20260101", "20260101 follows 20260101"),
        ("00010101", "from 1970 on"),
        ("19700101..99981231", "at most"),
        ("", "x"),
    ],
)
def test_what_names_no_days_is_refused(word: str, rule: str) -> None:
    if not word:
        assert days_of([word]) == ()
        return
    with pytest.raises(ValueError, match=rule):
        days_of([word])


def test_the_day_after_crosses_years() -> None:
    assert day_after("20251231") == "20260101"
    assert day_after("20240228") == "20240229"


@pytest.mark.parametrize("interval", [1, 5, 7, 60, 720, 1000, 1440])
@pytest.mark.parametrize("per_pass", [1, 2, 5])
@pytest.mark.parametrize("limit", [0, 1])
def test_every_folder_is_in_one_pass_or_named(interval: int, per_pass: int, limit: int) -> None:
    if 1440 // interval < per_pass:
        with pytest.raises(SettingError):
            OnlineSettings(days=("20260101",), split_interval=interval, split_per_pass=per_pass)
        return
    settings = OnlineSettings(
        days=("20260101..20260102",),
        split_interval=interval,
        split_per_pass=per_pass,
        pass_per_day=limit,
    )
    calendar = Calendar.of(settings)

    place, seen = None, []
    while (coming := calendar.after(place)) is not None:
        assert calendar.trained(coming.place) == coming
        assert len(coming.folders) == per_pass
        seen.append((coming.place.day, *coming.folders))
        place = coming.place
    folders = [f"{m // 60:02d}{m % 60:02d}" for m in range(0, 1440, interval)]
    folders = folders[: 1440 // interval]
    for day in ("20260101", "20260102"):
        used = [name for found, *names in seen if found == day for name in names]
        assert [*used, *calendar.not_read] == folders
    if not limit:
        assert len(calendar.not_read) < per_pass


def test_a_pass_follows_a_place_that_is_in_no_day_of_the_list() -> None:
    calendar = Calendar(
        days=("20260101", "20260103"), split_interval=720, split_per_pass=1, num_passes=2
    )

    follows = {
        None: Place("20260101", 1),
        Place("20251231", 7): Place("20260101", 1),
        Place("20260101", 0): Place("20260101", 1),
        Place("20260101", 1): Place("20260101", 2),
        Place("20260101", 2): Place("20260103", 1),
        Place("20260102", 0): Place("20260103", 1),
    }
    for place, coming in follows.items():
        found = calendar.after(place)
        assert found is not None
        assert found.place == coming
    assert calendar.after(Place("20260103", 2)) is None
    assert calendar.after(Place("20260104", 0)) is None
    assert calendar.trained(Place("20260102", 1)) is None
    assert calendar.trained(Place("20260101", 0)) is None
    assert str(calendar.after(None)) == "day 20260101, pass 1"
