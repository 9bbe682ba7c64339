"""The example that trains online: what it may know of a day before it comes."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from features import field_ids
from flights import WEATHER, known_before_departure
from flights_by_day import DEEP, WIDE, Days, auc_of, days_of

NUM_DAYS, WARM_UP = 20, 5


@pytest.fixture
def features(timetable: pd.DataFrame) -> pd.DataFrame:
    """Features of January's flights among invented ones."""
    timetable["month"] = 1
    timetable["time_hour"] = [
        f"2013-01-{day:02}T{hour:02}:00:00Z"
        for day, hour in zip(timetable["day"], timetable["hour"], strict=True)
    ]
    hours = timetable[["origin", "time_hour"]].drop_duplicates()
    weather = hours.assign(**dict.fromkeys(WEATHER, 1.5))
    planes = pd.DataFrame({"tailnum": ["N1", "N2"], "built": [2001, 2009], "seats": [50, 180]})
    planes = planes.assign(manufacturer="Maker", model="M1")
    return known_before_departure(timetable, weather, planes)


def days_with(features: pd.DataFrame) -> Days:
    labels = np.arange(len(features), dtype=np.float32) % 2
    return days_of(features, labels, num_days=NUM_DAYS, warm_up=WARM_UP)


def test_days_follow_one_another_with_the_flights_of_each(features: pd.DataFrame) -> None:
    days = days_with(features)
    early = features[features["date"] <= NUM_DAYS]

    assert len(days) == NUM_DAYS
    assert len(days.examples) == len(early)
    for day in range(NUM_DAYS):
        own = early[early["date"] == day + 1]
        wide = days.examples.wide_ids[days.rows(day)]
        assert sorted(wide.tolist()) == sorted(field_ids(own, WIDE).tolist())
        assert len(days.rows_before(day)) == (early["date"] <= day).sum()


def test_no_field_has_the_date() -> None:
    assert not [field for field in (*WIDE, *DEEP) if "date" in field]
    assert len(WIDE) == 5
    assert len(DEEP) == 9


def test_numbers_are_measured_on_the_warm_up_alone(features: pd.DataFrame) -> None:
    before = days_with(features)
    later = features["date"] > WARM_UP
    features.loc[later, "distance"] *= 1000
    after = days_with(features)

    warm = slice(0, before.starts[WARM_UP])
    np.testing.assert_array_equal(after.examples.dense[warm], before.examples.dense[warm])


def test_days_are_read_as_they_were_written(features: pd.DataFrame, tmp_path: Path) -> None:
    days = days_with(features)
    days.write(tmp_path / "days.npz")
    again = Days.read(tmp_path / "days.npz")

    assert again.warm_up == WARM_UP
    np.testing.assert_array_equal(again.starts, days.starts)
    np.testing.assert_array_equal(again.examples.dense, days.examples.dense)


def test_the_auc_is_the_share_of_pairs_in_order() -> None:
    random = np.random.default_rng(1)
    scores = random.integers(0, 20, 300).astype(np.float32)
    labels = (random.random(300) < scores / 25).astype(np.float32)
    positive, negative = scores[labels == 1][:, None], scores[labels == 0]
    expected = np.mean((positive > negative) + (positive == negative) / 2)

    assert auc_of(scores, labels) == pytest.approx(expected)
    assert np.isnan(auc_of(scores, np.ones(300, np.float32)))
