"""The flights of 2013 in the order of time: what a model may know of a day before it comes.

Fields of the wide and deep model, but for those with the date: a day's own ids have no rows
before it is trained. Numbers are standardised by the warm-up days, which nothing is judged on.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

sys.path.append(str(Path(__file__).parents[1] / "wide_and_deep"))

from features import Field, field_ids, standardised
from flights import DEEP_FIELDS, DENSE_COLUMNS, WIDE_FIELDS, flight_files, read_flights
from records import Examples

__all__ = ["DEEP", "WIDE", "Days", "auc_of", "days_of", "load_days"]

WIDE: tuple[Field, ...] = tuple(each for each in WIDE_FIELDS if "date" not in each)
DEEP: tuple[Field, ...] = tuple(each for each in DEEP_FIELDS if "date" not in each)


@dataclass(frozen=True, kw_only=True, slots=True)
class Days:
    """Examples of some days, one behind the other."""

    examples: Examples
    starts: NDArray[np.int64]
    """``[days + 1]``: where each day begins, and the end of the last one."""
    warm_up: int
    """Days at the beginning that aren't scored."""

    def __len__(self) -> int:
        return len(self.starts) - 1

    def rows(self, day: int) -> NDArray[np.int64]:
        """Return the rows of a day, int64 ``[flights]``."""
        return np.arange(self.starts[day], self.starts[day + 1])

    def rows_before(self, day: int) -> NDArray[np.int64]:
        """Return the rows of all days before one, int64 ``[flights]``."""
        return np.arange(self.starts[day])

    def write(self, file: Path) -> None:
        """Put the days into a new file."""
        examples = self.examples
        np.savez(
            file,
            wide_ids=examples.wide_ids,
            deep_ids=examples.deep_ids,
            dense=examples.dense,
            labels=examples.labels,
            starts=self.starts,
            warm_up=self.warm_up,
        )

    @classmethod
    def read(cls, file: Path) -> "Days":
        """Return what ``write`` wrote."""
        with np.load(file, allow_pickle=False) as arrays:
            examples = Examples(
                wide_ids=arrays["wide_ids"],
                deep_ids=arrays["deep_ids"],
                dense=arrays["dense"],
                labels=arrays["labels"],
            )
            return cls(
                examples=examples, starts=arrays["starts"], warm_up=int(arrays["warm_up"])
            )


def load_days(num_days: int, *, warm_up: int) -> Days:
    """Return the first days of the year, read from the installed package; see ``days_of``."""
    features, labels = read_flights(flight_files())
    return days_of(features, labels, num_days=num_days, warm_up=warm_up)


def days_of(
    features: pd.DataFrame, labels: NDArray[np.float32], *, num_days: int, warm_up: int
) -> Days:
    """Return the first days of the year.

    Args:
        features: As ``flights.read_flights`` returns them, in any order.
        labels: float32 ``[flights]``.
        num_days: How many days.
        warm_up: How many of them measure the numbers, and aren't scored.
    """
    order = np.lexsort((features["departure"], features["date"]))
    order = order[features["date"].to_numpy()[order] <= num_days]
    chosen = features.iloc[order].reset_index(drop=True)
    starts = np.searchsorted(chosen["date"].to_numpy(), np.arange(1, num_days + 2))
    examples = Examples(
        wide_ids=field_ids(chosen, WIDE),
        deep_ids=field_ids(chosen, DEEP),
        dense=standardised(chosen[list(DENSE_COLUMNS)], np.arange(starts[warm_up])),
        labels=labels[order],
    )
    return Days(examples=examples, starts=starts.astype(np.int64), warm_up=warm_up)


def auc_of(scores: NDArray[np.float32], labels: NDArray[np.float32]) -> float:
    """Return the area under the ROC curve; NaN if all labels are the same.

    Args:
        scores: ``[examples]``; equal ones count half.
        labels: ``[examples]``, 0 or 1.
    """
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2
    positive = labels > 0.5
    num_positive = int(positive.sum())
    pairs = num_positive * (len(labels) - num_positive)
    if not pairs:
        return float("nan")
    above = ranks[place][positive].sum() - num_positive * (num_positive + 1) / 2
    return float(above / pairs)
