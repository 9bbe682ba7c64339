from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import flights


def write_tables(folder: Path, timetable: pd.DataFrame) -> Path:
    folder.mkdir(exist_ok=True)
    timetable.to_csv(folder / "flights.csv.zip", index=False)
    weather = timetable[["origin", "time_hour"]].drop_duplicates()
    weather.assign(**dict.fromkeys(flights.WEATHER, 1.5)).to_csv(
        folder / "weather.csv", index=False
    )
    planes = pd.DataFrame({"tailnum": ["N1", "N2"], "year": [2001, 2009]})
    planes.assign(manufacturer="Maker", model="M1", seats=[50, 180]).to_csv(
        folder / "planes.csv", index=False
    )
    return folder


def test_features_hold_nothing_that_is_known_after_departure(timetable: pd.DataFrame) -> None:
    fields = {name for field in flights.WIDE_FIELDS + flights.DEEP_FIELDS for name in field}

    used = fields | set(flights.DENSE_COLUMNS) | set(flights.TIMETABLE)

    assert not used & flights.AFTER_DEPARTURE


def test_examples_stay_the_same_whatever_happens_after_departure(
    tmp_path: Path, timetable: pd.DataFrame
) -> None:
    told = flights.load_flights(write_tables(tmp_path / "told", timetable))
    changed = timetable.assign(dep_time=1, dep_delay=2, arr_time=3, air_time=4)
    changed["arr_delay"] = -changed["arr_delay"]
    turned = flights.load_flights(write_tables(tmp_path / "turned", changed))

    assert np.array_equal(told.train.wide_ids, turned.train.wide_ids)
    assert np.array_equal(told.train.deep_ids, turned.train.deep_ids)
    assert np.array_equal(told.train.dense, turned.train.dense)
    assert not np.array_equal(told.train.labels, turned.train.labels)


def test_flights_that_never_arrived_are_dropped(
    tmp_path: Path, timetable: pd.DataFrame
) -> None:
    dataset = flights.load_flights(write_tables(tmp_path, timetable))

    assert len(dataset.train) == 144
    assert len(dataset.test) == 36


def test_late_is_more_than_fifteen_minutes(tmp_path: Path, timetable: pd.DataFrame) -> None:
    delays = np.tile([15.0, 16.0], len(timetable) // 2)
    dataset = flights.load_flights(write_tables(tmp_path, timetable.assign(arr_delay=delays)))

    assert dataset.train.labels.sum() + dataset.test.labels.sum() == len(timetable) // 2


def test_shapes_and_types_are_those_the_model_takes(
    tmp_path: Path, timetable: pd.DataFrame
) -> None:
    train = flights.load_flights(write_tables(tmp_path, timetable)).train

    assert train.wide_ids.shape == (len(train), len(flights.WIDE_FIELDS))
    assert train.deep_ids.shape == (len(train), len(flights.DEEP_FIELDS))
    assert train.dense.shape == (len(train), len(flights.DENSE_COLUMNS))
    assert train.wide_ids.dtype == train.deep_ids.dtype == np.int64
    assert train.dense.dtype == train.labels.dtype == np.float32
    assert min(train.wide_ids.min(), train.deep_ids.min()) >= 0
    assert np.isfinite(train.dense).all()


def test_a_cancelled_flight_still_counts_among_the_departures_of_its_hour(
    timetable: pd.DataFrame,
) -> None:
    busy = timetable.assign(origin="JFK", time_hour="2013-01-01T10:00:00Z")
    weather = pd.DataFrame(
        {"origin": ["JFK"], "time_hour": ["2013-01-01T10:00:00Z"]}
        | {name: [1.0] for name in flights.WEATHER}
    )
    planes = pd.DataFrame(
        {"tailnum": ["N1"], "built": [2000], "manufacturer": ["M"], "model": ["M1"], "seats": 9}
    )

    features = flights.known_before_departure(busy[list(flights.TIMETABLE)], weather, planes)

    assert (features["departures_in_hour"] == len(timetable)).all()


def test_the_split_is_the_same_every_time(tmp_path: Path, timetable: pd.DataFrame) -> None:
    folder = write_tables(tmp_path, timetable)

    first, second = flights.load_flights(folder), flights.load_flights(folder)

    assert np.array_equal(first.test.wide_ids, second.test.wide_ids)
    assert np.array_equal(first.test.labels, second.test.labels)


@pytest.mark.slow
def test_the_installed_package_has_the_flights_of_2013() -> None:
    dataset = flights.load_flights(flights.flight_files())

    assert len(dataset.train) + len(dataset.test) == 336_776 - 9_430
    assert len(dataset.test) == 65_469
    assert 0.23 < dataset.test.labels.mean() < 0.245
