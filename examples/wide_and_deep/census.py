"""Census: does a person of the 1994 census earn more than 50,000 dollars a year?

The "Adult" data of the UCI repository, 32,561 people (CC BY 4.0,
https://archive.ics.uci.edu/dataset/2/adult). The folder given with ``--data_dir``
holds ``adult.data`` or ``adult.data.gz``, or has it under ``medium/``. The first
26,048 rows are for training, the last 6,513 for the test.
"""

from pathlib import Path

import numpy as np
import pandas as pd

from features import Field, field_ids, standardised
from records import Dataset, Examples

__all__ = [
    "DEEP_FIELDS",
    "DENSE_COLUMNS",
    "NUM_TRAIN_ROWS",
    "WIDE_FIELDS",
    "census_file",
    "load_census",
]

NUM_TRAIN_ROWS = 26_048

COLUMNS = (
    *("age", "workclass", "weight", "education", "education_years", "marital_status"),
    *("occupation", "relationship", "race", "sex", "capital_gain", "capital_loss"),
    *("hours", "country", "income"),
)

WIDE_FIELDS: tuple[Field, ...] = (
    ("education", "occupation"),
    ("age_group", "education", "occupation"),
    ("marital_status", "occupation"),
    ("relationship", "age_group"),
    ("age_group", "hours_group"),
    ("workclass", "occupation"),
    ("education", "marital_status"),
    ("country", "occupation"),
    ("capital_gain",),
    ("capital_loss",),
    ("age",),
    ("hours",),
)
DEEP_FIELDS: tuple[Field, ...] = (
    ("workclass",),
    ("education",),
    ("marital_status",),
    ("occupation",),
    ("relationship",),
    ("race",),
    ("sex",),
    ("country",),
    ("age_group",),
    ("hours_group",),
)
DENSE_COLUMNS = (
    *("age", "age_squared", "education_years", "hours"),
    *("log_gain", "log_loss", "has_gain", "has_loss"),
)


def census_file(data_dir: Path) -> Path:
    """Return the table found in the folder.

    Raises:
        FileNotFoundError: The folder has none of the names it may have.
    """
    names = ("medium/adult.data.gz", "adult.data.gz", "adult.data")
    for name in names:
        if (data_dir / name).is_file():
            return data_dir / name
    msg = f"{data_dir} has none of {', '.join(names)}; see --data_dir"
    raise FileNotFoundError(msg)


def load_census(file: Path) -> Dataset:
    """Read the table and return the examples."""
    people = pd.read_csv(file, names=COLUMNS, skipinitialspace=True, na_values="?")
    labels = people["income"].str.startswith(">").to_numpy().astype(np.float32)
    features = _features(people.drop(columns=["income", "weight"]))
    rows = np.arange(len(features), dtype=np.int64)
    train_rows, test_rows = rows[:NUM_TRAIN_ROWS], rows[NUM_TRAIN_ROWS:]
    examples = Examples(
        wide_ids=field_ids(features, WIDE_FIELDS),
        deep_ids=field_ids(features, DEEP_FIELDS),
        dense=standardised(features[list(DENSE_COLUMNS)], train_rows),
        labels=labels,
    )
    return Dataset(train=examples.take(train_rows), test=examples.take(test_rows))


def _features(people: pd.DataFrame) -> pd.DataFrame:
    """Return the columns with groups of age and of working hours, and tamed money."""
    return people.assign(
        age_group=people["age"] // 5,
        hours_group=people["hours"] // 10,
        age_squared=people["age"] ** 2,
        log_gain=np.log1p(people["capital_gain"]),
        log_loss=np.log1p(people["capital_loss"]),
        has_gain=people["capital_gain"] > 0,
        has_loss=people["capital_loss"] > 0,
    )
